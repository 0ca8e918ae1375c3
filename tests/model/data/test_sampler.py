"""Epoch sampler: what the paper's pairs are, how often, and that their order is a function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model.common.rng import permute
from model.data.sampler import EpochSampler, unusable_reason
from model.data.token_store import TokenStore, TokenStoreWriter

LENGTH = 32
MAX_TOKENS = LENGTH - 3


def sampler(store: TokenStore, seed: int = 1, **changes: object) -> EpochSampler:
    settings = {"objective": "next_sentence", "short_probability": 0.1, **changes}
    return EpochSampler(store, LENGTH, keys=(seed, 0), **settings)  # type: ignore[arg-type]


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
    epoch = sampler(store)
    spans = epoch.samples(0, epoch.epoch_size(0))
    borders = store.sentence_offsets[store.document_offsets]

    def document_of(place: np.ndarray) -> np.ndarray:
        return np.searchsorted(borders, place, side="right") - 1

    for which in ("first", "second"):
        start, length = spans[f"{which}_start"], spans[f"{which}_length"]
        assert length.min() >= 1
        assert np.array_equal(document_of(start), document_of(start + length - 1))
    same = document_of(spans["first_start"]) == document_of(spans["second_start"])
    assert np.array_equal(same, spans["pair_label"] == 0)
    assert (spans["first_start"] < spans["second_start"])[spans["pair_label"] == 0].all()
    assert spans["length"].max() <= LENGTH
    assert np.array_equal(spans["length"], spans["first_length"] + spans["second_length"] + 3)


def test_short_targets_are_a_tenth(even_store: TokenStore) -> None:
    epoch = sampler(even_store)
    lengths = epoch.samples(0, epoch.epoch_size(0))["length"]
    whole = sampler(even_store, short_probability=0.0)
    without = whole.samples(0, whole.epoch_size(0))["length"]
    assert 0.05 < (lengths < 24).mean() - (without < 24).mean() < 0.15


def test_samples_do_not_depend_on_how_they_are_asked_for(store: TokenStore) -> None:
    size = sampler(store).epoch_size(0)
    count = 3 * size
    whole = sampler(store).samples(0, count)
    pieces = sampler(store)
    for first in (size - 5, 2 * size, 7, 2 * size - 3):  # forward, backward, across an epoch's end
        part = pieces.samples(first, 11)
        assert np.array_equal(part, whole[first : first + 11])


def test_epochs_and_seeds_differ(store: TokenStore) -> None:
    def opening(seed: int, epoch: int) -> np.ndarray:
        one = sampler(store, seed)
        first = 0
        for number in range(epoch):
            first += one.epoch_size(number)
        return one.samples(first, 50)

    starts = {tuple(opening(seed, epoch)["first_start"]) for seed in range(3) for epoch in range(2)}
    assert len(starts) == 6


def sentence_order(folder: Path, documents: list[list[int]], max_tokens: int = 9) -> list[tuple[int, ...]]:
    """The pairs (start and length of A, of B, label) of documents with sentences of these lengths, sorted."""
    writer = TokenStoreWriter(folder, 1000, tokenizer_digest="x")
    for lengths in documents:
        writer.add_tokens(np.arange(sum(lengths)), np.array(lengths))
    writer.close()
    epoch = EpochSampler(
        TokenStore.open(folder), max_tokens + 3, objective="sentence_order", short_probability=0.0, keys=(1,)
    )
    samples = epoch.samples(0, epoch.epoch_size(0))
    return sorted(samples[["first_start", "first_length", "second_start", "second_length", "pair_label"]].tolist())


def in_order(pair: tuple[int, ...]) -> tuple[int, ...]:
    """Start and length of the span that comes first in the text, and of the other."""
    return pair[2:4] + pair[:2] if pair[4] else pair[:4]


def test_pairs_to_order_are_neighbors(store: TokenStore) -> None:
    epoch = sampler(store, objective="sentence_order", short_probability=0.0)
    spans = epoch.samples(0, epoch.epoch_size(0))
    borders = store.sentence_offsets[store.document_offsets]
    documents = [np.searchsorted(borders, spans[start], side="right") for start in ("first_start", "second_start")]
    assert np.array_equal(*documents)
    assert np.array_equal(spans["first_start"] > spans["second_start"], spans["pair_label"] == 1)
    untrimmed = spans["length"] < LENGTH
    swapped = spans["pair_label"] == 1
    first_end, second_end = (spans[f"{which}_start"] + spans[f"{which}_length"] for which in ("first", "second"))
    earlier = np.where(swapped, second_end, first_end)
    later = np.where(swapped, spans["first_start"], spans["second_start"])
    assert untrimmed.any() and np.array_equal(earlier[untrimmed], later[untrimmed])


def test_a_sentence_left_alone_joins_the_chunk_before_it(tmp_path: Path) -> None:
    # 3 + 3 + 3 tokens fill the first chunk, and the fourth sentence joins it.
    [pair] = sentence_order(tmp_path, [[3, 3, 3, 2]])
    start, length, other, other_length = in_order(pair)
    assert start <= 2 and other + other_length >= 9 and length + other_length == 9


def test_a_long_sentence_takes_the_next_one(tmp_path: Path) -> None:
    pairs = sentence_order(tmp_path, [[20, 2, 20, 3]])
    starts = [in_order(pair) for pair in pairs]
    assert len(pairs) == 2
    assert all(pair[1] >= 1 and pair[3] >= 1 for pair in pairs)
    assert starts[0][2:] == (20, 2) and starts[1][2:] == (42, 3)  # the shorter one is left whole


def test_a_document_of_one_sentence_is_split_inside_it(tmp_path: Path) -> None:
    pairs = sentence_order(tmp_path, [[7], [1], [2]])
    found = sorted(in_order(pair) for pair in pairs)
    assert [pair[0] for pair in found] == [0, 8]  # a single token gives no pair
    assert found[0][0] + found[0][1] == found[0][2] and found[0][1] + found[0][3] == 7
    assert found[1] == (8, 1, 9, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 17, 64, 1000])
def test_permutation_is_one(size: int) -> None:
    places = [permute(index, size, np.uint64(5)) for index in range(size)]
    assert sorted(places) == list(range(size))


def test_permutation_has_no_trend() -> None:
    places = np.array([permute(index, 5000, np.uint64(9)) for index in range(5000)])
    assert abs(np.corrcoef(np.arange(5000), places)[0, 1]) < 0.05
    assert abs(np.corrcoef(places[1:], places[:-1])[0, 1]) < 0.05


def test_what_a_store_lacks_is_said(tmp_path: Path) -> None:
    for name, sentences in (("one", [[1, 2, 3]]), ("short", [[1], [2]]), ("none", [])):
        writer = TokenStoreWriter(tmp_path / name, 100, tokenizer_digest="x")
        for sentence in sentences:
            writer.add_document([sentence])
        writer.close()
    one, short, none = (TokenStore.open(tmp_path / name) for name in ("one", "short", "none"))
    assert unusable_reason(one, "next_sentence") == (
        "1 documents, expected at least 2; next sentence prediction draws from other documents"
    )
    assert unusable_reason(one, "sentence_order") is None and unusable_reason(one, "none") is None
    assert (
        "two spans" in str(unusable_reason(short, "sentence_order")) and unusable_reason(short, "next_sentence") is None
    )
    assert "0 documents" in str(unusable_reason(none, "none"))
