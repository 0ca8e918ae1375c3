"""The token store: a corpus as flat, memory-mapped arrays of token ids.

A directory holds index.json and, for each part (train, heldout), three little-endian .npy arrays:

- tokens.npy: ids, uint16 (uint32 where the vocabulary is larger than 65,535), one document after another
- sentence_offsets.npy: int64, where each sentence starts in tokens, and the total at the end
- document_offsets.npy: int64, where each document starts in sentences, and the total at the end

index.json is written last: a directory without it is not a token store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from model.common import files
from model.common.errors import UserError
from model.tokenizer.wordpiece import token_dtype

PARTS = ("train", "heldout")
ARRAYS = ("tokens", "sentence_offsets", "document_offsets")
_HEADER_BYTES = 128  # a .npy header of fixed size, so that the final shape can be written over the first one


class TokenStoreWriter:
    """Streams documents to disk in constant memory; `close` makes the folder a token store.

    Args:
        directory: created if it is missing.
        vocab_size: number of ids; determines the dtype. Larger token ids are errors.
        tokenizer_digest: digest of the tokenizer, which training verifies.
        facts: further facts for index.json (for example heldout_fraction).
    """

    def __init__(self, directory: Path, vocab_size: int, *, tokenizer_digest: str, **facts: Any) -> None:
        self.directory = directory
        self.vocab_size = vocab_size
        self._facts = facts
        self._tokenizer_digest = tokenizer_digest
        self._dtype = token_dtype(vocab_size)
        self._parts = {part: _PartWriter(directory / part, self._dtype) for part in PARTS}

    def add_document(self, sentences: Sequence[Sequence[int] | np.ndarray], heldout: bool = False) -> None:
        """Append one document; empty sentences, and documents without tokens, are left out."""
        arrays = [np.asarray(sentence, dtype=np.int64) for sentence in sentences if len(sentence)]
        if arrays:
            lengths = np.array([len(array) for array in arrays], dtype=np.int64)
            self.add_tokens(np.concatenate(arrays), lengths, heldout)

    def add_tokens(self, tokens: np.ndarray, sentence_lengths: np.ndarray, heldout: bool = False) -> None:
        """Append one document as its concatenated tokens and the length of each sentence (all > 0)."""
        if len(tokens) == 0:
            return
        assert int(sentence_lengths.sum()) == len(tokens), "sentence lengths must add up to the tokens"
        assert int(sentence_lengths.min()) > 0, "a sentence has at least one token"
        if int(tokens.max()) >= self.vocab_size or int(tokens.min()) < 0:
            raise UserError(
                f"{self.directory}: token id {int(tokens.max())} does not fit a vocabulary of "
                f"{self.vocab_size}; "
                "make the tokens with the tokenizer that the store names"
            )
        self._parts["heldout" if heldout else "train"].add(tokens, sentence_lengths)

    def close(self) -> dict[str, Any]:
        """Finish the arrays and write index.json last; return its content."""
        index: dict[str, Any] = {
            "format": 1,
            "dtype": self._dtype.name,
            "vocab_size": self.vocab_size,
            "tokenizer_digest": self._tokenizer_digest,
            "facts": self._facts,
            "parts": {part: writer.close() for part, writer in self._parts.items()},
        }
        files.write_json(self.directory / "index.json", index)
        return index


class _PartWriter:
    def __init__(self, directory: Path, dtype: np.dtype[Any]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._arrays = {
            name: _ArrayWriter(directory / f"{name}.npy", dtype if name == "tokens" else np.dtype("<i8"))
            for name in ARRAYS
        }
        self._num_tokens = 0
        self._num_sentences = 0
        self._num_documents = 0

    def add(self, tokens: np.ndarray, sentence_lengths: np.ndarray) -> None:
        starts = self._num_tokens + np.cumsum(sentence_lengths) - sentence_lengths
        self._arrays["tokens"].append(tokens)
        self._arrays["sentence_offsets"].append(starts)
        self._arrays["document_offsets"].append(np.array([self._num_sentences]))
        self._num_tokens += len(tokens)
        self._num_sentences += len(sentence_lengths)
        self._num_documents += 1

    def close(self) -> dict[str, Any]:
        self._arrays["sentence_offsets"].append(np.array([self._num_tokens]))
        self._arrays["document_offsets"].append(np.array([self._num_sentences]))
        return {
            "num_documents": self._num_documents,
            "num_sentences": self._num_sentences,
            "num_tokens": self._num_tokens,
            "digests": {name: array.close() for name, array in self._arrays.items()},
        }


class _ArrayWriter:
    """A .npy file of one dimension whose length is known only at the end."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._length = 0
        self._hash = hashlib.sha256()
        self._file: BinaryIO = path.open("wb", buffering=1 << 20)
        self._file.write(_npy_header(dtype, 0))

    def append(self, values: np.ndarray) -> None:
        content = np.ascontiguousarray(values, dtype=self._dtype).tobytes()
        self._hash.update(content)
        self._file.write(content)
        self._length += len(values)

    def close(self) -> str:
        self._file.seek(0)
        self._file.write(_npy_header(self._dtype, self._length))
        self._file.close()
        return self._hash.hexdigest()


def _npy_header(dtype: np.dtype[Any], length: int) -> bytes:
    fields = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({length},), }}"
    body = fields.encode().ljust(_HEADER_BYTES - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


@dataclass(frozen=True)
class TokenStore:
    """One part of a token store, mapped into memory (read-only)."""

    directory: Path
    part: str
    vocab_size: int
    tokenizer_digest: str
    fingerprint: str
    """Digest of the part's arrays, the vocabulary size and the tokenizer: equal stores train alike."""
    tokens: np.ndarray
    """(num_tokens,) uint16 or uint32."""
    sentence_offsets: np.ndarray
    """(num_sentences + 1,) int64, in tokens."""
    document_offsets: np.ndarray
    """(num_documents + 1,) int64, in sentences."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents, without special ones."""
        return len(self.tokens)

    @property
    def num_sentences(self) -> int:
        """Sentences of all documents."""
        return len(self.sentence_offsets) - 1

    @property
    def num_documents(self) -> int:
        """Documents of this part."""
        return len(self.document_offsets) - 1

    @classmethod
    def open(cls, directory: Path, part: str = "train") -> TokenStore:
        """Map one part ("train" or "heldout") into memory.

        Raises:
            UserError: the folder is not a token store, or an array's size does not agree with index.json.
        """
        assert part in PARTS, f"a token store has the parts {PARTS}, not {part!r}"
        directory = Path(directory)
        index_path = directory / "index.json"
        if not index_path.is_file():
            raise UserError(f"{index_path}: missing, so this is no token store; run the tokens stage first")
        index = files.read_json(index_path)
        facts = index["parts"][part]
        lengths = {
            "tokens": facts["num_tokens"],
            "sentence_offsets": facts["num_sentences"] + 1,
            "document_offsets": facts["num_documents"] + 1,
        }
        arrays = {name: _map(directory / part / f"{name}.npy", length) for name, length in lengths.items()}
        if arrays["tokens"].dtype != token_dtype(index["vocab_size"]):
            raise UserError(
                f"{directory / part / 'tokens.npy'}: holds {arrays['tokens'].dtype}, expected "
                f"{token_dtype(index['vocab_size'])} for a vocabulary of {index['vocab_size']}; "
                "make the tokens again"
            )
        fingerprint = files.digest_of(
            [index["vocab_size"], index["tokenizer_digest"], part, facts["num_tokens"], facts["digests"]]
        )
        return cls(directory, part, index["vocab_size"], index["tokenizer_digest"], fingerprint, **arrays)


def _map(path: Path, length: int) -> np.ndarray:
    if not path.is_file():
        raise UserError(f"{path}: missing from the token store; make the tokens again")
    try:
        # An empty array cannot be mapped.
        array = np.asarray(np.load(path, mmap_mode="r" if length else None, allow_pickle=False))
    except ValueError as error:
        raise UserError(f"{path}: damaged ({error}); make the tokens again") from None
    if array.shape != (length,):
        raise UserError(f"{path}: {len(array)} entries, but index.json says {length}; make the tokens again")
    return array
