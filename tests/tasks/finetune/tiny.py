"""A tiny encoder that reads letters, in the layout of build/pretrain."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from model.common.files import write_json
from model.config.hardware import HardwareOptions
from model.tokenizer.wordpiece import SPECIAL_TOKENS, make_tokenizer
from tests.model.conftest import write_small_encoder

SIGNS = string.ascii_lowercase + string.digits + ".,?!'-"
MACHINE = HardwareOptions(accelerator="cpu", precision="fp32", num_threads=1)


@pytest.fixture
def torch_as_it_was() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """build/pretrain with one encoder, which reads letters."""
    folder = tmp_path_factory.mktemp("pretrain")
    words = ["good", "fine", "bad", "poor", "the", "film", "was"]
    tokenizer = make_tokenizer([*SPECIAL_TOKENS, *SIGNS, *(f"##{sign}" for sign in SIGNS), *words])
    write_small_encoder(folder / "tiny", tokenizer)
    write_json(folder / "tiny" / "metrics.json", {"num_steps": 1, "final": {}, "curve": [], "heldout": []})
    return folder
