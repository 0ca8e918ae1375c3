"""Encoders and benchmark files of a few bytes, for what plans are made of; and results made up for the plan's jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.common.files import write_json
from tasks.finetune.plan import EncoderSource, PlannedFinetune, Planner
from tasks.params.finetune import FinetuneParams
from tests.tasks.finetune.tiny import pretrained, torch_as_it_was

__all__ = ["pretrained", "torch_as_it_was"]  # fixtures

FILES = {
    "rte": ("glue/RTE/train.tsv", "glue/RTE/dev.tsv"),
    "mrpc": ("glue/MRPC/train.tsv", "glue/MRPC/dev.tsv"),
    "mnli": ("glue/MNLI/train.tsv", "glue/MNLI/dev_matched.tsv", "glue/MNLI/dev_mismatched.tsv"),
    "squad1": ("squad/train-v1.1.json", "squad/dev-v1.1.json"),
    "squad2": ("squad/train-v2.0.json", "squad/dev-v2.0.json"),
}
CONFIG = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 64, "num_attention_heads": 2}


class World:
    """Plans in a folder, and hands that end jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs, self.published, self.data = folder / "runs", folder / "published", folder / "data"
        for names in FILES.values():
            for name in names:
                (self.data / name).parent.mkdir(parents=True, exist_ok=True)
                (self.data / name).write_text(name)
        encoder = folder / "encoder"
        write_json(encoder / "config.json", CONFIG)
        (encoder / "model.safetensors").write_bytes(b"weights")
        self.encoder = EncoderSource("ours", encoder, "pretrained", "e1")

    def planner(self, **params: Any) -> Planner:
        params = {"benchmarks": {"mnli": None, "rte": None}, **params}
        return Planner(FinetuneParams.parse(params, "test"), [self.encoder], self.data, self.runs, 1)

    def result(self, planned: PlannedFinetune, value: float, degenerate: bool = False) -> dict[str, Any]:
        job = planned.job
        return {
            "digest": job.digest,
            "encoder": job.encoder_name,
            "benchmark": job.benchmark,
            "seed": job.seed,
            "recipe": job.recipe.model_dump(mode="json"),
            "scores": {"accuracy": value},
            "headline": {"metric": "accuracy", "value": value},
            "degenerate": degenerate,
            "num_train_rows": 1,
            "num_dev_rows": 1,
        }

    def end(self, planned: PlannedFinetune, value: float, degenerate: bool = False) -> dict[str, Any]:
        """Leave what a job leaves."""
        result = self.result(planned, value, degenerate)
        planned.run_dir.model.mkdir(parents=True, exist_ok=True)
        (planned.run_dir.model / "config.json").write_text("{}")
        planned.run_dir.outputs.write_bytes(b"")
        write_json(planned.run_dir.result, result)
        return result


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def by_rate() -> Callable[[PlannedFinetune], float]:
    """A made-up score: the higher the rate the better, seeds differ a little."""
    return lambda planned: 1e6 * planned.job.recipe.learning_rate + planned.job.seed / 10
