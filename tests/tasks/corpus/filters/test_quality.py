"""Each gate stops what it is for, by its reason, and lets ordinary text pass."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.corpus.filters import quality
from tasks.corpus.filters.quality import (
    QualitySettings,
    SentenceCounts,
    check,
    is_other_language,
    repeated_shares,
    script_share,
)
from tasks.corpus.sources.file_chunks import Dropped
from tasks.corpus.sources.hashed_words import hash_words

ENGLISH = [
    "The river rises in the hills and runs to the sea.",
    "Its valley was settled early, and the oldest mill dates from that time.",
    "A railway followed the water until the line was closed after the war.",
]
RUSSIAN = ["Река берёт начало в горах и впадает в море.", "Её долина была заселена очень давно."]
GERMAN = ["Der Fluss entspringt in den Bergen und mündet in das Meer.", "Sein Tal wurde schon früh besiedelt."]


def reason(sentences: list[str], language: str = "en", **settings: object) -> str | None:
    try:
        check(sentences, hash_words(sentences), language, QualitySettings.model_validate(settings))
    except Dropped as dropped:
        return str(dropped)
    return None


def test_ordinary_text_passes() -> None:
    assert reason(ENGLISH, check_language=True) is None
    assert reason(RUSSIAN, "ru", check_language=True) is None


def test_script() -> None:
    assert reason(RUSSIAN) == quality.WRONG_SCRIPT
    assert reason(RUSSIAN, min_script_share=None) is None
    assert reason(RUSSIAN, "a language of no table") is None
    assert reason(ENGLISH, "ru") == quality.WRONG_SCRIPT


@pytest.mark.parametrize(
    ("text", "language", "share"),
    [
        ("abcd где", "en", 4 / 7), ("漢字かなカナ", "ja", 1.0), ("漢字かな", "zh", 0.5), ("1234", "ru", 1.0),
        ("été", "fr", 1.0), ("한국어", "ko", 1.0), ("ქართული", "ka", 1.0), ("abc", "zh-yue", 0.0),
    ],
)  # fmt: skip
def test_script_shares(text: str, language: str, share: float) -> None:
    assert script_share(text, language) == pytest.approx(share)


def test_language() -> None:
    assert reason(GERMAN) is None
    assert reason(GERMAN, check_language=True) == quality.WRONG_LANGUAGE
    assert reason(GERMAN, "de", check_language=True) is None
    assert not is_other_language(" ".join(ENGLISH), "simple")
    assert not is_other_language(" ".join(GERMAN), "a language that it does not know")


def test_repetition_within_a_document() -> None:
    assert repeated_shares(hash_words(ENGLISH)) == (0, 0)
    assert repeated_shares(hash_words([])) == (0, 0)
    twice = ["One two three.", "four", "ONE, two three!", "five six seven eight"]
    assert repeated_shares(hash_words(twice)) == (1 / 4, 3 / 11)
    assert reason(twice) == quality.REPEATS
    assert reason(twice, max_repeated_words=0.3) is None
    assert reason(ENGLISH * 2, max_repeated_words=None) == quality.REPEATS
    assert reason(ENGLISH * 2, max_repeated_words=None, max_repeated_sentences=None) is None


def test_sentences_that_many_documents_share() -> None:
    notice, other = "This page was last edited today.", "All rights reserved."
    documents = [[f"Document {number} says something.", notice] + [other] * (number % 3 == 0) for number in range(90)]
    digests = [hash_words(document).sentence_digests for document in documents]
    parts = [SentenceCounts.of(digests[start : start + 20]) for start in range(0, 90, 20)]
    frequent = SentenceCounts.merged(parts, min_documents=30)
    assert sorted(frequent.documents.tolist()) == [30, 90]
    assert frequent.holds(digests[0]).tolist() == [False, True, True]
    assert frequent.holds(digests[1]).tolist() == [False, True]


def test_counts_do_not_depend_on_how_they_are_cut() -> None:
    rng = np.random.default_rng(1)
    documents = [rng.integers(0, 1 << 64, 40, dtype=np.uint64) >> np.uint64(57) for _ in range(50)]
    documents = [digests << np.uint64(57) for digests in documents]  # 128 digests, from 0 to the largest
    whole = SentenceCounts.of(documents)
    assert len(whole.digests) == 127  # 0 stands for a sentence without words
    merged = SentenceCounts.merged([SentenceCounts.of([one]) for one in documents])
    assert (merged.digests == whole.digests).all() and (merged.documents == whole.documents).all()
    assert len(SentenceCounts.merged([], 5).digests) == 0
    assert not SentenceCounts.merged([], 5).holds(documents[0]).any()
