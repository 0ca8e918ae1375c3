"""`python -P -m model.pretrain RUN.json`: pre-train one encoder in a process of its own.

The process reads a configuration file and writes a result file: success is run_dir/result.json, written last. On
SIGTERM, Ctrl-C and `pause_after_seconds` it saves at the next step boundary and exits with 0 and the status "to be
continued"; the next process resumes from the newest checkpoint. A user's mistake exits with 2 and one line on standard
error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from model.common import process_guard
from model.common.status import Status
from model.config.hardware import WAITING
from model.config.pretraining import PretrainRun, read_run
from model.engine.process import StopRequest, run_guarded


def pretrain(run: PretrainRun, stop: StopRequest, status: Status | None) -> None:
    """Train the encoder of `run` to its end; see `model.pretrain.training.Pretraining.train` for the errors."""
    if status is not None:
        status.running(0, run.recipe.num_steps)
    stop.after(run.recipe.pause_after_seconds)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the deterministic mode asks for it
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)
    from model.pretrain.training import Pretraining  # imports torch, which reads these variables

    Pretraining(run, status, stop).train()


def main(arguments: list[str]) -> int:
    """Run the job of the file that `arguments` name, and return the exit code."""
    process_guard.guard()
    if len(arguments) != 1:
        print("usage: python -P -m model.pretrain RUN.json", file=sys.stderr)
        return 2
    stop = StopRequest()
    return run_guarded(lambda: read_run(Path(arguments[0])), lambda run, status: pretrain(run, stop, status))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
