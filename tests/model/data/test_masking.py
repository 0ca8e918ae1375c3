"""Masked language modeling: rates, special tokens, and the plain-Python reference."""

from __future__ import annotations

import numpy as np
import pytest

from model.common.rng import Domain, Key
from model.data.masking import MaskRules, count_in_words, mask_sample, num_predictions

VOCABULARY, MASK_ID, FIRST_WORD = 1000, 4, 5
RATES = 0.15, 0.8, 0.1
EACH_TOKEN = np.zeros(0, dtype=bool)


def sequence(first: int, second: int) -> np.ndarray:
    words = FIRST_WORD + np.arange(first + second) % (VOCABULARY - FIRST_WORD)
    if not second:
        return np.concatenate([[2], words, [3]]).astype(np.int64)
    return np.concatenate([[2], words[:first], [3], words[first:], [3]]).astype(np.int64)


def run(first: int, second: int, key: int, limit: int = 77) -> tuple[np.ndarray, ...]:
    return mask(sequence(first, second), np.delete(np.arange(1, first + second + 2), first), key, limit)


def mask(
    ids: np.ndarray,
    places: np.ndarray,
    key: int,
    limit: int = 77,
    rates: tuple[float, float, float] = RATES,
    is_continuation: np.ndarray = EACH_TOKEN,
) -> tuple[np.ndarray, ...]:
    positions, labels = np.zeros(limit, np.int64), np.full(limit, -100)
    rules = MaskRules(*rates, limit, MASK_ID, VOCABULARY, is_continuation)
    count = mask_sample(ids, places.copy(), len(ids), np.uint64(key), rules, positions, labels)
    return ids, positions[:count], labels[:count]


@pytest.mark.parametrize(
    ("length", "limit", "expected"), [(128, 77, 19), (128, 10, 10), (5, 77, 1), (3, 77, 1), (512, 77, 77)]
)
def test_number_of_predictions(length: int, limit: int, expected: int) -> None:
    assert num_predictions(length, 0.15, limit) == expected


def test_positions_are_different_and_rise() -> None:
    for sample in range(200):
        _, positions, _ = run(3, 4, Key(3).for_(Domain.DROPOUT, sample), limit=5)
        assert (np.diff(positions) > 0).all()


def test_masks_differ_between_samples_and_seeds() -> None:
    chosen = {
        tuple(run(60, 65, Key(seed).for_(Domain.DROPOUT, sample))[1]) for seed in range(2) for sample in range(50)
    }
    assert len(chosen) == 100


# Words of one to five pieces: ids from 500 on go on with the word before them.
CONTINUES = np.arange(VOCABULARY) >= 500
CHOOSE_ONLY = 0.15, 0.0, 0.0


def text_of_words(generator: np.random.Generator, num_tokens: int, longest: int = 5) -> np.ndarray:
    ids: list[int] = []
    while len(ids) < num_tokens:
        rest = int(generator.integers(0, longest))
        ids += [int(generator.integers(5, 500)), *generator.integers(500, VOCABULARY, rest).tolist()]
    return np.array([2, *ids[:num_tokens], 3])


def words_of(ids: np.ndarray, places: np.ndarray) -> list[set[int]]:
    """The positions of each word, as the released code groups them, but for words that reach across special tokens."""
    words: list[set[int]] = []
    for position in places.tolist():
        if words and position - 1 in words[-1] and CONTINUES[ids[position]]:
            words[-1].add(position)
        else:
            words.append({position})
    return words


def test_words_are_masked_whole_and_never_too_many() -> None:
    generator = np.random.default_rng(0)
    fewer = 0
    for sample in range(3000):
        longest = 5 if sample % 2 else 1
        ids = text_of_words(generator, int(generator.integers(8, 126)), longest)
        places = np.arange(1, len(ids) - 1)
        key, wanted = Key(1).for_(Domain.DROPOUT, sample), num_predictions(len(ids), 0.15, 77)
        expected_words = words_of(ids, places)
        before = ids.copy()
        _, positions, labels = mask(ids, places, key, rates=CHOOSE_ONLY, is_continuation=CONTINUES)
        chosen = set(positions.tolist())
        assert (np.diff(positions) > 0).all() and np.array_equal(before[positions], labels)
        rules = MaskRules(*CHOOSE_ONLY, 77, MASK_ID, VOCABULARY, CONTINUES)
        assert len(positions) == count_in_words(before, places, len(ids), np.uint64(key), rules)
        assert 1 <= len(positions) <= wanted
        left = wanted - len(positions)
        assert all(len(word) > left for word in expected_words if not word & chosen), "a word that fits was left out"
        if any(len(word) <= wanted for word in expected_words):
            assert all(word <= chosen for word in expected_words if word & chosen)
        fewer += left > 0
        if longest == 1:
            assert left == 0
    assert fewer > 0


def test_a_word_does_not_reach_across_special_tokens() -> None:
    ids = np.array([2, 7, 600, 3, 601, 8, 3])  # a span cut inside a word begins with its rest
    places = np.array([1, 2, 4, 5])
    found = {
        tuple(mask(ids.copy(), places, Key(3).for_(Domain.DROPOUT, n), 1, CHOOSE_ONLY, CONTINUES)[1].tolist())
        for n in range(200)
    }
    assert found == {(4,), (5,)}  # one prediction: the word of two pieces never fits


def test_where_no_word_fits_a_part_of_one_is_masked() -> None:
    ids = np.array([2, 7, 600, 601, 8, 602, 3])
    found = {
        tuple(mask(ids.copy(), np.arange(1, 6), Key(4).for_(Domain.DROPOUT, n), 1, CHOOSE_ONLY, CONTINUES)[1])
        for n in range(50)
    }
    assert found == {(1,), (4,)}
