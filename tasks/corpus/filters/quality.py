"""Filter documents by script, language and repetition, and find sentences that many documents share."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from tasks.corpus.sources.file_chunks import Dropped
from tasks.corpus.sources.hashed_words import LAST_POINT, HashedWords, code_points
from tasks.params.corpus import QualitySettings
from tasks.project.yaml_files import read_yaml

WRONG_SCRIPT, WRONG_LANGUAGE, REPEATS, BOILERPLATE = (
    "wrong script", "wrong language", "repeats itself", "boilerplate sentence"
)  # fmt: skip


def check(sentences: Sequence[str], words: HashedWords, language: str, settings: QualitySettings) -> None:
    """Apply the quality filters to a document in the given language.

    Raises:
        Dropped: the document fails a filter; the message is the reason.
    """
    limits = settings.max_repeated_sentences, settings.max_repeated_words
    if any(limit is not None and share > limit for share, limit in zip(repeated_shares(words), limits)):
        raise Dropped(REPEATS)
    if settings.min_script_share is not None or settings.check_language:
        text = " ".join(sentences)
        if settings.min_script_share is not None and script_share(text, language) < settings.min_script_share:
            raise Dropped(WRONG_SCRIPT)
        if settings.check_language and is_other_language(text, language):
            raise Dropped(WRONG_LANGUAGE)


_CHARACTERS_FOR_LANGUAGE = 2_000
_SCRIPTS_OF_LANGUAGES = read_yaml(Path(__file__).parents[1] / "assets" / "scripts.yaml")


@functools.cache
def scripts_of(language: str) -> frozenset[str]:
    """Return the scripts of a language; empty if the language is not in the table or uses several scripts."""
    code = language.partition("-")[0].lower()
    return frozenset(script for script, languages in _SCRIPTS_OF_LANGUAGES.items() if code in languages.split())


def script_share(text: str, language: str) -> float:
    """Return the share of letters that are in the language's scripts; 1 without letters or a known script."""
    scripts = scripts_of(language)
    if not scripts or (text.isascii() and "LATIN" in scripts):
        return 1.0
    names, numbers = _scripts()
    points = code_points(text)
    counts = np.bincount(numbers[np.minimum(points, LAST_POINT)], minlength=len(names))
    num_letters = int(counts[1:].sum())
    own = sum(int(counts[number]) for number, name in enumerate(names) if name in scripts)
    return own / num_letters if num_letters else 1.0


def is_other_language(text: str, language: str) -> bool:
    """Check whether py3langid detects a different language; False if it does not support `language`."""
    classify, known = _identifier()
    code = {"simple": "en", "nb": "no", "nn": "no"}.get(language, language.partition("-")[0].lower())
    if code not in known:
        return False
    found = classify(text[:_CHARACTERS_FOR_LANGUAGE])[0]
    return {"nb": "no", "nn": "no"}.get(found, found) != code


@functools.cache
def _scripts() -> tuple[list[str], np.ndarray]:
    """Return script names, the first for non-letters, and the (LAST_POINT + 1,) uint8 script of each code point."""
    names = {"": 0}
    numbers = np.zeros(LAST_POINT + 1, dtype=np.uint8)
    for point in range(LAST_POINT):
        if chr(point).isalpha():
            name = unicodedata.name(chr(point), "?").split()[0]
            numbers[point] = names.setdefault(name, min(len(names), 255))
    return list(names), numbers


@functools.cache
def _identifier():  # type: ignore[no-untyped-def]
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    return identifier.classify, frozenset(identifier.labels)


def repeated_shares(document: HashedWords) -> tuple[float, float]:
    """Return the share of sentences that repeat an earlier sentence of the document, and the share of words in them."""
    digests = document.sentence_digests
    num_words = np.diff(document.starts)
    has_words = num_words > 0
    digests, num_words = digests[has_words], num_words[has_words]
    if not len(digests):
        return 0.0, 0.0
    again = np.ones(len(digests), dtype=bool)
    again[np.unique(digests, return_index=True)[1]] = False
    return float(again.mean()), float(num_words[again].sum() / num_words.sum())


@dataclass(frozen=True)
class SentenceCounts:
    """Number of documents that contain each sentence; needs 12 bytes per sentence."""

    digests: np.ndarray
    """(num_sentences,) uint64, ascending; see HashedWords.sentence_digests."""
    documents: np.ndarray
    """(num_sentences,) uint32."""

    @classmethod
    def of(cls, documents: Iterable[np.ndarray]) -> Self:
        """Count the sentences of documents, each given as its (num_sentences,) digests."""
        once = [np.unique(digests) for digests in documents]
        digests, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *once]), return_counts=True)
        has_words = digests != 0
        return cls(digests[has_words], counts[has_words].astype(np.uint32))

    @classmethod
    def merged(cls, counts: Sequence[Self], min_documents: int = 1) -> Self:
        """Add up counts, and keep the sentences that occur in `min_documents` or more documents."""
        digests = np.concatenate([np.empty(0, np.uint64), *(one.digests for one in counts)])
        numbers = np.concatenate([np.empty(0, np.uint32), *(one.documents for one in counts)])
        order = np.argsort(digests, kind="stable")
        digests, numbers = digests[order], numbers[order]
        first = np.flatnonzero(np.append(True, digests[1:] != digests[:-1])[: len(digests)])
        totals = np.add.reduceat(numbers, first, dtype=np.uint32)
        is_frequent = totals >= min_documents
        return cls(digests[first][is_frequent], totals[is_frequent])

    def holds(self, digests: np.ndarray) -> np.ndarray:
        """Return a (num_sentences,) bool mask of the sentences that were counted."""
        if not len(self.digests):
            return np.zeros(len(digests), dtype=bool)
        places = np.minimum(np.searchsorted(self.digests, digests), len(self.digests) - 1)
        return self.digests[places] == digests
