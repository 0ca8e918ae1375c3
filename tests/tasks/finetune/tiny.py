"""A tiny encoder that reads letters, in the layout of build/pretrain."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from model.config import EncoderConfig
from model.encoder import Encoder
from model.files import write_json
from model.machine import Machine
from model.weights import save_encoder
from model.wordpiece import SPECIAL_TOKENS, make_tokenizer, save_tokenizer

SIGNS = string.ascii_lowercase + string.digits + ".,?!'-"
MACHINE = Machine(accelerator="cpu", precision="fp32", num_threads=1)


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
    config = EncoderConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    encoder = Encoder(config)
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    save_encoder(encoder, folder / "tiny")
    save_tokenizer(tokenizer, folder / "tiny")
    write_json(folder / "tiny" / "metrics.json", {"num_steps": 1, "final": {}, "curve": [], "heldout": []})
    return folder
