"""Masked language modelling: rates, special tokens, and the plain-Python reference."""

from __future__ import annotations

import numpy as np
import pytest

from model.counter import key_of
from model.masking import mask_sample, num_predictions

VOCABULARY, MASK_ID, FIRST_WORD = 1000, 4, 5
RATES = np.array([0.15, 0.8, 0.1])


def sequence(first: int, second: int) -> np.ndarray:
    words = FIRST_WORD + np.arange(first + second) % (VOCABULARY - FIRST_WORD)
    if not second:
        return np.concatenate([[2], words, [3]]).astype(np.int64)
    return np.concatenate([[2], words[:first], [3], words[first:], [3]]).astype(np.int64)


def run(first: int, second: int, key: int, limit: int = 77) -> tuple[np.ndarray, ...]:
    ids = sequence(first, second)
    positions, labels = np.zeros(limit, np.int64), np.full(limit, -100)
    count = mask_sample(ids, first, second, np.uint64(key), RATES, limit, MASK_ID, VOCABULARY, positions, labels)
    return ids, positions[:count], labels[:count]


def test_rates_are_the_papers() -> None:
    chosen = masked = random = kept = 0
    per_position = np.zeros(128)
    for sample in range(20_000):
        before, (ids, positions, labels) = sequence(60, 65), run(60, 65, key_of(2, sample))
        assert len(positions) == 19 == round(0.15 * 128)
        assert np.array_equal(before[positions], labels)
        per_position[positions] += 1
        chosen += len(positions)
        masked += int((ids[positions] == MASK_ID).sum())
        kept += int((ids[positions] == labels).sum())
        random += int(((ids[positions] != labels) & (ids[positions] != MASK_ID)).sum())
        untouched = np.setdiff1d(np.arange(128), positions)
        assert np.array_equal(ids[untouched], before[untouched])
    deviation = 4 * (0.25 / chosen) ** 0.5
    assert abs(masked / chosen - 0.8) < deviation
    assert abs(random / chosen - 0.1) < deviation
    assert abs(kept / chosen - 0.1) < deviation
    assert per_position[[0, 61, 127]].sum() == 0  # [CLS] and [SEP]
    words = np.delete(per_position, [0, 61, 127]) / 20_000
    assert abs(words - 19 / 125).max() < 5 * (0.152 * 0.848 / 20_000) ** 0.5


@pytest.mark.parametrize(
    ("length", "limit", "expected"), [(128, 77, 19), (128, 10, 10), (5, 77, 1), (3, 77, 1), (512, 77, 77)]
)
def test_number_of_predictions(length: int, limit: int, expected: int) -> None:
    assert num_predictions(length, 0.15, limit) == expected


def test_positions_are_different_and_rise() -> None:
    for sample in range(200):
        _, positions, _ = run(3, 4, key_of(3, sample), limit=5)
        assert (np.diff(positions) > 0).all()


def test_masks_differ_between_samples_and_seeds() -> None:
    chosen = {tuple(run(60, 65, key_of(seed, sample))[1]) for seed in range(2) for sample in range(50)}
    assert len(chosen) == 100
