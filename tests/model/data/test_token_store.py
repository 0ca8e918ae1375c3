"""The token store: what is written is read, and a store that does not fit its index is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model.common.errors import UserError
from model.data.token_store import TokenStore, TokenStoreWriter


def write(folder: Path, vocab_size: int = 100, digest: str = "tok") -> dict:
    writer = TokenStoreWriter(folder, vocab_size, tokenizer_digest=digest, heldout_fraction=0.5)
    writer.add_document([[1, 2, 3], [], [4]])
    writer.add_document([[9, 9]], "heldout")
    writer.add_document([])
    writer.add_tokens(np.array([5, 6, 7]), np.array([1, 2]))
    return writer.close()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    index = write(tmp_path)
    assert index["facts"] == {"heldout_fraction": 0.5} and index["parts"]["train"]["num_sentences"] == 4
    store = TokenStore.open(tmp_path)
    assert (store.num_documents, store.num_tokens) == (2, 7)
    assert store.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7] and store.tokens.dtype == np.uint16
    assert store.sentence_offsets.tolist() == [0, 3, 4, 5, 7]
    assert store.document_offsets.tolist() == [0, 2, 4]
    assert TokenStore.open(tmp_path, "heldout").tokens.tolist() == [9, 9]


def test_wide_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    write(tmp_path, vocab_size=70_000)
    assert TokenStore.open(tmp_path).tokens.dtype == np.uint32


def test_arrays_are_plain_npy_files(tmp_path: Path) -> None:
    write(tmp_path)
    assert np.load(tmp_path / "train" / "tokens.npy").tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_fingerprint_names_the_content(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    write(tmp_path / "c", digest="other")
    prints = [TokenStore.open(tmp_path / name).fingerprint for name in "abc"]
    assert prints[0] == prints[1] != prints[2]


def test_an_empty_part_is_open(tmp_path: Path) -> None:
    writer = TokenStoreWriter(tmp_path, 100, tokenizer_digest="x")
    writer.add_document([[1]])
    writer.close()
    assert TokenStore.open(tmp_path, "heldout").num_documents == 0


def test_a_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    writer = TokenStoreWriter(tmp_path, 100, tokenizer_digest="x")
    with pytest.raises(UserError, match="token id 100"):
        writer.add_document([[1, 100]])


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no token store"):
        TokenStore.open(tmp_path)
    write(tmp_path)
    tokens = tmp_path / "train" / "tokens.npy"
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[:-2])
    with pytest.raises(UserError, match=r"tokens\.npy: damaged"):
        TokenStore.open(tmp_path)
    np.save(tokens, np.zeros(3, dtype=np.uint16))
    with pytest.raises(UserError, match=r"3 entries, but index\.json says 7"):
        TokenStore.open(tmp_path)
    tokens.unlink()
    with pytest.raises(UserError, match="missing"):
        TokenStore.open(tmp_path)
