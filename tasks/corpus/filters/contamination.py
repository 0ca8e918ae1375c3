"""Contamination: texts of the benchmarks' dev and test sets that occur in the corpus.

As Brown et al. 2020 (arXiv:2005.14165, appendix C): a row of a benchmark is in a document if 13 words of it in a row
are, or all of it where it is shorter; case, punctuation and where sentences end do not count. Very short texts, which
are said everywhere, count only where they are a whole sentence of the document, and apart.

A table of the benchmarks' runs of words is made once; each document is then compared by a rolling hash.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numba
import numpy as np

from model.common.files import digest_of
from model.common.rng import fold, mix
from tasks.corpus.filters.benchmark_texts import PASSAGE, BenchmarkItem
from tasks.corpus.sources.hashed_words import HashedWords, hash_words, prefixes
from tasks.params.corpus import ContaminationSettings

_FACTOR = np.uint64(0xD1342543DE82EF95)


@dataclass(frozen=True)
class Contamination:
    """Benchmark texts found in one document, as indices of the table's items."""

    items: tuple[int, ...] = ()
    passages: tuple[int, ...] = ()
    short: tuple[int, ...] = ()
    """Items of which only a very short text is there, as a whole sentence; never a reason to drop."""

    def is_reason_to_drop(self, settings: ContaminationSettings) -> bool:
        """Check whether the settings drop the document."""
        return settings.action == "drop" and bool(self.items or (settings.drop_passages and self.passages))


@dataclass(frozen=True)
class PartCounts:
    """Rows of one part of a benchmark that were found in the corpus."""

    items: int
    """Rows in the file."""
    items_found: int
    short_found: int
    """Further rows of which only a very short text was found."""
    passages: int
    passages_found: int
    documents: int
    """Documents that hold at least one of its rows (short ones left aside) or passages."""
    examples: tuple[str, ...]
    """Names of some rows that were found."""


class ContaminationTable:
    """The runs of words of all items, sorted for search, and the items' names."""

    def __init__(self, names: Sequence[str], digest: str, arrays: Mapping[str, np.ndarray]) -> None:
        """As `of` and `load` call it."""
        self.names = list(names)
        """benchmark/part/id of each item, with /passage after a passage's."""
        self.digest = digest
        """Hash of everything except the document that the matches depend on."""
        self._arrays = dict(arrays)
        self._keys, self._owners, self._starts = arrays["keys"], arrays["owners"], arrays["starts"]
        self._is_short, self._lengths, self._filter = arrays["is_short"], arrays["lengths"], arrays["filter"]
        self._is_passage = [name.endswith(f"/{PASSAGE}") for name in self.names]

    @classmethod
    def of(cls, items: Sequence[BenchmarkItem], settings: ContaminationSettings) -> Self:
        """The table of these items.

        Args:
            items: what is looked for.
            settings: length of the runs of words, and other limits.
        """
        runs: dict[int, list[np.ndarray]] = {}  # by the words of a run; 0 stands for whole sentences
        owners: dict[int, list[np.ndarray]] = {}
        for number, item in enumerate(items):
            for text in item.texts:
                length, keys = _runs_of(text, settings)
                runs.setdefault(length, []).append(keys)
                owners.setdefault(length, []).append(np.full(len(keys), number, dtype=np.int32))
        lengths = sorted(length for length in runs if any(map(len, runs[length])))
        keys = np.concatenate([np.empty(0, np.uint64), *(one for length in lengths for one in runs[length])])
        owner = np.concatenate([np.empty(0, np.int32), *(one for length in lengths for one in owners[length])])
        is_short = np.arange(len(keys)) < sum(map(len, runs.get(0, [])))
        order = np.lexsort((owner, keys))
        unique, first = np.unique(keys[order], return_index=True)
        bits = np.zeros(1 << max(16, (16 * len(unique)).bit_length() - 3), dtype=np.uint8)
        _fill_filter(unique, bits)
        arrays = {
            "keys": unique, "owners": owner[order], "starts": np.append(first, len(keys)),
            "is_short": is_short[order][first], "lengths": np.array(lengths, dtype=np.int64), "filter": bits,
        }  # fmt: skip
        rules = settings.model_dump(exclude={"action", "drop_passages", "benchmarks"})
        digest = digest_of([[item.name, *item.texts] for item in items] + [rules])
        return cls([item.name for item in items], digest, arrays)

    def save(self, path: Path) -> None:
        """Write the table for workers to load."""
        text = json.dumps([self.digest, self.names]).encode()
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, text=np.frombuffer(text, dtype=np.uint8), **self._arrays)

    @classmethod
    def load(cls, path: Path) -> Self:
        """The table that `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        digest, names = json.loads(arrays.pop("text").tobytes())
        return cls(names, digest, arrays)

    def find(self, document: HashedWords) -> Contamination:
        """The items and passages that a document holds."""
        found = _find(document.words, document.sentence_digests, self._lengths, self._keys, self._filter)
        items: set[int] = set()
        passages: set[int] = set()
        short: set[int] = set()
        for key in set(found.tolist()):
            for number in self._owners[self._starts[key] : self._starts[key + 1]].tolist():
                (passages if self._is_passage[number] else short if self._is_short[key] else items).add(number)
        return Contamination(tuple(sorted(items)), tuple(sorted(passages)), tuple(sorted(short - items)))

    def report(self, findings: Iterable[Contamination]) -> dict[str, PartCounts]:
        """Counts by "benchmark/part" over the documents of a corpus."""
        found: set[int] = set()
        short: set[int] = set()
        documents: Counter[str] = Counter()
        for finding in findings:
            numbers = finding.items + finding.passages
            found.update(numbers)
            short.update(finding.short)
            documents.update({self._part_of(number) for number in numbers})
        parts: dict[str, list[int]] = {}
        for number in range(len(self.names)):
            parts.setdefault(self._part_of(number), []).append(number)
        return {
            part: self._counts(numbers, found, short - found, documents[part])
            for part, numbers in sorted(parts.items())
        }

    def _counts(self, numbers: list[int], found: set[int], short: set[int], documents: int) -> PartCounts:
        items = [number for number in numbers if not self._is_passage[number]]
        passages = [number for number in numbers if self._is_passage[number]]
        return PartCounts(
            items=len(items),
            items_found=sum(number in found for number in items),
            short_found=sum(number in short for number in items),
            passages=len(passages),
            passages_found=sum(number in found for number in passages),
            documents=documents,
            examples=tuple([self.names[number] for number in items if number in found][:5]),
        )

    def _part_of(self, number: int) -> str:
        return "/".join(self.names[number].split("/", 2)[:2])


def _runs_of(text: str, settings: ContaminationSettings) -> tuple[int, np.ndarray]:
    """(Words of a run, or 0 for a whole sentence; the keys of the text's runs)."""
    hashed = hash_words([text])
    num_words = len(hashed.words)
    if num_words < settings.min_sentence_words:
        return 0, np.empty(0, dtype=np.uint64)
    if num_words < settings.min_words:
        return 0, _sentence_keys(hashed.sentence_digests)
    length = min(num_words, settings.run_words)
    return length, _run_keys(hashed.words, length)


@numba.njit(cache=True, nogil=True)
def _run_keys(words: np.ndarray, length: int) -> np.ndarray:
    """(num_words - length + 1,) uint64: the key of each run of so many words."""
    sums = prefixes(words, _FACTOR)
    power = np.uint64(1)
    for _ in range(length):
        power *= _FACTOR
    keys = np.empty(max(0, len(words) - length + 1), dtype=np.uint64)
    for place in range(len(keys)):
        keys[place] = mix((sums[place + length] - sums[place] * power) ^ np.uint64(length))
    return keys


@numba.njit(cache=True, nogil=True)
def _sentence_keys(digests: np.ndarray) -> np.ndarray:
    keys = np.empty(len(digests), dtype=np.uint64)
    for place in range(len(digests)):
        keys[place] = fold(digests[place], np.uint64(0))
    return keys


@numba.njit(cache=True, nogil=True)
def _fill_filter(keys: np.ndarray, bits: np.ndarray) -> None:
    for key in keys:
        place = key & np.uint64(8 * len(bits) - 1)
        bits[place >> np.uint64(3)] |= np.uint8(1) << np.uint8(place & np.uint64(7))


@numba.njit(cache=True, nogil=True)
def _find(
    words: np.ndarray, digests: np.ndarray, lengths: np.ndarray, keys: np.ndarray, bits: np.ndarray
) -> np.ndarray:
    """(num_found,) int64: places in `keys` of what the document holds, with repetitions."""
    found = np.empty(16, dtype=np.int64)
    count = 0
    mask = np.uint64(8 * len(bits) - 1)
    for length in lengths:
        candidates = _sentence_keys(digests) if length == 0 else _run_keys(words, length)
        for key in candidates:
            place = key & mask
            if not (bits[place >> np.uint64(3)] >> np.uint8(place & np.uint64(7))) & np.uint8(1):
                continue
            at = np.searchsorted(keys, key)
            if at < len(keys) and keys[at] == key:
                if count == len(found):
                    found = np.concatenate((found, np.empty(count, dtype=np.int64)))
                found[count] = at
                count += 1
    return found[:count]
