"""Batches: their layout, their counts, and that they do not depend on ranks or parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model.common.errors import UserError
from model.config.pretraining import PretrainRecipe
from model.data.collator import PretrainBatch
from model.data.loader import PretrainLoader
from model.data.token_store import TokenStore, TokenStoreWriter
from model.objectives import OBJECTIVES
from model.tokenizer.wordpiece import SpecialIds, Vocabulary

SPECIALS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
VOCABULARY = Vocabulary(SPECIALS, np.arange(120) >= 60)  # half of the pieces go on with a word
KINDS = [
    {"sentence_objective": objective, "masking": {"whole_words": whole_words}}
    for objective in ("next_sentence", "sentence_order", "none")
    for whole_words in (False, True)
]


def recipe(**changes: object) -> PretrainRecipe:
    phases = [
        {"sequence_length": 32, "batch_size": 16, "num_steps": 6, "learning_rate": 1e-3},
        {"sequence_length": 48, "batch_size": 8, "num_steps": 4, "learning_rate": 1e-3},
    ]
    return PretrainRecipe.parse({"phases": phases, "warmup_steps": 1, **changes}, "test")


def loader(store: TokenStore, rank: int = 0, num_ranks: int = 1, seed: int = 1, **changes: object) -> PretrainLoader:
    given = recipe(**changes)
    objective = OBJECTIVES[given.sentence_objective]
    return PretrainLoader(given, store, VOCABULARY, seed, 4, objective, rank, num_ranks)


def joined(batches: list[PretrainBatch]) -> list[torch.Tensor]:
    return [torch.cat(parts, dim=1 if number == 6 else 0) for number, parts in enumerate(zip(*batches))]


def test_layout(store: TokenStore) -> None:
    batch = loader(store, masking={"rate": 0.15, "mask": 0.0, "random": 0.0}).at(0).batches[0]
    assert batch.input_ids.shape == (16, 32) and batch.positions.shape == (16, 1 + 5)
    for ids, segments, length, positions, labels in zip(*batch[:5]):
        assert ids[0] == SPECIALS.cls and ids[length - 1] == SPECIALS.sep
        assert (ids[:length] == SPECIALS.sep).sum() == 2 and not ids[length:].any()
        border = (ids == SPECIALS.sep).nonzero()[0, 0]
        assert segments[: border + 1].sum() == 0 and segments[border + 1 : length].all() and not segments[length:].any()
        used = labels != -100
        assert used.sum() == max(1, round(0.15 * int(length)))
        assert torch.equal(ids[positions[1:][used]], labels[used])
        assert positions[0] == 0 and not positions[1:][~used].any()


def test_masked_tokens_are_replaced(store: TokenStore) -> None:
    batch = loader(store, masking={"rate": 0.15, "mask": 1.0, "random": 0.0}).at(0).batches[0]
    used = batch.labels != -100
    assert (batch.input_ids.gather(1, batch.positions[:, 1:])[used] == SPECIALS.mask).all()


@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_those_of_the_batch(store: TokenStore, kind: dict[str, object]) -> None:
    one = loader(store, **kind)
    for step in range(10):
        data = one.at(step)
        batch = data.batches[0]
        assert data.counts.num_predictions == int((batch.labels != -100).sum())
        assert data.counts.num_tokens == int(batch.lengths.sum())
        assert data.counts.num_sequences == len(batch.input_ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_ranks", "accumulate"), [(2, 1), (1, 4), (2, 2)])
def test_ranks_and_parts_split_the_same_step(
    store: TokenStore, num_ranks: int, accumulate: int, kind: dict[str, object]
) -> None:
    whole = loader(store, **kind)
    shares = [loader(store, rank, num_ranks, accumulate=accumulate, **kind) for rank in range(num_ranks)]
    for step in (0, 5, 6, 9):
        expected = whole.at(step)
        found = [share.at(step) for share in shares]
        assert {data.counts for data in found} == {expected.counts}
        parts = joined([part for data in found for part in data.batches])
        for one, other in zip(parts, expected.batches[0]):
            assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_a_function_of_its_number(store: TokenStore, kind: dict[str, object]) -> None:
    forward, backward = loader(store, **kind), loader(store, **kind)
    first = [forward.at(step).batches[0] for step in range(10)]
    for step in (9, 2, 7, 0):
        for one, other in zip(backward.at(step).batches[0], first[step]):
            assert torch.equal(one, other)
    assert not torch.equal(first[0].input_ids, first[1].input_ids)
    assert not torch.equal(loader(store, seed=2, **kind).at(0).batches[0].input_ids, first[0].input_ids)
    assert first[6].input_ids.shape == (8, 48)


def test_swapped_pairs_are_laid_out_as_pairs(store: TokenStore) -> None:
    masking = {"rate": 0.15, "mask": 0.0, "random": 0.0}
    batch = loader(store, sentence_objective="sentence_order", masking=masking).at(0).batches[0]
    assert set(batch.pair_label.tolist()) == {0, 1}
    assert ((batch.input_ids == SPECIALS.sep).sum(1) == 2).all() and batch.token_type_ids.any(1).all()
    assert batch.segment_starts.shape == (16, 0)


def test_predictions_are_capped(store: TokenStore) -> None:
    batch = loader(store, masking={"max_predictions": 2}).at(0).batches[0]
    assert batch.labels.shape == (16, 2)


def test_too_few_documents_are_refused(tmp_path: Path) -> None:
    writer = TokenStoreWriter(tmp_path, 100, tokenizer_digest="x")
    writer.add_document([[7, 8, 9]])
    writer.close()
    with pytest.raises(UserError, match="train: 1 documents, expected at least 2"):
        loader(TokenStore.open(tmp_path))
