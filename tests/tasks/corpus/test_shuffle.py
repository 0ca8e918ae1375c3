"""The negative control keeps counts and lengths, and nothing else."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from tasks.corpus.build_corpus import permutation, shuffle_words
from tasks.corpus.shards import ShardWriter, read_documents

WORDS = ["the", "cat", "dog", "don't", "U.S.", "(see", "this)", "naïve", "e\u0301te\u0301", "3.5", "हिन्दी", "end."]


def corpus(folder: Path) -> list[Path]:
    random.seed(1)
    writer = ShardWriter(folder, 100_000)
    for number in range(40):
        sentences = [" ".join(random.choices(WORDS, k=random.randint(1, 12))) for _ in range(random.randint(1, 9))]
        writer.add("s", str(number), f"t{number}", sentences)
    writer.close()
    return writer.paths


def units(sentence: str) -> list[str]:
    """What BERT's pre-tokenizer cuts it into (accents are kept)."""
    from tokenizers.pre_tokenizers import BertPreTokenizer

    return [unit for unit, _ in BertPreTokenizer().pre_tokenize_str(sentence)]


def shuffled(paths: list[Path], folder: Path, seed: int) -> list[tuple[str, str, str, list[str]]]:
    writer = ShardWriter(folder, 100_000)
    shuffle_words(paths, writer, seed)
    writer.close()
    return list(read_documents(writer.paths))


def test_counts_and_lengths_stay_and_order_goes(tmp_path: Path) -> None:
    paths = corpus(tmp_path / "in")
    before = list(read_documents(paths))
    after = shuffled(paths, tmp_path / "out", seed=0)
    assert [row[:3] for row in after] == [row[:3] for row in before]
    lengths = [[len(units(sentence)) for sentence in row[3]] for row in before]
    assert [[len(units(sentence)) for sentence in row[3]] for row in after] == lengths
    count = [
        Counter(unit for row in rows for sentence in row[3] for unit in units(sentence)) for rows in (before, after)
    ]
    assert count[0] == count[1]
    pairs = [
        Counter(pair for row in rows for s in row[3] for pair in zip(units(s), units(s)[1:]))
        for rows in (before, after)
    ]
    assert pairs[0][("don", "'")] > 50 > pairs[1][("don", "'")]  # not even a word and its punctuation stay together


def test_key_decides(tmp_path: Path) -> None:
    paths = corpus(tmp_path / "in")
    first = shuffled(paths, tmp_path / "a", seed=0)
    assert shuffled(paths, tmp_path / "b", seed=0) == first
    assert shuffled(paths, tmp_path / "c", seed=1) != first
    assert (tmp_path / "a" / "train-00000.parquet").read_bytes() == (
        tmp_path / "b" / "train-00000.parquet"
    ).read_bytes()


def test_permutation_is_one_and_is_fixed() -> None:
    order = permutation(10_000, 3)
    assert sorted(order.tolist()) == list(range(10_000))
    assert permutation(8, 0).tolist() == permutation(8, 0).tolist()
    moved = abs(order - range(10_000)).mean()
    assert 3_000 < moved < 3_700  # a third of the length on average
