"""Pre-training runs in tests: in this process or in one of their own, and what they leave behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from model.common.files import write_json
from model.common.metrics_log import read_metrics
from model.common.state_files import read_state
from model.common.status import Status
from model.config.pretraining import PretrainRun
from model.pretrain.training import Pretraining

MakeRun = Callable[..., PretrainRun]


def train(run: PretrainRun, stop_at: int | None = None) -> None:
    """Train in this process; stop (and raise Paused) after `stop_at` steps of this call."""
    asked = iter(range(1, 1_000_000))
    Pretraining(run, Status(run.run_dir / "status.json"), lambda: next(asked) == stop_at).train()


def command(run: PretrainRun, *, program: tuple[str, ...] = ("-m", "model.pretrain"), num_ranks: int = 1) -> list[str]:
    """The command line of a process of its own, under torchrun where there are several ranks."""
    path = run.run_dir.with_suffix(".json")
    write_json(path, run.model_dump(mode="json"))
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}", "--max-restarts=0")
    return [sys.executable, "-P", *(torchrun if num_ranks > 1 else ()), *program, str(path)]


def one_thread() -> dict[str, str]:
    """The environment for such a process."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def result_of(run: PretrainRun) -> dict:
    """result.json."""
    return read_state(run.run_dir / "result.json")


def outputs(run: PretrainRun) -> dict[str, bytes]:
    """The bytes of all that equal runs share: the result, the encoder and the newest checkpoint."""
    names = ("result.json", "encoder/model.safetensors", "encoder/config.json")
    newest = sorted((run.run_dir / "checkpoints").glob("step-*"))[-1]
    found = {name: (run.run_dir / name).read_bytes() for name in names}
    return found | {file.name: file.read_bytes() for file in newest.iterdir()}


def journal_steps(run: PretrainRun, stream: str) -> list[int]:
    """The steps that have entries in the journal's stream, in order."""
    entries = [entry for entry, _ in read_metrics(run.run_dir / "journal.jsonl")]
    return [entry["step"] for entry in entries if entry["stream"] == stream]
