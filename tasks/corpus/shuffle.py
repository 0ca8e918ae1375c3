"""The negative control: the same words as often as before, in no order.

A permutation of all words of the whole corpus keeps how often each word occurs and how long sentences and documents
are, and destroys the rest: order, and which words are near each other. If pre-training on it helped as much as on the
text, what helps would not be language. A word is here what WordPiece sees as one: a run of letters and digits, or one
punctuation mark, so that no mark stays with its word.
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np

from model.common.rng import GOLDEN_64, mix
from tasks.corpus.shards import ShardWriter, read_documents


def shuffle_words(
    paths: list[Path], writer: ShardWriter, seed: int, report: Callable[[str], None] | None = None
) -> None:
    """Write the documents of `paths` with all words permuted, by a key that depends on `seed` alone.

    Takes about 20 bytes of memory per word and the distinct words.
    """
    pieces: dict[str, tuple[int, ...]] = {}
    words: dict[str, int] = {}
    stream = array("i")
    lengths = array("i")
    for _, _, _, sentences in read_documents(paths):
        for sentence in sentences:
            before = len(stream)
            for run in sentence.split():
                numbers = pieces.get(run)
                if numbers is None:
                    numbers = pieces[run] = tuple(words.setdefault(word, len(words)) for word in _words(run))
                stream.extend(numbers)
            lengths.append(len(stream) - before)
    if report:
        report(f"shuffling {len(stream):,} words")
    permuted = (
        np.frombuffer(stream, dtype=np.int32)[permutation(len(stream), seed)] if stream else np.empty(0, np.int32)
    )
    spelling = list(words)
    place = sentence_number = 0
    for source, identifier, title, sentences in read_documents(paths):
        shuffled = []
        for _ in sentences:
            end = place + lengths[sentence_number]
            shuffled.append(" ".join(map(spelling.__getitem__, permuted[place:end].tolist())))
            place, sentence_number = end, sentence_number + 1
        writer.add(source, identifier, title, shuffled)


def permutation(size: int, seed: int) -> np.ndarray:
    """A permutation of range(size): the order of 64-bit hashes (SplitMix64) of the places."""
    with np.errstate(over="ignore"):
        key = (np.uint64(seed) + np.uint64(1)) * GOLDEN_64
    places = np.arange(1, size + 1, dtype=np.uint64)
    return np.argsort(mix(key ^ (places * GOLDEN_64)), kind="stable")


def _words(run: str) -> list[str]:
    """Letters and digits together, every other character alone (marks that combine stay with their letter)."""
    words: list[str] = []
    open_word = False
    for character in run:
        if unicodedata.category(character)[0] in "PS":
            words.append(character)
            open_word = False
        elif open_word:
            words[-1] += character
        else:
            words.append(character)
            open_word = True
    return words
