"""A tokenizer small enough to read, and the real files where they are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

SHARED = Path(__file__).parents[4] / "shared" / "data"
TEXT = """[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat on mat in which city is paris france capital of
who ran ##s ##ning walk ##ed big small red blue . , ? ' - ( ) 1 9 8 ##9 b c d e x y z"""
WORDS = TEXT.split()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """An uncased WordPiece tokenizer over WORDS."""
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpacks a group of the real data and returns the data folder; skips where it is missing."""
    folder = tmp_path_factory.mktemp("shared")

    def unpack(group: str) -> Path:
        archive = SHARED / f"{group}.tar.xz"
        if not archive.exists():
            pytest.skip(f"../shared/data/{group}.tar.xz is not here")
        if not (folder / group).exists():
            shutil.unpack_archive(archive, folder)
        return folder

    return unpack
