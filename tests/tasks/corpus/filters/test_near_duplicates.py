"""Near duplicates: planted ones are found, others stay, and the order of documents decides which one goes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tasks.corpus.filters.near_duplicates import (
    NearDuplicates,
    NearDuplicateSettings,
    exact_similarity,
    signature_of,
    similarity,
)
from tasks.corpus.sources.hashed_words import hash_words

SETTINGS = NearDuplicateSettings()
VOCABULARY = [f"word{number}" for number in range(3000)]


def text(rng: random.Random, num_words: int = 300) -> list[str]:
    return rng.choices(VOCABULARY, k=num_words)


def words_of(words: list[str]) -> np.ndarray:
    return hash_words([" ".join(words)]).words


def edited(rng: random.Random, words: list[str], share: float) -> list[str]:
    """The same, another text in place of a share at its end."""
    kept = round(len(words) * (1 - share))
    return words[:kept] + text(rng, len(words) - kept)


def signatures(documents: list[np.ndarray]) -> np.ndarray:
    return np.stack([signature_of(words, SETTINGS) for words in documents])


@pytest.fixture(scope="module")
def planted() -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """2,000 documents, an edited copy of each, and the exact similarity of each pair."""
    rng = random.Random(3)
    originals = [text(rng) for _ in range(2000)]
    shares = [rng.uniform(0, 0.6) for _ in originals]
    first = [words_of(words) for words in originals]
    second = [words_of(edited(rng, words, share)) for words, share in zip(originals, shares)]
    return first, second, np.array([exact_similarity(one, other) for one, other in zip(first, second)])


def test_planted_pairs_by_similarity(planted: tuple[list[np.ndarray], list[np.ndarray], np.ndarray]) -> None:
    first, second, jaccard = planted
    index = NearDuplicates(SETTINGS, 4000)
    assert (index.add(signatures(first)).earlier < 0).all()
    matches = index.add(signatures(second))
    found = matches.earlier >= 0
    assert (jaccard >= 0.8).sum() > 300 and (jaccard < 0.6).sum() > 500
    assert found[jaccard >= 0.8].mean() >= 0.97
    assert found[jaccard < 0.6].mean() <= 0.01
    assert (matches.earlier[found] == np.flatnonzero(found)).all()
    assert np.abs(matches.similarity[found] - jaccard[found]).max() < 0.16
    assert len(index) == 4000 - found.sum()


def test_the_estimate_has_no_bias(planted: tuple[list[np.ndarray], list[np.ndarray], np.ndarray]) -> None:
    first, second, jaccard = planted
    errors = [similarity(*signatures([one, other])) for one, other in zip(first, second)] - jaccard
    assert abs(errors.mean()) < 0.004
    assert errors.std() < 0.045


def test_the_first_stays_however_the_documents_arrive() -> None:
    rng = random.Random(4)
    original = text(rng)
    documents = signatures([words_of(words) for words in (text(rng), original, original, text(rng), original)])
    whole = NearDuplicates(SETTINGS, 5).add(documents)
    assert whole.earlier.tolist() == [-1, -1, 1, -1, 1]
    piecewise = NearDuplicates(SETTINGS, 5)
    assert [int(piecewise.add(documents[at : at + 1]).earlier[0]) for at in range(5)] == whole.earlier.tolist()


def test_a_document_that_went_catches_none() -> None:
    """A chain of edits: what is like a dropped document, but not like the one that stayed, stays too."""
    rng = random.Random(5)
    first = text(rng)
    second = edited(rng, first, 0.08)
    third = text(rng, 60) + second[60:]
    documents = [words_of(words) for words in (first, second, third)]
    assert exact_similarity(documents[0], documents[2]) < 0.6
    assert NearDuplicates(SETTINGS, 3).add(signatures(documents)).earlier.tolist() == [-1, 0, -1]


def test_case_punctuation_and_sentences_do_not_count() -> None:
    one = hash_words(["He said: “Don't go there!”", "She went (at once)."])
    other = hash_words(["he said don’t GO there she", "went at once"])
    assert (one.words == other.words).all()
    assert one.starts.tolist() == [0, 5, 9] and other.starts.tolist() == [0, 6, 9]


def test_scripts_without_blanks_give_a_word_for_each_character() -> None:
    assert len(hash_words(["我们都是学生。"]).words) == 6
    assert len(hash_words(["नमस्ते दुनिया"]).words) == 2


def test_short_and_empty_documents() -> None:
    assert len(signature_of(words_of(["two", "words"]), SETTINGS)) == 128
    assert (signature_of(hash_words([]).words, SETTINGS) == signature_of(hash_words(["—"]).words, SETTINGS)).all()


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.9, 0.99])
def test_bands_find_pairs_at_the_threshold(threshold: float) -> None:
    settings = NearDuplicateSettings(threshold=threshold)
    bands, rows = settings.bands
    assert bands * rows <= settings.num_hashes
    assert 1 - (1 - threshold**rows) ** bands >= 0.99
    assert settings.decision < threshold
