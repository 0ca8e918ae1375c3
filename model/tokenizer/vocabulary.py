"""What pre-training needs to know of a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from model.tokenizer.wordpiece import PREFIX, SpecialIds, special_ids, vocabulary_of


@dataclass(frozen=True)
class Vocabulary:
    """Ids, as masking and feeding ask for them."""

    specials: SpecialIds
    """The special tokens."""
    is_continuation: np.ndarray
    """(vocab_size,) bool: pieces that go on with the word before them (`##`)."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """That of a tokenizer.

        Raises:
            UserError: a special token is missing, or the ids have gaps.
        """
        pieces = vocabulary_of(tokenizer)
        return cls(special_ids(tokenizer), np.array([piece.startswith(PREFIX) for piece in pieces], dtype=bool))
