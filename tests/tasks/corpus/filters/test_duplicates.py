"""Equal and near duplicates: planted ones are found, others stay, and the order of documents decides which goes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tasks.corpus.filters.duplicates import (
    NearDuplicates,
    NearDuplicateSettings,
    SeenDigests,
    document_digest,
    share_of,
    signature_of,
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


def exact_similarity(first: np.ndarray, second: np.ndarray) -> float:
    """The Jaccard similarity of two documents' runs of five words."""
    one, other = (set(zip(*(words[start:].tolist() for start in range(5)))) for words in (first, second))
    return len(one & other) / len(one | other)


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
    assert (index.add(signatures(first))[0] < 0).all()
    earlier, similarity = index.add(signatures(second))
    found = earlier >= 0
    assert (jaccard >= 0.8).sum() > 300 and (jaccard < 0.6).sum() > 500
    assert found[jaccard >= 0.8].mean() >= 0.97
    assert found[jaccard < 0.6].mean() <= 0.01
    assert (earlier[found] == np.flatnonzero(found)).all()
    assert np.abs(similarity[found] - jaccard[found]).max() < 0.16
    assert not similarity[~found].any()
    assert index._kept == 4000 - found.sum()


def test_the_estimate_has_no_bias(planted: tuple[list[np.ndarray], list[np.ndarray], np.ndarray]) -> None:
    first, second, jaccard = planted
    equal = np.array([np.equal(*signatures([one, other])).mean() for one, other in zip(first, second)])
    errors = np.maximum(0, (equal - 1 / 256) / (1 - 1 / 256)) - jaccard  # of two bytes, 1 in 256 are equal by chance
    assert abs(errors.mean()) < 0.004
    assert errors.std() < 0.045


def test_the_first_stays_however_the_documents_arrive() -> None:
    rng = random.Random(4)
    original = text(rng)
    documents = signatures([words_of(words) for words in (text(rng), original, original, text(rng), original)])
    whole, _ = NearDuplicates(SETTINGS, 5).add(documents)
    assert whole.tolist() == [-1, -1, 1, -1, 1]
    piecewise = NearDuplicates(SETTINGS, 5)
    assert [int(piecewise.add(documents[at : at + 1])[0][0]) for at in range(5)] == whole.tolist()


def test_a_document_that_went_catches_none() -> None:
    """A chain of edits: what is like a dropped document, but not like the one that stayed, stays too."""
    rng = random.Random(5)
    first = text(rng)
    second = edited(rng, first, 0.08)
    third = text(rng, 60) + second[60:]
    documents = [words_of(words) for words in (first, second, third)]
    assert exact_similarity(documents[0], documents[2]) < 0.6
    assert NearDuplicates(SETTINGS, 3).add(signatures(documents))[0].tolist() == [-1, 0, -1]


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


def test_case_and_blanks_do_not_count() -> None:
    assert document_digest(["A b.", "C d."]) == document_digest(["a  B. c", "D."])
    assert document_digest(["A b."]) != document_digest(["A c."])


def test_seen_over_many_merges() -> None:
    seen = SeenDigests()
    met: set[int] = set()
    rng = random.Random(1)
    digests = [document_digest([f"document {number}"]) for number in range(2000)]
    for _ in range(200):
        batch = rng.choices(digests, k=rng.randrange(40))  # some of them twice
        fresh = [number not in met and number not in batch[:place] for place, number in enumerate(batch)]
        assert seen.add_all(np.array(batch, dtype=np.uint64)).tolist() == fresh
        met.update(batch)
    assert seen.add_all(np.array(digests, dtype=np.uint64)).tolist() == [digest not in met for digest in digests]
    assert not seen.add_all(np.array(digests, dtype=np.uint64)).any()
    assert len(seen._runs) < 12  # few arrays, merged as they grow


def test_shares_are_uniform_and_independent() -> None:
    digests = [document_digest([f"document {number}"]) for number in range(20_000)]
    heldout = [share_of(digest, "heldout") < 0.1 for digest in digests]
    weight = [share_of(digest, "weight") < 0.5 for digest in digests]
    assert 0.09 < sum(heldout) / len(digests) < 0.11
    both = sum(a and b for a, b in zip(heldout, weight))
    assert 0.045 < both / len(digests) < 0.055
