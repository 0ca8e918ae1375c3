"""Metrics as the stages leave them, made up: two encoders on thirteen benchmarks, two recipes, three seeds."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ENCODERS = [{"name": "sample-mini", "kind": "pretrained"}, {"name": "from-scratch", "kind": "scratch"}]

# benchmark → metrics with (pre-trained, from scratch, majority), and training and dev rows
BENCHMARKS: dict[str, tuple[dict[str, tuple[float, float, float]], int, int]] = {
    "cola": ({"matthews": (61.3, 22.4, 0.0), "accuracy": (81.0, 64.0, 52.0)}, 2400, 300),
    "sst2": ({"accuracy": (91.8, 71.5, 50.9)}, 2600, 300),
    "mrpc": ({"f1": (86.2, 79.9, 79.4), "accuracy": (81.2, 70.1, 65.8)}, 1400, 200),
    "qqp": ({"f1": (83.9, 70.2, 53.8), "accuracy": (87.0, 75.9, 63.2)}, 2600, 300),
    "stsb": ({"spearman": (79.4, 48.1, 0.0), "pearson": (80.3, 49.5, 0.0)}, 1600, 250),
    "mnli": (
        {
            "accuracy": (74.1, 52.6, 34.5),
            "accuracy_matched": (74.9, 53.0, 35.1),
            "accuracy_mismatched": (73.3, 52.2, 33.9),
        },
        3000,
        400,
    ),
    "qnli": ({"accuracy": (84.4, 62.3, 50.5)}, 2400, 300),
    "rte": ({"accuracy": (66.9, 56.2, 53.1)}, 700, 150),
    "wnli": ({"accuracy": (57.1, 56.3, 56.3)}, 240, 71),
    "squad1": ({"f1": (71.8, 30.4, 4.2), "exact": (63.0, 22.2, 0.0)}, 2200, 300),
    "squad2": ({"f1": (66.0, 51.0, 50.1), "exact": (61.7, 50.3, 50.1)}, 2600, 300),
    "swag": ({"accuracy": (68.3, 41.0, 26.2)}, 1800, 250),
    "ner": ({"f1": (88.9, 70.4, 0.0), "precision": (88.1, 70.0, 0.0), "recall": (89.7, 70.8, 0.0)}, 1500, 250),
}


@dataclass
class Metrics:
    """A folder of made-up metrics, and hands to change them."""

    root: Path

    @property
    def finetune(self) -> Path:
        return self.root / "finetune"

    @property
    def pretrain(self) -> Path:
        return self.root / "pretrain"

    def path(self, encoder: str, benchmark: str) -> Path:
        return self.finetune / encoder / benchmark / "metrics.json"

    def read(self, encoder: str, benchmark: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.path(encoder, benchmark).read_text())
        return content

    def write(self, encoder: str, benchmark: str, content: dict[str, Any]) -> None:
        path = self.path(encoder, benchmark)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


def finetune_metrics(encoder: dict[str, str], benchmark: str, num_seeds: int = 3) -> dict[str, Any]:
    """metrics.json of one encoder on one benchmark; the second recipe (3e-4) is the better one."""
    noise = random.Random(f"{encoder['name']} {benchmark}")
    metrics, num_train_rows, num_dev_rows = BENCHMARKS[benchmark]
    pretrained = encoder["kind"] == "pretrained"
    headline = next(iter(metrics))
    jobs = []
    for learning_rate, penalty in ((1e-4, 2.5), (3e-4, 0.0)):
        for seed in range(num_seeds):
            shift = noise.gauss(0, 1.1) - penalty
            scores = {
                name: round(max(values[0] if pretrained else values[1], 0) + shift, 4)
                for name, values in metrics.items()
            }
            degenerate = benchmark == "wnli" and (seed == 1 or not pretrained)
            if degenerate:
                scores = {name: values[2] for name, values in metrics.items()}
            num_epochs = 3 if pretrained else 9
            steps = num_epochs * num_train_rows // 32
            target = scores[headline]
            start = metrics[headline][2]
            jobs.append(
                {
                    "digest": f"{noise.getrandbits(64):016x}",
                    "encoder": encoder["name"],
                    "benchmark": benchmark,
                    "seed": seed,
                    "recipe": {
                        "batch_size": 32,
                        "learning_rate": learning_rate,
                        "num_epochs": num_epochs,
                        "max_length": 64,
                        "warmup_fraction": 0.1,
                        "weight_decay": 0.01,
                    },
                    "scores": scores,
                    "headline": {"metric": headline, "value": target},
                    "majority": {name: values[2] for name, values in metrics.items()},
                    "degenerate": degenerate,
                    "num_train_rows": num_train_rows,
                    "num_dev_rows": num_dev_rows,
                    "num_skipped_rows": 3 if benchmark == "qqp" else 0,
                    "curve": [
                        {
                            "step": step,
                            "loss": 0.7 * math.exp(-3 * step / steps * (0.1 if degenerate else 1))
                            + abs(noise.gauss(0, 0.03)),
                        }
                        for step in range(5, steps + 1, 5)
                    ],
                    "evaluations": [
                        {
                            "epoch": epoch,
                            "step": epoch * steps // num_epochs,
                            "scores": {
                                headline: start + (target - start) * (1 - math.exp(-2.5 * epoch / num_epochs)) / 0.918
                            },
                        }
                        for epoch in range(1, num_epochs + 1)
                    ],
                }
            )
    return {
        **{key: encoder[key] for key in ("name", "kind")},
        "encoder": encoder["name"],
        "benchmark": benchmark,
        "jobs": jobs,
        "best": jobs[0]["digest"],
    }


def pretrain_metrics(encoder: dict[str, str], num_steps: int = 900) -> dict[str, Any]:
    """metrics.json of pre-training: a curve that falls, or nothing for an encoder from scratch."""
    noise = random.Random(encoder["name"])
    steps = range(10, num_steps + 1, 10) if encoder["kind"] == "pretrained" else range(0)

    def row(step: int, spread: float) -> dict[str, float]:
        done = step / num_steps
        return {
            "step": step,
            "mlm_loss": 1.9 + 5.6 * math.exp(-5 * done) + noise.gauss(0, spread),
            "nsp_loss": 0.25 + 0.45 * math.exp(-4 * done) + noise.gauss(0, spread / 4),
            "mlm_accuracy": 0.58 * (1 - math.exp(-4 * done)) + noise.gauss(0, spread / 8),
            "nsp_accuracy": 0.93 - 0.43 * math.exp(-4 * done) + noise.gauss(0, spread / 8),
        }

    heldout = [row(step, 0.01) for step in steps if step % 100 == 0]
    return {
        "digest": f"{noise.getrandbits(64):016x}",
        "name": encoder["name"],
        "num_steps": len(steps) * 10,
        "num_tokens_seen": len(steps) * 10 * 64 * 128,
        "final": {f"heldout/{key}": value for key, value in (heldout[-1].items() if heldout else ())},
        "curve": [row(step, 0.12) for step in steps],
        "heldout": heldout,
        "versions": {"torch": "2"},
    }


def make_metrics(root: Path, encoders: list[dict[str, str]]) -> Metrics:
    """Write the metrics of `encoders` on all thirteen benchmarks below `root`."""
    metrics = Metrics(root)
    for encoder in encoders:
        folder = metrics.pretrain / encoder["name"]
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text(json.dumps(pretrain_metrics(encoder)))
        for benchmark in BENCHMARKS:
            metrics.write(encoder["name"], benchmark, finetune_metrics(encoder, benchmark))
    return metrics


@pytest.fixture
def metrics(tmp_path: Path) -> Metrics:
    """All metrics of ENCODERS, in a folder of their own."""
    return make_metrics(tmp_path / "build", ENCODERS)


@pytest.fixture(scope="session", name="encoders")
def _encoders() -> list[dict[str, str]]:
    return ENCODERS


@pytest.fixture(scope="session", name="benchmarks")
def _benchmarks() -> list[str]:
    return list(BENCHMARKS)
