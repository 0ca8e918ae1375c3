"""A project whose last run left encoders, fine-tuned models and a leaderboard, made up, with tiny weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from model.common.files import write_json
from model.config.encoder import EncoderConfig
from tasks.leaderboard.board import build_leaderboard
from tasks.project.project import Project
from tests.tasks.leaderboard.conftest import ENCODERS, Metrics, make_metrics

TASKS = ["sst2", "rte"]
ENCODER = "sample-mini"


def save_tiny(folder: Path, seed: int = 0) -> None:
    """A tiny encoder with its pre-training heads and tokenizer."""
    import torch

    from model.encoder.encoder import Encoder
    from model.formats.hf_folder import save_encoder
    from model.objectives.masked_lm import MaskedLanguageHead, NextSentenceHead
    from model.tokenizer.wordpiece import SPECIAL_TOKENS, make_tokenizer, save_tokenizer

    tokenizer = make_tokenizer([*SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz", *(f"##{sign}" for sign in "abcdefgh")])
    config = EncoderConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(seed)
    encoder, masked, pairs = Encoder(config), MaskedLanguageHead(config), NextSentenceHead(config)
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    save_encoder(encoder, folder, masked=masked, next_sentence=pairs)
    save_tokenizer(tokenizer, folder)


def write_run(project: Project, shift: float = 0.0, seed: int = 0) -> None:
    """What a run leaves below build/: made-up metrics (the pre-trained encoder's scores moved by `shift`)."""
    shutil.rmtree(project.build, ignore_errors=True)
    metrics = make_metrics(project.build, ENCODERS)
    for encoder in ENCODERS:
        save_tiny(metrics.pretrain / encoder["name"], seed)
        for task in metrics.finetune.glob(f"{encoder['name']}/*"):
            if task.name not in TASKS:
                shutil.rmtree(task)
                continue
            _fine_tuned(metrics, encoder["name"], task.name, shift if encoder["kind"] == "pretrained" else 0.0, seed)
    write_json(project.build / "corpus" / "report.json", REPORT)
    build_leaderboard(metrics.finetune, metrics.pretrain, ENCODERS, TASKS, project.build / "leaderboard")


def _fine_tuned(metrics: Metrics, encoder: str, task: str, shift: float, seed: int) -> None:
    content = metrics.read(encoder, task)
    for job in content["jobs"]:
        job["digest"] = f"{int(job['digest'], 16) ^ seed:016x}"  # other weights are other jobs
        job["scores"] = {name: value + shift for name, value in job["scores"].items()}
        job["headline"]["value"] += shift
    metrics.write(encoder, task, content)
    folder = metrics.finetune / encoder / task / "model"
    save_tiny(folder, seed + 1)
    write_json(folder / "head.json", {"benchmark": task, "seed": seed})


REPORT: dict[str, Any] = {
    "documents": 1200,
    "words": 345_678,
    "sources": [
        {
            "name": "wikipedia",
            "language": "en",
            "license": "CC BY-SA 4.0",
            "origin": "a dump",
            "documents": 1000,
            "words": 3,
        },
        {"name": "books", "language": "en", "license": "own | old", "origin": "", "documents": 200, "words": 1},
    ],
    "contamination": {"parts": {"rte/dev": {"items_found": 3}}},
}


@pytest.fixture(scope="session")
def mlflow_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new MLflow's SQLite file; making its tables takes seconds."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def tracked_project(finished_project: Project, mlflow_tables: Path) -> Project:
    """The same, with an MLflow that nothing was told to yet."""
    finished_project.mlflow_home.mkdir(parents=True)
    shutil.copyfile(mlflow_tables, finished_project.mlflow_home / "mlflow.db")
    return finished_project


@pytest.fixture
def finished_project(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project, after one run."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("tasks.leaderboard.board.draw_plots", lambda *_: [])
    made = Project(tmp_path, tmp_path)
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["pretrain"]["encoders"] = [{"name": one["name"], "shape": {"preset": "tiny"}} for one in ENCODERS]
    params["finetune"] |= {"epochs_factor": {}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    lock = {"stages": {"pretrain": {"outs": [{"path": "build/pretrain", "md5": "0" * 32}]}}}
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump(lock))
    write_run(made)
    return made


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def front_matter(card: str) -> dict[str, Any]:
    """The YAML of a model card."""
    found: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return found


def as_json(path: Path) -> Any:
    return json.loads(path.read_text())
