"""Epoch plans: what the paper's pairs are, how often, and that their order is a function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model import pairs
from model.pairs import EpochPlans, Spans
from model.permutation import permute
from model.token_store import TokenStore, TokenStoreWriter

LENGTH = 32
MAX_TOKENS = LENGTH - 3


def plans(store: TokenStore, seed: int = 1, **changes: object) -> EpochPlans:
    settings = {"pairs": True, "short_probability": 0.1, **changes}
    return EpochPlans(store, LENGTH, keys=(seed, 0), **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def even_store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """400 documents of 30 sentences of four tokens."""
    folder = tmp_path_factory.mktemp("even")
    writer = TokenStoreWriter(folder, 1000, tokenizer_digest="x")
    for _ in range(400):
        writer.add_tokens(np.arange(120), np.full(30, 4))
    writer.close()
    return TokenStore.open(folder)


def test_spans_keep_to_their_documents(store: TokenStore) -> None:
    epoch = plans(store)
    spans = epoch.spans(0, epoch.epoch_size(0))
    borders = store.sentence_offsets[store.document_offsets]

    def document_of(place: np.ndarray) -> np.ndarray:
        return np.searchsorted(borders, place, side="right") - 1

    for start, length in ((spans.first_start, spans.first_length), (spans.second_start, spans.second_length)):
        assert length.min() >= 1
        assert np.array_equal(document_of(start), document_of(start + length - 1))
    same = document_of(spans.first_start) == document_of(spans.second_start)
    assert np.array_equal(same, spans.not_next == 0)
    assert (spans.first_start < spans.second_start)[spans.not_next == 0].all()
    assert spans.lengths.max() <= LENGTH
    assert np.array_equal(spans.lengths, spans.first_length + spans.second_length + 3)


def test_half_of_the_chunks_of_several_sentences_are_next(even_store: TokenStore) -> None:
    epoch = plans(even_store, short_probability=0.0)
    labels = np.concatenate([epoch.spans(number * 1000, 1000).not_next for number in range(20)])
    # Only a chunk of one sentence is forced to NotNext: the last sentence of a document, here one chunk in fifteen.
    assert 0.5 < labels.mean() < 0.56


def test_every_sentence_is_visited_equally_often(tmp_path: Path) -> None:
    # Sentences of one token: nothing is ever too long, so nothing is taken off.
    writer = TokenStoreWriter(tmp_path, 1000, tokenizer_digest="x")
    for _ in range(200):
        writer.add_tokens(np.arange(120), np.ones(120, dtype=np.int64))
    writer.close()
    epoch = plans(TokenStore.open(tmp_path))
    spans = epoch.spans(0, epoch.epoch_size(0))
    visits, drawn = np.zeros((200, 120)), np.zeros(120)
    for a, num_a, b, num_b, not_next in zip(*spans.columns()):
        visits.flat[a : a + num_a] += 1
        if not_next:
            drawn[np.arange(b, b + num_b) % 120] += 1
        else:
            visits.flat[b : b + num_b] += 1
    assert (visits == 1).all()
    assert drawn[-40:].mean() >= drawn[40:80].mean() * 0.95  # as B of others, endings are no rarer either


def test_short_targets_are_a_tenth(even_store: TokenStore) -> None:
    epoch = plans(even_store)
    lengths = epoch.spans(0, epoch.epoch_size(0)).lengths
    whole = plans(even_store, short_probability=0.0)
    without = whole.spans(0, whole.epoch_size(0)).lengths
    assert 0.05 < (lengths < 24).mean() - (without < 24).mean() < 0.15


def test_samples_do_not_depend_on_how_they_are_asked_for(store: TokenStore) -> None:
    size = plans(store).epoch_size(0)
    count = 3 * size
    whole = plans(store).spans(0, count)
    pieces = plans(store)
    for first in (size - 5, 2 * size, 7, 2 * size - 3):  # forward, backward, across an epoch's end
        part = pieces.spans(first, 11)
        for one, other in zip(part.columns(), whole.columns()):
            assert np.array_equal(one, other[first : first + 11])


def test_epochs_and_seeds_differ(store: TokenStore) -> None:
    def opening(seed: int, epoch: int) -> Spans:
        one = plans(store, seed)
        first = 0
        for number in range(epoch):
            first += one.epoch_size(number)
        return one.spans(first, 50)

    starts = {tuple(opening(seed, epoch).first_start) for seed in range(3) for epoch in range(2)}
    assert len(starts) == 6


def test_single_spans_cover_every_token_once(store: TokenStore) -> None:
    epoch = plans(store, pairs=False)
    spans = epoch.spans(0, epoch.epoch_size(0))
    seen = np.zeros(store.num_tokens, dtype=int)
    for start, length in zip(spans.first_start, spans.first_length):
        seen[start : start + length] += 1
    assert (seen == 1).all()
    assert not spans.second_length.any() and spans.lengths.max() <= LENGTH


@pytest.mark.parametrize("size", [1, 2, 3, 17, 64, 1000])
def test_permutation_is_one(size: int) -> None:
    places = [permute(index, size, np.uint64(5)) for index in range(size)]
    assert sorted(places) == list(range(size))


def test_permutation_has_no_trend() -> None:
    places = np.array([permute(index, 5000, np.uint64(9)) for index in range(5000)])
    assert abs(np.corrcoef(np.arange(5000), places)[0, 1]) < 0.05
    assert abs(np.corrcoef(places[1:], places[:-1])[0, 1]) < 0.05


def test_a_plan_needs_documents_to_draw_from(tmp_path: Path) -> None:
    writer = TokenStoreWriter(tmp_path, 100, tokenizer_digest="x")
    writer.add_document([[1, 2, 3]])
    writer.close()
    with pytest.raises(AssertionError, match="too few documents"):
        pairs.EpochPlans(TokenStore.open(tmp_path), 16, pairs=True, short_probability=0.0, keys=(1,))
