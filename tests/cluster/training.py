"""A pre-training of a `Clone` that tests watch from outside."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from model.common.files import read_json
from tests.flows.clone import Clone
from tests.waiting import wait_for

NUM_STEPS = 500
MACHINE = {"accelerator": "cpu", "precision": "fp32", "num_threads": 1, "compile": "off"}


def longer(clone: Clone) -> Clone:
    """Train for `NUM_STEPS`, from the beginning, with a checkpoint every 25 steps."""

    def change(content: dict[str, Any]) -> None:
        recipe = content["pretrain"]["recipe"]
        recipe["phases"][0]["num_steps"] = NUM_STEPS
        recipe["checkpoint_every_steps"] = 25

    clone.params(change)
    for folder in (clone.root / "build" / "runs" / "pretrain").iterdir():
        shutil.rmtree(folder)  # of the run before
    return clone


def run_dir(clone: Clone) -> Path:
    """The run directory of the encoder that trains; a path without a directory until then."""
    found = list((clone.root / "build" / "runs" / "pretrain").glob("pretrained-*"))
    return found[0] if found else clone.root / "none"


def status(clone: Clone) -> dict[str, Any]:
    """status.json; empty while there is none."""
    path = run_dir(clone) / "status.json"
    try:
        return dict(read_json(path))
    except FileNotFoundError:
        return {}


def step(clone: Clone) -> int:
    """The last step in status.json."""
    return int(status(clone).get("step", 0))


def saved_steps(clone: Clone) -> list[int]:
    """Steps with a checkpoint."""
    return sorted(int(path.name.partition("-")[2]) for path in (run_dir(clone) / "checkpoints").glob("step-*"))


def seconds_until(clone: Clone, reached: int, seconds: float) -> float:
    """Wait until training is beyond a step, and return how long that took."""
    started = time.monotonic()
    wait_for(lambda: step(clone) > reached, seconds)
    return time.monotonic() - started


def processes(part: str, folder: Path) -> list[psutil.Process]:
    """Processes on any host whose command line contains both texts, oldest first."""
    found = [one for one in psutil.process_iter(["cmdline", "create_time"]) if one.info["cmdline"]]
    lines = [(one, " ".join(one.info["cmdline"])) for one in found]
    mine = [one for one, line in lines if part in line and str(folder) in line]
    return sorted(mine, key=lambda one: float(one.info["create_time"]))


def weights(folder: Path) -> bytes:
    """The weights of the encoder in build/pretrain."""
    return (folder / "pretrained" / "model.safetensors").read_bytes()


def logged_steps(clone: Clone) -> list[int]:
    """Steps of the training losses in the metrics log."""
    lines = (run_dir(clone) / "journal.jsonl").read_text().splitlines()
    return [row["step"] for row in map(yaml.safe_load, lines) if "train/loss" in row["metrics"]]


def said(clone: Clone) -> str:
    """Output of the commands that the test has started."""
    path = clone.root / "test.log"
    return path.read_text() if path.exists() else ""


def job_log(clone: Clone) -> str:
    """Output of the Slurm job."""
    path = run_dir(clone) / "log.txt"
    return path.read_text() if path.exists() else ""
