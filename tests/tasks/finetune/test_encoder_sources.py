"""External encoders: read in the layout of `transformers`, refused in one line when something is wrong with them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from model.common.errors import UserError
from model.common.files import write_json
from model.config.encoder import EncoderConfig
from model.encoder.encoder import Encoder
from model.formats.hf_folder import save_encoder
from model.tokenizer.wordpiece import SPECIAL_TOKENS, make_tokenizer, save_tokenizer
from tasks.finetune.plan import find_encoders, weight_bytes
from tasks.params.finetune import ExternalEncoder

SIZE = 40
MINI = ExternalEncoder(name="mini", path="encoders/mini")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with an external encoder, beside one of ours."""
    folder = tmp_path / "data" / "encoders" / "mini"
    tokenizer = make_tokenizer([*SPECIAL_TOKENS, *(f"w{number}" for number in range(SIZE - len(SPECIAL_TOKENS)))])
    save_tokenizer(tokenizer, folder)
    config = EncoderConfig(vocab_size=SIZE, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    save_encoder(Encoder(config), folder)
    shutil.copytree(folder, tmp_path / "pretrain" / "ours")
    save_encoder(Encoder(config), tmp_path / "pretrain" / "ours")
    write_json(tmp_path / "pretrain" / "ours" / "metrics.json", {"num_steps": 0})
    return tmp_path / "data"


def test_ours_and_others(data: Path) -> None:
    ours, mini = find_encoders([MINI], data.parent / "pretrain", data)
    assert (ours.name, ours.kind, mini.name, mini.kind) == ("ours", "scratch", "mini", "external")
    shutil.copytree(data / "encoders" / "mini", data.parent / "pretrain" / "ours", dirs_exist_ok=True)
    with pytest.raises(UserError, match="mini has the same files as ours; remove one"):
        find_encoders([MINI], data.parent / "pretrain", data)
    shutil.rmtree(data.parent / "pretrain" / "ours")
    tensors = torch.zeros(1)
    torch.save({"weight": tensors}, data / "encoders/mini/pytorch_model.bin")
    assert find_encoders([MINI], data.parent / "pretrain", data) == [mini], "safetensors are taken first"
    (data / "encoders/mini/model.safetensors").unlink()
    assert find_encoders([MINI], data.parent / "pretrain", data)[0].digest != mini.digest


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def larger_vocabulary(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": SIZE + 128}))


def smaller_vocabulary(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": SIZE - 1}))


def of_another_kind(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "roberta"}))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (shutil.rmtree, "is not a directory"),
        (remove("config.json"), "has no config.json"),
        (remove("model.safetensors"), "has no model.safetensors"),
        (remove("tokenizer.json"), "has no tokenizer.json"),
        (larger_vocabulary, "the tokenizer has 40 tokens, the encoder 168"),
        (smaller_vocabulary, "the tokenizer has 40 tokens, the encoder 39"),
        (of_another_kind, "model_type is 'roberta'"),
    ],
)
def test_what_is_wrong_is_one_line(data: Path, harm: Callable[[Path], None], message: str) -> None:
    harm(data / "encoders" / "mini")
    with pytest.raises(UserError, match=message) as caught:
        find_encoders([MINI], data.parent / "pretrain", data)
    assert "\n" not in str(caught.value)


def test_two_of_one_name(data: Path) -> None:
    with pytest.raises(UserError, match="pretrain also has an encoder 'ours'"):
        find_encoders([ExternalEncoder(name="ours", path="encoders/mini")], data.parent / "pretrain", data)


@pytest.mark.skipif("CLOZE_REAL_CHECKPOINT" not in os.environ, reason="CLOZE_REAL_CHECKPOINT names no encoder")
def test_a_real_one(data: Path) -> None:
    (data / "encoders" / "real").symlink_to(os.environ["CLOZE_REAL_CHECKPOINT"])
    found = find_encoders([ExternalEncoder(name="real", path="encoders/real")], data.parent / "pretrain", data)
    assert found[1].kind == "external" and weight_bytes(found[1].folder) > 10**6
