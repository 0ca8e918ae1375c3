"""The token store: the corpus in ids, whole and in order, with a stable share held out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from model.common import files
from model.common.errors import UserError
from model.data.token_store import TokenStore
from model.tokenizer.wordpiece import SPECIAL_TOKENS, load_tokenizer, make_tokenizer, save_tokenizer, tokenizer_digest
from tasks.corpus.shards import ShardWriter
from tasks.params.root import TokensSettings
from tasks.tokens.tokens import build_tokens, check_fit, example_pair

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,"


def document(number: int) -> list[str]:
    return [f"Document {number} says é{place}." for place in range(number % 4 + 1)] + ["\u200b"] * (number % 2)


def write_corpus(folder: Path, numbers: range, shard_bytes: int = 1000) -> None:
    writer = ShardWriter(folder, shard_bytes)
    for number in numbers:
        writer.add("s", str(number), "", document(number))
    writer.close()


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> Path:
    letters = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    save_tokenizer(make_tokenizer([*SPECIAL_TOKENS, *letters, "document", "says"]), tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def decoded(out: Path, part: str, tokenizer_dir: Path) -> list[list[str]]:
    store = TokenStore.open(out, part)
    tokenizer = load_tokenizer(tokenizer_dir)
    documents = []
    for first, last in zip(store.document_offsets, store.document_offsets[1:]):
        spans = zip(store.sentence_offsets[first:last], store.sentence_offsets[first + 1 : last + 1])
        documents.append([tokenizer.decode(store.tokens[start:end].tolist()) for start, end in spans])
    return documents


def test_documents_come_back(tmp_path: Path, tokenizer_dir: Path) -> None:
    write_corpus(tmp_path / "corpus", range(200))
    index = build_tokens(TokensSettings(heldout_fraction=0.2), tmp_path / "corpus", tokenizer_dir, tmp_path / "out")
    train, heldout = (decoded(tmp_path / "out", part, tokenizer_dir) for part in ("train", "heldout"))
    assert 20 < len(heldout) < 60
    assert len(train) + len(heldout) == 200
    assert train[0][0].startswith("document")
    expected = {tuple(f"document {n} says e{place}." for place in range(n % 4 + 1)) for n in range(200)}
    assert {tuple(sentences) for sentences in train + heldout} == expected  # a sentence without tokens is left out
    numbers = [int(sentences[0].split()[1]) for sentences in train]
    assert numbers == sorted(numbers)
    assert index["tokenizer_digest"] == tokenizer_digest(load_tokenizer(tokenizer_dir))
    assert index["parts"]["train"]["num_documents"] == len(train)
    assert index["facts"] == {"heldout_fraction": 0.2}


def test_heldout_documents_stay_so_when_others_are_added(tmp_path: Path, tokenizer_dir: Path) -> None:
    held = []
    for name, numbers in [("few", range(50, 150)), ("many", range(300))]:
        write_corpus(tmp_path / name, numbers)
        build_tokens(TokensSettings(heldout_fraction=0.2), tmp_path / name, tokenizer_dir, tmp_path / f"{name}-out")
        heldout = decoded(tmp_path / f"{name}-out", "heldout", tokenizer_dir)
        held.append({sentences[0] for sentences in heldout if 50 <= int(sentences[0].split()[1]) < 150})
    assert held[0] == held[1]
    assert len(held[0]) > 5


def test_heldout_sources_are_no_training_text(tmp_path: Path, tokenizer_dir: Path) -> None:
    writer = ShardWriter(tmp_path / "corpus", 1000)
    for number in range(100):
        writer.add("general" if number < 40 else "domain", str(number), "", document(number))
    writer.close()
    settings = TokensSettings(heldout_fraction=0.2, heldout_sources=("general",))
    index = build_tokens(settings, tmp_path / "corpus", tokenizer_dir, tmp_path / "out")
    numbers = {
        part: [int(sentences[0].split()[1]) for sentences in decoded(tmp_path / "out", part, tokenizer_dir)]
        for part in index["parts"]
    }
    assert numbers["heldout-general"] == list(range(40))
    assert sorted(numbers["train"] + numbers["heldout"]) == list(range(40, 100)) and numbers["heldout"]
    with pytest.raises(UserError, match=r"remove sources from tokens\.heldout_sources"):
        all_sources = TokensSettings(heldout_sources=("general", "domain"))
        build_tokens(all_sources, tmp_path / "corpus", tokenizer_dir, tmp_path / "none")


def test_same_bytes_with_any_number_of_workers(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.corpus.shards.ROW_GROUP_CHARACTERS", 2000)
    write_corpus(tmp_path / "corpus", range(400))
    for workers in (1, 2):
        build_tokens(TokensSettings(), tmp_path / "corpus", tokenizer_dir, tmp_path / str(workers), num_workers=workers)
    assert len(list((tmp_path / "corpus").iterdir())) > 2
    assert files.digest_of_folder(tmp_path / "1") == files.digest_of_folder(tmp_path / "2")


def test_large_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    vocabulary = [*SPECIAL_TOKENS, *(f"x{number}" for number in range(70_000)), *LETTERS]
    save_tokenizer(make_tokenizer(vocabulary), tmp_path / "tokenizer")
    writer = ShardWriter(tmp_path / "corpus", 1000)
    writer.add("s", "1", "", ["x69999 x3"])
    writer.close()
    build_tokens(TokensSettings(heldout_fraction=0), tmp_path / "corpus", tmp_path / "tokenizer", tmp_path / "out")
    tokens = TokenStore.open(tmp_path / "out").tokens
    assert tokens.dtype == np.uint32
    assert tokens.tolist() == [70_004, 8]


def test_vocabulary_that_does_not_fit_is_refused(tmp_path: Path, tokenizer_dir: Path) -> None:
    write_corpus(tmp_path / "corpus", range(30))
    build_tokens(TokensSettings(), tmp_path / "corpus", tokenizer_dir, tmp_path / "out")
    check_fit(tmp_path / "out", tokenizer_dir)
    save_tokenizer(make_tokenizer([*SPECIAL_TOKENS, *LETTERS]), tmp_path / "other")
    with pytest.raises(UserError, match="made with a different vocabulary") as raised:
        check_fit(tmp_path / "out", tmp_path / "other")
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match="missing, so this is not a token store"):
        check_fit(tmp_path / "none", tokenizer_dir)


def test_faults_are_named(tmp_path: Path, tokenizer_dir: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    with pytest.raises(UserError, match="no Parquet files; run the corpus stage first"):
        build_tokens(TokensSettings(), corpus, tokenizer_dir, tmp_path / "out")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"]}), corpus / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: no column 'sentences', only text"):
        build_tokens(TokensSettings(), corpus, tokenizer_dir, tmp_path / "out")
    (corpus / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"a\.parquet: not a readable Parquet file"):
        build_tokens(TokensSettings(), corpus, tokenizer_dir, tmp_path / "out")
    (corpus / "a.parquet").unlink()
    write_corpus(corpus, range(0))
    with pytest.raises(UserError, match="no training document is left"):
        build_tokens(TokensSettings(), corpus, tokenizer_dir, tmp_path / "out")
    assert not (tmp_path / "out" / "index.json").exists()


WORDS = ["the", "cat", "sat", "on", "a", "mat", "walk", "##ed", "."]


@pytest.mark.parametrize("num_documents", [1, 5])
def test_it_reads_as_the_text_does(num_documents: int, tmp_path: Path) -> None:
    save_tokenizer(make_tokenizer([*SPECIAL_TOKENS, *WORDS]), tmp_path / "tokenizer")
    writer = ShardWriter(tmp_path / "corpus", 1000)
    for number in range(num_documents):
        writer.add("s", str(number), "", ["The cat walked on a mat.", "A cat sat.", "The mat sat on the cat."])
    writer.close()
    build_tokens(TokensSettings(heldout_fraction=0), tmp_path / "corpus", tmp_path / "tokenizer", tmp_path / "tokens")
    example = example_pair(tmp_path / "tokens", tmp_path / "tokenizer")
    words = example["text"].split()
    assert words[0] == "[CLS]" and words[-1] == "[SEP]"
    assert words.count("[SEP]") == (2 if num_documents > 1 else 1)
    assert example["pair"] in (("next sentence", "not next") if num_documents > 1 else ("",))
    assert example["answers"] and set(example["answers"]) <= set(WORDS)
    assert set(words) <= {*WORDS, *SPECIAL_TOKENS, "walked"} | {f"{word}ed" for word in [*WORDS, *SPECIAL_TOKENS]}
    assert example == example_pair(tmp_path / "tokens", tmp_path / "tokenizer")
