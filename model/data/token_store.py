"""The token store: a corpus as flat, memory-mapped arrays of token ids.

A directory holds index.json and, for each part (train, heldout, and heldout-SOURCE for each source of the corpus that
is held out as a whole), three little-endian .npy arrays:

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

TRAIN, HELDOUT = "train", "heldout"
# What the entries of each array are, for index.json.
_ARRAYS = {"tokens": "tokens", "sentence_offsets": "sentences", "document_offsets": "documents"}


class TokenStoreWriter:
    """Streams documents to disk in constant memory; `close` makes the folder a token store.

    Args:
        directory: created if it is missing.
        vocab_size: number of ids; determines the dtype. Larger token ids are errors.
        tokenizer_digest: digest of the tokenizer, which training verifies.
        heldout_sources: sources with a held-out part of their own.
        facts: further facts for index.json (for example heldout_fraction).
    """

    def __init__(
        self,
        directory: Path,
        vocab_size: int,
        *,
        tokenizer_digest: str,
        heldout_sources: Sequence[str] = (),
        **facts: Any,
    ) -> None:
        self.directory, self.vocab_size = directory, vocab_size
        self._tokenizer_digest, self._facts = tokenizer_digest, facts
        self._dtype = token_dtype(vocab_size)
        dtypes = dict.fromkeys(_ARRAYS, np.dtype("<i8")) | {"tokens": self._dtype}
        self._parts = {
            part: {name: _ArrayWriter(directory / part / f"{name}.npy", dtype) for name, dtype in dtypes.items()}
            for part in (TRAIN, HELDOUT, *map(heldout_part, heldout_sources))
        }

    def add_document(self, sentences: Sequence[Sequence[int] | np.ndarray], part: str = TRAIN) -> None:
        """Append one document; empty sentences, and documents without tokens, are left out."""
        arrays = [np.asarray(sentence, dtype=np.int64) for sentence in sentences if len(sentence)]
        if arrays:
            lengths = np.array([len(array) for array in arrays], dtype=np.int64)
            self.add_tokens(np.concatenate(arrays), lengths, part)

    def add_tokens(self, tokens: np.ndarray, sentence_lengths: np.ndarray, part: str = TRAIN) -> None:
        """Append one document as its concatenated tokens and the length of each sentence (all > 0)."""
        if len(tokens) == 0:
            return
        assert int(sentence_lengths.sum()) == len(tokens), "sentence lengths must add up to the tokens"
        assert int(sentence_lengths.min()) > 0, "a sentence has at least one token"
        if int(tokens.max()) >= self.vocab_size or int(tokens.min()) < 0:
            raise UserError(
                f"{self.directory}: token id {int(tokens.max())} does not fit a vocabulary of {self.vocab_size}; "
                "make the tokens with the tokenizer that the store names"
            )
        arrays = self._parts[part]
        arrays["document_offsets"].append(np.array([arrays["sentence_offsets"].length]))
        arrays["sentence_offsets"].append(arrays["tokens"].length + np.cumsum(sentence_lengths) - sentence_lengths)
        arrays["tokens"].append(tokens)

    def close(self) -> dict[str, Any]:
        """Finish the arrays and write index.json last; return its content."""
        index: dict[str, Any] = {
            "format": 1,
            "dtype": self._dtype.name,
            "vocab_size": self.vocab_size,
            "tokenizer_digest": self._tokenizer_digest,
            "facts": self._facts,
            "parts": {},
        }
        for name, part in self._parts.items():
            counts = {f"num_{units}": part[array].length for array, units in _ARRAYS.items()}
            part["sentence_offsets"].append(np.array([counts["num_tokens"]]))
            part["document_offsets"].append(np.array([counts["num_sentences"]]))
            index["parts"][name] = counts | {"digests": {array: writer.close() for array, writer in part.items()}}
        files.write_json(self.directory / "index.json", index)
        return index


class _ArrayWriter:
    """A .npy file of one dimension whose length is known only at the end."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.length = 0
        self._dtype, self._hash = dtype, hashlib.sha256()
        self._file: BinaryIO = path.open("wb", buffering=1 << 20)
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        content = np.ascontiguousarray(values, dtype=self._dtype).tobytes()
        self._hash.update(content)
        self._file.write(content)
        self.length += len(values)

    def close(self) -> str:
        """Return the SHA-256 of the values."""
        self._file.seek(0)
        self._write_header()
        self._file.close()
        return self._hash.hexdigest()

    def _write_header(self) -> None:
        # numpy leaves space for a longer shape, so that the final header can be written over the first one.
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


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
        return len(self.tokens)

    @property
    def num_documents(self) -> int:
        return len(self.document_offsets) - 1

    @classmethod
    def open(cls, directory: Path, part: str = TRAIN) -> TokenStore:
        """Map one part into memory.

        Raises:
            UserError: the folder is not a token store, or an array's size does not agree with index.json.
        """
        directory = Path(directory)
        index = _read_index(directory)
        assert part in index["parts"], f"the token store has the parts {list(index['parts'])}, not {part!r}"
        facts = index["parts"][part]
        arrays = {
            array: _map(directory / part / f"{array}.npy", facts[f"num_{units}"] + (array != "tokens"))
            for array, units in _ARRAYS.items()
        }
        size, digest = index["vocab_size"], index["tokenizer_digest"]
        if arrays["tokens"].dtype != token_dtype(size):
            raise UserError(
                f"{directory / part / 'tokens.npy'}: holds {arrays['tokens'].dtype}, expected {token_dtype(size)} "
                f"for a vocabulary of {size}; make the tokens again"
            )
        fingerprint = files.digest_of([size, digest, part, facts["num_tokens"], facts["digests"]])
        return cls(directory, part, size, digest, fingerprint, **arrays)


def heldout_part(source: str) -> str:
    """The part with the documents of a source that is held out as a whole."""
    return f"{HELDOUT}-{source}"


def heldout_parts(directory: Path) -> list[str]:
    """The parts of a token store for validation: the held-out documents, then the held-out sources.

    Raises:
        UserError: the folder is not a token store.
    """
    return [part for part in _read_index(directory)["parts"] if part != TRAIN]


def _read_index(directory: Path) -> dict[str, Any]:
    path = directory / "index.json"
    if not path.is_file():
        raise UserError(f"{path}: missing, so this is no token store; run the tokens stage first")
    index: dict[str, Any] = files.read_json(path)
    return index


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
