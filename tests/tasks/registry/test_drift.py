"""Drift between corpora: what is equal has none, and what is new is named."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace

from tasks.registry.drift import compare, divergence, keep, kept, profile
from tasks.registry.retrain import RetrainReport


def _corpus(folder: Path, documents: list[list[str]]) -> Path:
    folder.mkdir()
    half = len(documents) // 2
    for number, some in enumerate((documents[:half], documents[half:])):
        parquet.write_table(pa.table({"sentences": some}), folder / f"{number}.parquet")
    return folder


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Knows `the`, `cat`, and that `s` can follow."""
    tokenizer = Tokenizer(WordPiece({"[UNK]": 0, "the": 1, "cat": 2, "##s": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_divergence() -> None:
    assert divergence({"a": 1, "b": 3}, {"a": 10, "b": 30}) == 0
    assert divergence({"a": 1}, {"b": 1}) == 1
    assert divergence({"a": 1, "b": 1}, {"a": 1}) == divergence({"a": 1}, {"a": 1, "b": 1})
    assert divergence({"a": 1, "b": 1}, {"a": 1}) == pytest.approx(0.3113, abs=1e-4)
    assert divergence({}, {}) == 0


def test_a_corpus_has_not_drifted_from_itself(tmp_path: Path, tokenizer: Path) -> None:
    corpus = _corpus(tmp_path / "corpus", [["The cats", "the cat"], ["the the cat"]])
    one = profile(corpus, tokenizer)
    assert one.documents == 2
    assert one.words == Counter({"the": 4, "cat": 2, "cats": 1})
    assert one.unknown == 0
    assert one.pieces_per_word == pytest.approx(8 / 7)
    drift = compare(one, one)
    assert drift.words == drift.sentence_lengths == drift.document_lengths == drift.new_words == 0


def test_a_profile_is_kept_for_the_next_corpus(tmp_path: Path, tokenizer: Path) -> None:
    assert kept(tmp_path / "kept") is None
    one = profile(_corpus(tmp_path / "corpus", [["The cats", "the cat"]]), tokenizer)
    keep(one, tokenizer, tmp_path / "kept")
    assert kept(tmp_path / "kept") == (one, tmp_path / "kept" / "tokenizer.json")


def test_new_words_are_named_and_unknown(tmp_path: Path, tokenizer: Path) -> None:
    old = profile(_corpus(tmp_path / "old", [["the cat"], ["the cat"]]), tokenizer)
    new = profile(_corpus(tmp_path / "new", [["the dog " * 5], ["the dog"]]), tokenizer)
    drift = compare(old, new)
    assert drift.unknown == (0, 0.5)
    assert drift.new_words == 0.5
    assert drift.examples == [("dog", 6)]
    assert drift.words == pytest.approx(0.5)
    assert drift.sentence_lengths > 0
    page = RetrainReport("promoted", "better", drift=drift).markdown()
    assert "Most frequent: dog (6).\n" in page
    assert "| unknown words (old vocabulary) | 0.000% | 50.000% |" in page


def test_a_large_corpus_is_looked_at_in_part(tmp_path: Path, tokenizer: Path) -> None:
    corpus = _corpus(tmp_path / "corpus", [["the cat"]] * 10)
    part = profile(corpus, tokenizer, most_documents=5)
    assert part.documents == 10
    assert part.num_words == 10
