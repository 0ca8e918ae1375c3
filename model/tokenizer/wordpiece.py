"""WordPiece: tokenizer files, special tokens, and fast tokenization with a word cache.

The pieces of a word do not depend on the words around it, so each run of characters between blanks is tokenized once
and then looked up (`model/tokenizer/word_cache.py`). The ids equal those of the library `tokenizers` on every line.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from model.common import files
from model.common.errors import UserError, first_line, shown

if TYPE_CHECKING:
    from model.tokenizer.word_cache import WordCache

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PREFIX = "##"
LARGEST_UINT16_VOCABULARY = 65_535
_LONGEST_WORD = 100  # in characters; a longer one is [UNK], in the released code as in the library


@dataclass(frozen=True)
class SpecialIds:
    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


def make_tokenizer(
    vocabulary: Sequence[str], *, lowercase: bool = True, strip_accents: bool | None = None
) -> Tokenizer:
    """BERT's tokenizer over a vocabulary.

    Args:
        vocabulary: pieces in the order of their ids, including the special tokens.
        lowercase: convert text to lower case.
        strip_accents: remove accents; None removes them if text is converted to lower case, as in BERT.
    """
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    assert len(ids) == len(vocabulary), "a vocabulary has no piece twice"
    tokenizer = Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]", max_input_chars_per_word=_LONGEST_WORD))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=PREFIX)
    tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS if token in ids])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write tokenizer.json, vocab.txt and tokenizer_config.json, which `transformers` loads."""
    directory.mkdir(parents=True, exist_ok=True)
    state = json.loads(tokenizer.to_str())
    normalizer = state.get("normalizer") or {}
    files.write_bytes(directory / "tokenizer.json", (tokenizer.to_str(pretty=True) + "\n").encode())
    files.write_bytes(directory / "vocab.txt", "".join(f"{piece}\n" for piece in vocabulary_of(tokenizer)).encode())
    files.write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": normalizer.get("lowercase", False),
            "strip_accents": normalizer.get("strip_accents"),
            "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
            "model_max_length": 512,
            **dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL_TOKENS)),
        },
    )


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a folder (or of a tokenizer.json), without truncation and padding.

    Raises:
        UserError: the file is missing or damaged, or lacks one of BERT's special tokens.
    """
    path = directory if directory.is_file() else directory / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"{path}: missing; run the tokenizer stage first (`cloze tokenizer`)")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"{path}: no tokenizer.json of the library `tokenizers` ({first_line(error)})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special_ids(tokenizer, str(path))
    return tokenizer


def special_ids(tokenizer: Tokenizer, name: str = "the vocabulary") -> SpecialIds:
    """The ids of the five special tokens.

    Raises:
        UserError: one of them is missing from the vocabulary, which the message calls `name`.
    """
    ids = [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS]
    if None in ids:
        missing = SPECIAL_TOKENS[ids.index(None)]
        raise UserError(f"{name}: no {missing}; expected a vocabulary with {', '.join(SPECIAL_TOKENS)}")
    return SpecialIds(*(number for number in ids if number is not None))


def vocabulary_of(tokenizer: Tokenizer) -> list[str]:
    """The pieces in the order of their ids.

    Raises:
        UserError: the ids are not 0, 1, 2, ...
    """
    by_id = sorted((number, piece) for piece, number in tokenizer.get_vocab(with_added_tokens=True).items())
    if [number for number, _ in by_id] != list(range(len(by_id))):
        raise UserError("the vocabulary's ids have gaps; expected 0 to the number of pieces less one")
    return [piece for _, piece in by_id]


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """Digest of everything that the ids of a text depend on: pieces, normalization and pre-tokenization."""
    state = json.loads(tokenizer.to_str())
    return files.digest_of([vocabulary_of(tokenizer), state.get("normalizer"), state.get("pre_tokenizer")])


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest little-endian dtype that holds the ids of a vocabulary."""
    return np.dtype("<u2") if vocab_size <= LARGEST_UINT16_VOCABULARY else np.dtype("<u4")


class CachedTokenizer:
    """Tokenizes lines without special tokens; the ids equal those of the library.

    Text that spells a special token ("[SEP]") is ordinary text, and never yields the special token's id.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.dtype = token_dtype(self.vocab_size)
        state = json.loads(self._tokenizer.to_str())
        self._cache: WordCache | None = None
        if _words_are_independent(state):
            from model.tokenizer.word_cache import WordCache  # imports numba

            self._cache = WordCache(state["model"], state["normalizer"]["lowercase"], self._ids_of, self.dtype)

    def encode(self, line: str) -> np.ndarray:
        """(num_tokens,) ids of one line."""
        return self.encode_lines([line])[0]

    def encode_lines(self, lines: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(total_tokens,) concatenated ids of all lines, and (num_lines,) int64 the number of ids of each line."""
        encoded = [line.encode() for line in lines]
        ends = np.cumsum([0, *map(len, encoded)])
        return self.encode_utf8(np.frombuffer(b"".join(encoded), dtype=np.uint8), ends)

    def encode_utf8(self, text: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokenize lines that are concatenated in one array; see `encode_lines`.

        Args:
            text: (num_bytes,) uint8, UTF-8.
            offsets: (num_lines + 1,) integers, start of each line, and the end of the last one.
        """
        if self._cache is not None:
            return self._cache.encode(text, offsets)
        content, borders = text.tobytes(), offsets.tolist()
        lines = [content[begin:end].decode() for begin, end in itertools.pairwise(borders)]
        ids = [np.array(numbers, dtype=self.dtype) for numbers in self._ids_of(lines)]
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        return np.concatenate([np.empty(0, dtype=self.dtype), *ids]), lengths

    def _ids_of(self, lines: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(lines, add_special_tokens=False)]


def _words_are_independent(state: dict[str, Any]) -> bool:
    """Check whether a tokenizer splits at blanks first, and has no added token that could contain one."""
    model = state["model"]
    return (
        model.get("type") == "WordPiece"
        and (state.get("normalizer") or {}).get("type") == "BertNormalizer"
        and (state.get("pre_tokenizer") or {}).get("type") == "BertPreTokenizer"
        and all(token["special"] for token in state["added_tokens"])
        and model["unk_token"] in model["vocab"]
    )


def read_vocabulary(path: Path) -> list[str]:
    """The pieces of a vocab.txt, one per line.

    Raises:
        UserError: it is missing, not UTF-8, or has a piece twice.
    """
    try:
        pieces = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise UserError(f"{path}: missing; expected a vocab.txt with a piece per line") from None
    except UnicodeDecodeError as error:
        where = f"at byte {error.start}"
        raise UserError(f"{path}: no UTF-8 ({where}); expected a vocab.txt with a piece per line") from None
    pieces = [piece.rstrip("\r") for piece in (pieces[:-1] if pieces[-1] == "" else pieces)]
    seen: set[str] = set()
    for number, piece in enumerate(pieces, 1):
        if piece in seen:
            raise UserError(f"{path}: line {number}: the piece {shown(piece)} occurs twice")
        seen.add(piece)
    return pieces


@dataclass(frozen=True)
class Vocabulary:
    """Special tokens and word boundaries, for masking and collation."""

    specials: SpecialIds
    is_continuation: np.ndarray
    """(vocab_size,) bool: pieces that continue a word (`##`)."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """The vocabulary of a tokenizer.

        Raises:
            UserError: a special token is missing, or the ids have gaps.
        """
        pieces = vocabulary_of(tokenizer)
        return cls(special_ids(tokenizer), np.array([piece.startswith(PREFIX) for piece in pieces], dtype=bool))
