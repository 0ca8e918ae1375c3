"""The sections `tokenizer` and `tokens` of params.yaml."""

from __future__ import annotations

from pydantic import Field

from model.common.config_base import Settings


class TokenizerSettings(Settings):
    """The section `tokenizer` of params.yaml."""

    vocab_size: int = Field(default=30_522, ge=32, le=10_000_000)
    """Vocabulary size, including special tokens (30,522 in BERT's uncased release). A small corpus may yield fewer."""
    lowercase: bool = True
    """Convert text to lowercase, as in BERT's uncased models."""
    strip_accents: bool | None = None
    """Remove accents; null removes them if `lowercase` is on, as BERT does."""
    min_frequency: int = Field(default=2, ge=1)
    """Minimum number of occurrences for two pieces to be merged."""
    max_alphabet: int = Field(default=1000, ge=26)
    """Number of most frequent characters to keep; words with any other character become [UNK]. Raise it for Chinese."""
    existing: str | None = None
    """A vocab.txt or tokenizer.json to use instead of training one, relative to the project directory."""


class TokensSettings(Settings):
    """The section `tokens` of params.yaml."""

    heldout_fraction: float = Field(default=0.01, ge=0, lt=1)
    """Share of documents held out for validation. Documents are chosen by content hash, so adding documents moves none
    between the two sets, and duplicates are always in the same set."""
