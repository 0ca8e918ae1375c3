"""The tokenizer stage trains a WordPiece vocabulary on the corpus, or converts an existing vocabulary.

The `tokenizers` library alone is not deterministic: it numbers the continuing letters (##a) in the order of a randomly
seeded hash table, and these numbers break ties between equally frequent pairs. This module counts words first and
passes the letters in sorted order, so equal corpora give identical files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from model.common.errors import UserError
from model.tokenizer import wordpiece
from tasks.corpus.shards import read_sentences, row_groups, shard_paths, utf8_of
from tasks.jobs.resources import num_cores
from tasks.params.root import TokenizerSettings
from tasks.project.parallel import ordered_map

Report = Callable[[int, int, str], None]
_WORDS_PER_SLICE = 50_000
_WORDS_PER_FEED = 50_000
_WORTH_WORKERS_BYTES = 64 << 20  # of shards: below this size, starting processes takes longer than counting
_ASCII_WORDS = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9 ]")


def train_tokenizer(
    settings: TokenizerSettings,
    corpus_dir: Path,
    out_dir: Path,
    report: Report | None = None,
    *,
    num_workers: int | None = None,
) -> dict[str, int]:
    """Write tokenizer.json, vocab.txt and tokenizer_config.json to `out_dir`; the output is deterministic.

    `existing` is relative to the folder two levels above `corpus_dir`. `report` receives the amount done, the total and
    a short text. By default, words are counted by one process per core.

    Raises:
        UserError: the corpus is missing or has no text, or the existing vocabulary is unusable.
    """
    if settings.existing is not None:
        tokenizer = existing_tokenizer(settings, corpus_dir.parent.parent)
    else:
        counts = count_words(settings, corpus_dir, report, num_workers or num_cores())
        tokenizer = wordpiece.make_tokenizer(
            train_vocabulary(counts, settings, report),
            lowercase=settings.lowercase,
            strip_accents=settings.strip_accents,
        )
    wordpiece.save_tokenizer(tokenizer, out_dir)
    return {"vocab_size": tokenizer.get_vocab_size(with_added_tokens=True)}


def existing_tokenizer(settings: TokenizerSettings, root: Path) -> Tokenizer:
    """Load the tokenizer that `settings.existing` names, relative to `root`.

    Raises:
        UserError: it is missing or unusable.
    """
    assert settings.existing is not None
    path = root / settings.existing
    if not path.is_file():
        raise UserError(f"{path}: missing, but tokenizer.existing names it; expected a vocab.txt or a tokenizer.json")
    if path.suffix == ".json":
        return wordpiece.load_tokenizer(path)
    vocabulary = wordpiece.read_vocabulary(path)
    missing = [token for token in wordpiece.SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        raise UserError(f"{path}: no {missing[0]}; expected a vocab.txt with {', '.join(wordpiece.SPECIAL_TOKENS)}")
    return wordpiece.make_tokenizer(vocabulary, lowercase=settings.lowercase, strip_accents=settings.strip_accents)


def count_words(
    settings: TokenizerSettings, corpus_dir: Path, report: Report | None, num_workers: int
) -> list[tuple[str, int]]:
    """Count the words of the corpus, split by BERT's pre-tokenizer; return (word, count) sorted by word."""
    groups = row_groups(corpus_dir)
    if sum(path.stat().st_size for path in shard_paths(corpus_dir)) < _WORTH_WORKERS_BYTES:
        num_workers = 1
    runs: Counter[str] = Counter()
    for done, counted in enumerate(ordered_map(_count_runs, groups, num_workers), start=1):
        runs.update(counted)
        if report:
            report(done, len(groups) + 1, f"{len(runs):,} distinct words")
    listed = sorted(runs.items())
    slices = [(settings, listed[start : start + _WORDS_PER_SLICE]) for start in range(0, len(listed), _WORDS_PER_SLICE)]
    words: Counter[str] = Counter()
    for counted in ordered_map(_normalize, slices, num_workers):
        words.update(counted)
    if not words:
        raise UserError(f"{corpus_dir}: the corpus has no words to train a vocabulary from")
    return sorted(words.items())


def train_vocabulary(
    counts: list[tuple[str, int]], settings: TokenizerSettings, report: Report | None = None
) -> list[str]:
    """Return the pieces in the order of their ids: special tokens, letters, continuing letters, merged pieces.

    The counts must be sorted by word.

    Raises:
        UserError: the vocabulary is too small for the letters alone.
    """
    frequency: Counter[str] = Counter()
    for word, count in counts:
        for letter in word:
            frequency[letter] += count
    by_frequency = sorted(frequency, key=lambda letter: (-frequency[letter], letter))
    alphabet = set(by_frequency[: settings.max_alphabet])
    usable = [(word, count) for word, count in counts if alphabet.issuperset(word)]
    letters = sorted(alphabet)
    continuing = [wordpiece.PREFIX + letter for letter in sorted({letter for word, _ in usable for letter in word[1:]})]
    base = [*wordpiece.SPECIAL_TOKENS, *letters, *continuing]
    if len(base) > settings.vocab_size:
        raise UserError(
            f"tokenizer.vocab_size: {settings.vocab_size:,} is too small for the {len(letters):,} letters and "
            f"{len(continuing):,} continuing letters of the corpus; raise it or lower max_alphabet"
        )
    if report:
        report(1, 2, f"training on {sum(count for _, count in usable):,} words")
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_frequency,
        show_progress=False,
        special_tokens=[*wordpiece.SPECIAL_TOKENS, *continuing],  # special tokens are numbered first, in this order
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        continuing_subword_prefix=wordpiece.PREFIX,
    )
    trained.train_from_iterator(_repeated(usable), trainer)
    of_base = set(base)
    return base + [piece for piece in wordpiece.vocabulary_of(trained) if piece not in of_base]


def _count_runs(group: tuple[Path, int]) -> dict[str, int]:
    from model.tokenizer.word_cache import count_runs  # imports numba

    return count_runs(*utf8_of(read_sentences(*group).flatten()))


def _normalize(part: tuple[TokenizerSettings, list[tuple[str, int]]]) -> Counter[str]:
    settings, runs = part
    normalizer = normalizers.BertNormalizer(lowercase=settings.lowercase, strip_accents=settings.strip_accents)
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for run, count in runs:
        if run.isascii() and run.isprintable():  # fast path for most words
            for word in _ASCII_WORDS.findall(run.lower() if settings.lowercase else run):
                counts[word] += count
            continue
        for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(run)):
            counts[word] += count
    return counts


def _repeated(counts: list[tuple[str, int]]) -> Iterator[list[str]]:
    """Repeat each word as often as it was counted, because the library's trainer expects text."""
    texts: list[str] = []
    size = 0
    for word, count in counts:
        while count:
            times = min(count, _WORDS_PER_FEED)
            texts.append(f"{word} " * times)
            size += times
            count -= times
            if size >= _WORDS_PER_FEED:
                yield texts
                texts, size = [], 0
    if texts:
        yield texts
