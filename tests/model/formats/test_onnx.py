"""Graphs of every head, for any batch and length, held against the model itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model.benchmarks.table import BENCHMARKS, Benchmark
from model.common.errors import UserError
from model.config.encoder import EncoderConfig
from model.config.finetuning import FeatureAdaptation
from model.encoder.encoder import Encoder
from model.finetune.frozen_features import FeatureModel
from model.heads.task_model import TaskModel
from model.objectives.masked_lm import MaskedLanguageHead

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from model.formats import onnx

CONFIG = EncoderConfig(
    vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=40
)


def encoder() -> Encoder:
    torch.manual_seed(0)
    made = Encoder(CONFIG)
    for parameter in made.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


def row(name: str) -> Benchmark:
    return BENCHMARKS[name]


@pytest.mark.parametrize("name", ["mnli", "stsb", "swag", "squad1", "ner"])
def test_every_head(name: str, tmp_path: Path) -> None:
    model = TaskModel(encoder(), row(name), 0.1, seed=1).eval()
    with torch.no_grad():
        model.classifier.weight.normal_(std=0.5)
    path = tmp_path / "model.onnx"
    assert onnx.write_onnx(model, path) <= onnx.TOLERANCE
    other = TaskModel(encoder(), row(name), 0.1, seed=2).eval()
    assert onnx.largest_difference(other, path) > onnx.TOLERANCE, "the comparison can fail"


def test_the_masked_language_model(tmp_path: Path) -> None:
    inside = encoder()
    model = onnx.MaskedLanguageModel(inside, MaskedLanguageHead(CONFIG)).eval()
    path = tmp_path / "fill_mask.onnx"
    assert onnx.write_onnx(model, path) <= onnx.TOLERANCE
    with torch.no_grad():
        model.head.bias[7] += 0.01
    assert onnx.largest_difference(model, path) == pytest.approx(0.01, abs=1e-4)


def test_a_head_on_frozen_features_is_refused(tmp_path: Path) -> None:
    model = FeatureModel(encoder(), row("sst2"), 0.1, FeatureAdaptation(kind="features"), seed=1)
    with pytest.raises(UserError, match="heads on frozen features cannot be exported to ONNX; export the encoder"):
        onnx.write_onnx(model, tmp_path / "model.onnx")


def test_outputs_that_differ_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    monkeypatch.setattr(onnx, "largest_difference", lambda *_: 2e-4)
    with pytest.raises(UserError, match="differ from the model's by 0.0002"):
        onnx.write_onnx(encoder(), path)
    assert not path.exists()
    monkeypatch.setattr(onnx, "largest_difference", lambda *_: float("nan"))
    with pytest.raises(UserError, match="nan"):
        onnx.write_onnx(encoder(), path)
