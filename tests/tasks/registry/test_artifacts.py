"""Which published model is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.common.errors import UserError
from model.common.files import write_json
from tasks.registry.artifacts import best_model, encoder_folder, published_models


def publish(folder: Path, encoder: str, benchmark: str, value: float) -> None:
    target = folder / encoder / benchmark
    (target / "model").mkdir(parents=True)
    jobs = [
        {"digest": "a", "seed": 1, "recipe": {"rate": 1}, "headline": {"metric": "accuracy", "value": 1.0}},
        {"digest": "b", "seed": 1, "recipe": {"rate": 2}, "headline": {"metric": "accuracy", "value": value}},
    ]
    write_json(target / "metrics.json", {"encoder": encoder, "benchmark": benchmark, "best": "b", "jobs": jobs})


def test_the_best_on_dev_is_taken(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no fine-tuned model; run `cloze run` first"):
        best_model(tmp_path, "rte")
    for encoder, value in (("one", 60.0), ("two", 70.0)):
        publish(tmp_path, encoder, "rte", value)
    publish(tmp_path, "one", "cola", 5.0)
    assert [(one.encoder, one.benchmark) for one in published_models(tmp_path)] == [
        ("one", "cola"),
        ("one", "rte"),
        ("two", "rte"),
    ]
    best = best_model(tmp_path, "rte")
    assert (best.encoder, best.value, best.directory) == ("two", 70.0, tmp_path / "two" / "rte" / "model")
    assert str(best) == "two's model for rte (accuracy 70.0 on dev)"
    assert best_model(tmp_path, "rte", "one").encoder == "one"
    with pytest.raises(UserError, match="no model for 'sst2'; available: cola, rte"):
        best_model(tmp_path, "sst2")
    with pytest.raises(UserError, match="no model of encoder 'two' for 'cola'; available: one"):
        best_model(tmp_path, "cola", "two")
    (tmp_path / "one" / "rte" / "metrics.json").write_text("{")
    with pytest.raises(UserError, match="metrics.json: not JSON"):
        best_model(tmp_path, "rte")


def test_the_trained_encoder_is_taken(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no pre-trained encoder"):
        encoder_folder(tmp_path, None)
    for name, steps in (("good", 100), ("scratch", 0)):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "metrics.json", {"num_steps": steps})
        write_json(tmp_path / name / "config.json", {})
    assert encoder_folder(tmp_path, None) == tmp_path / "good"
    assert encoder_folder(tmp_path, "scratch") == tmp_path / "scratch"
    assert encoder_folder(Path("none"), str(tmp_path / "good")) == tmp_path / "good"
    with pytest.raises(UserError, match="no encoder 'bad'"):
        encoder_folder(tmp_path, "bad")
    write_json(tmp_path / "scratch" / "metrics.json", {"num_steps": 5})
    with pytest.raises(UserError, match="choose one of good, scratch with --encoder"):
        encoder_folder(tmp_path, None)
