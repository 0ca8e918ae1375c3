"""Drift between an old and a new corpus: words, lengths, and coverage by the old vocabulary."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.common.files import read_json, write_bytes, write_json

MOST_DOCUMENTS = 200_000  # sampled evenly from the corpus
MOST_WORDS = 100_000  # rarer words are ignored
_LEAST_NEW = 5  # minimum occurrences of reported new words, to exclude typos
_PROFILE, _TOKENIZER = "corpus.json", "tokenizer.json"


@dataclass(frozen=True)
class Profile:
    """Statistics of a corpus."""

    documents: int
    """Number of documents, including those that were not sampled."""
    words: Counter[str]
    """Counts of the MOST_WORDS most frequent words, lower-cased, in the sampled documents."""
    num_words: int
    """Number of words in the sampled documents."""
    sentence_lengths: Counter[int]
    """Histogram of words per sentence, by number of bits: 3 means 4 to 7 words."""
    document_lengths: Counter[int]
    """Histogram of words per document, by number of bits."""
    unknown: float = 0.0
    """Share of words that contain [UNK]."""
    pieces_per_word: float = 0.0


@dataclass(frozen=True)
class Drift:
    """Comparison of a new corpus with the old one. Jensen-Shannon divergences in bits: 0 if equal, 1 if disjoint."""

    documents: tuple[int, int]
    words: float
    sentence_lengths: float
    document_lengths: float
    unknown: tuple[float, float]
    """Old and new corpus, with the old vocabulary."""
    pieces_per_word: tuple[float, float]
    new_words: float
    """Share of the new corpus's words that do not occur in the old one."""
    examples: list[tuple[str, int]] = field(default_factory=list)
    """The most frequent new words."""


def profile(corpus_dir: Path, tokenizer_path: Path | None, most_documents: int = MOST_DOCUMENTS) -> Profile:
    """Sample a corpus of shards with a column `sentences`, and tokenize its words with a tokenizer.json."""
    from pyarrow import parquet

    words: Counter[str] = Counter()
    sentence_lengths: Counter[int] = Counter()
    document_lengths: Counter[int] = Counter()
    paths = sorted(corpus_dir.glob("*.parquet"))
    total = sum(parquet.read_metadata(path).num_rows for path in paths)
    every = max(1, math.ceil(total / most_documents))
    batches = (batch for path in paths for batch in parquet.ParquetFile(path).iter_batches(1000, columns=["sentences"]))
    documents = itertools.chain.from_iterable(batch.column(0) for batch in batches)
    for document in itertools.islice(documents, None, None, every):
        length = 0
        for sentence in document.as_py():
            found = sentence.lower().split()
            words.update(found)
            sentence_lengths[len(found).bit_length()] += 1
            length += len(found)
        document_lengths[length.bit_length()] += 1
        if len(words) > 20 * MOST_WORDS:
            words = Counter(dict(words.most_common(10 * MOST_WORDS)))
    num_words = sum(words.values())
    words = Counter(dict(words.most_common(MOST_WORDS)))
    unknown, pieces = _pieces(words, tokenizer_path) if tokenizer_path and tokenizer_path.exists() else (0.0, 0.0)
    return Profile(total, words, num_words, sentence_lengths, document_lengths, unknown, pieces)


def keep(corpus: Profile, tokenizer_path: Path, folder: Path) -> None:
    """Save a profile with its tokenizer, to compare later corpora with it."""
    write_bytes(folder / _TOKENIZER, tokenizer_path.read_bytes())
    write_json(folder / _PROFILE, vars(corpus))


def kept(folder: Path) -> tuple[Profile, Path] | None:
    """Load the profile that `keep` saved and the path of its tokenizer; None if there is no profile."""
    if not (folder / _PROFILE).exists():
        return None
    read = read_json(folder / _PROFILE)
    for name in ("sentence_lengths", "document_lengths"):
        read[name] = Counter({int(length): count for length, count in read[name].items()})
    return Profile(**read | {"words": Counter(read["words"])}), folder / _TOKENIZER


def compare(old: Profile, new: Profile) -> Drift:
    """Compare two corpora, both profiled with the old tokenizer."""
    unseen = Counter({word: count for word, count in new.words.items() if word not in old.words})
    return Drift(
        documents=(old.documents, new.documents),
        words=divergence(old.words, new.words),
        sentence_lengths=divergence(old.sentence_lengths, new.sentence_lengths),
        document_lengths=divergence(old.document_lengths, new.document_lengths),
        unknown=(old.unknown, new.unknown),
        pieces_per_word=(old.pieces_per_word, new.pieces_per_word),
        new_words=unseen.total() / max(1, new.words.total()),
        examples=[(word, count) for word, count in unseen.most_common(10) if count >= _LEAST_NEW],
    )


def divergence(one: Mapping[Any, int], other: Mapping[Any, int]) -> float:
    """Compute the Jensen-Shannon divergence of two counts, in bits: symmetric, 0 (equal shares) to 1 (disjoint)."""
    num_one, num_other = sum(one.values()), sum(other.values())
    if not num_one or not num_other:
        return 0.0 if num_one == num_other else 1.0
    bits = 0.0
    for key in one.keys() | other.keys():
        p, q = one.get(key, 0) / num_one, other.get(key, 0) / num_other
        middle = (p + q) / 2
        bits += (p * math.log2(p / middle) if p else 0.0) / 2 + (q * math.log2(q / middle) if q else 0.0) / 2
    return min(1.0, max(0.0, bits))


def _pieces(words: Counter[str], tokenizer_path: Path) -> tuple[float, float]:
    """Compute the share of words with an unknown piece, and the mean number of pieces per word."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    unknown_id = tokenizer.token_to_id("[UNK]")
    names = list(words)
    unknown = pieces = 0
    for start in range(0, len(names), 10_000):
        some = names[start : start + 10_000]
        for name, encoding in zip(some, tokenizer.encode_batch(some, add_special_tokens=False), strict=True):
            pieces += words[name] * len(encoding.ids)
            unknown += words[name] * (unknown_id in encoding.ids)
    total = max(1, words.total())
    return unknown / total, pieces / total
