"""Order is a function of (seed, epoch); batches are random or of similar length, and padding changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.common.rng import Domain, Key, permutation
from model.config.finetuning import Batches, FinetuneRecipe
from model.finetune.training import FinetuneLoader
from model.heads.batches import chosen, collate, evaluation_batches, scatter_tokens, training_batches
from model.heads.features import Features, Ragged
from model.heads.task_model import HEADS
from model.ops.fused_cpu import IGNORED

LENGTHS = np.random.default_rng(0).integers(5, 120, 1000)


def padded_tokens(batches: list[np.ndarray]) -> int:
    return sum(len(rows) * int(-(-LENGTHS[rows].max() // 8) * 8) for rows in batches)


def test_a_permutation_is_one_and_its_keys_matter() -> None:
    orders = [
        permutation(500, Key(seed).for_(Domain.ROW_ORDER, epoch)).tolist() for seed in range(3) for epoch in range(3)
    ]
    assert all(sorted(order) == list(range(500)) for order in orders)
    assert len({tuple(order) for order in orders}) == 9
    assert permutation(500, Key(1).for_(Domain.ROW_ORDER, 2)).tolist() == orders[5]
    firsts = [int(permutation(10, Key(seed).for_(Domain.ROW_SUBSET))[0]) for seed in range(2000)]
    assert np.bincount(firsts, minlength=10).min() > 150, "each row is first about a tenth of the time"


@pytest.mark.parametrize("composition", ["length", "shuffled"])
def test_an_epoch_shows_every_row_once_in_full_batches_but_one(composition: Batches) -> None:
    batches = training_batches(LENGTHS, 32, 3, 1, composition)
    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    assert sorted(len(rows) for rows in batches) == [8] + [32] * 31
    again = training_batches(LENGTHS, 32, 3, 1, composition)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again))
    other = training_batches(LENGTHS, 32, 3, 2, composition)
    assert not all(np.array_equal(a, b) for a, b in zip(batches, other))


def test_bucketing_wastes_little_and_batches_come_in_no_order_of_length() -> None:
    batches = training_batches(LENGTHS, 32, 0, 0, "length")
    shuffled = training_batches(LENGTHS, 32, 0, 0, "shuffled")
    assert padded_tokens(batches) < 1.15 * LENGTHS.sum() < 0.7 * padded_tokens(shuffled)
    means = [float(LENGTHS[rows].mean()) for rows in batches]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.5


def test_labels_of_shuffled_batches_are_those_of_a_random_sample() -> None:
    """Next to the binomial variance, the variance of a label's share; 24 epochs of 31 batches have 5 % of noise."""
    labels = (np.random.default_rng(1).random(1000) < np.where(LENGTHS > 60, 0.8, 0.4)).astype(int)  # long is positive
    ratios = {}
    for composition in ("length", "shuffled"):
        batches = [rows for epoch in range(24) for rows in training_batches(LENGTHS, 32, 0, epoch, composition)]
        shares = [labels[rows].mean() for rows in batches if len(rows) == 32]
        ratios[composition] = np.var(shares) / (labels.mean() * (1 - labels.mean()) / 32)
    assert 0.8 < ratios["shuffled"] < 1.1  # without replacement slightly less than 1
    assert ratios["length"] > 2.5


@pytest.mark.parametrize(("head", "expected"), [("classes", "shuffled"), ("choice", "shuffled"), ("tags", "length")])
def test_the_head_decides_the_composition_unless_the_recipe_does(head: str, expected: str) -> None:
    features = Features(Ragged.of([[2] * length for length in LENGTHS]), LENGTHS, np.zeros(1000, dtype=np.int64))
    for given in (None, "length", "shuffled"):
        recipe = FinetuneRecipe(batch_size=32, batches=given)
        loader = FinetuneLoader(features, recipe, HEADS[head], 3, 0)
        rows = loader.at(0).batches[0].batch.samples.tolist()
        assert rows == training_batches(LENGTHS, 32, 3, 0, given or expected)[0].tolist()


def test_neighbors_in_a_batch_change_from_epoch_to_epoch() -> None:
    same_length = np.full(320, 10)
    first = {frozenset(rows.tolist()) for rows in training_batches(same_length, 32, 0, 0, "length")}
    second = {frozenset(rows.tolist()) for rows in training_batches(same_length, 32, 0, 1, "length")}
    assert not first & second


def test_evaluation_keeps_to_its_tokens_and_shows_every_row_once() -> None:
    batches = list(evaluation_batches(LENGTHS, 512))
    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    assert all(len(rows) == 1 or len(rows) * LENGTHS[rows].max() <= 512 for rows in batches)
    assert [len(rows) for rows in evaluation_batches(np.array([900, 5]), 512)] == [1, 1]


def test_the_rows_kept_of_too_many_are_always_the_same() -> None:
    rows = chosen(range(1000), 100)
    assert rows == sorted(set(rows)) and len(rows) == 100
    assert rows == chosen(range(1000), 100)
    assert chosen(range(5), None) == chosen(range(5), 9) == [0, 1, 2, 3, 4]
    assert 30 < sum(row < 500 for row in rows) < 70


def tagged() -> Features:
    sequences = Ragged.of([[2, 7, 3], [2, 7, 8, 9, 3, 9, 9, 9, 3], [2, 3]])
    targets = np.array([IGNORED, 1, IGNORED] + [5] * 9 + [6, 6])
    return Features(sequences, np.array([3, 5, 2]), targets, per_token=True)


def test_a_batch_is_padded_to_eights_with_mask_segments_and_ignored_targets() -> None:
    batch = collate(tagged(), np.array([0, 1]), pad_id=4)
    assert batch.input_ids.shape == (2, 16)
    assert batch.input_ids[0].tolist() == [2, 7, 3] + [4] * 13
    assert batch.token_type_ids[1].tolist() == [0] * 5 + [1] * 4 + [0] * 7
    assert batch.attention_mask is not None
    assert batch.attention_mask.sum(1).tolist() == [3, 9]
    assert batch.targets[0].tolist() == [IGNORED, 1] + [IGNORED] * 14
    assert batch.samples.tolist() == [0, 1]


def test_no_mask_where_nothing_is_padding() -> None:
    sequences = Ragged.of([[2] * 8, [3] * 8])
    batch = collate(Features(sequences, np.array([8, 8]), np.array([0, 1])), np.array([1, 0]), 0)
    assert batch.attention_mask is None
    assert batch.targets.tolist() == [1, 0]


def test_a_choice_brings_all_its_sequences() -> None:
    sequences = Ragged.of([[2, row, 3] for row in range(8)])
    features = Features(sequences, np.full(8, 3), np.array([0, 3]), group_size=4)
    batch = collate(features, np.array([1]), 0)
    assert batch.input_ids[:, 1].tolist() == batch.samples.tolist() == [4, 5, 6, 7]
    assert batch.targets.tolist() == [3]


def test_token_outputs_find_their_places_again() -> None:
    features = tagged()
    outputs = np.zeros((14, 1), dtype=np.float32)
    for rows in (np.array([2, 0]), np.array([1])):
        batch = collate(features, rows, 0)
        scatter_tokens(features, rows, batch.input_ids[:, :, None].to(torch.float32).numpy(), outputs)
    assert outputs[:, 0].tolist() == features.sequences.values.tolist()
