"""Fine-tunes an encoder on a benchmark: `python -P -m model.finetune JOB.json`.

Everything that a job writes lies under its run_dir: result.json last, and there only on success.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from model.common import process_guard
from model.common.errors import UserError
from model.common.files import read_json
from model.common.status import Fault, Status
from model.finetune.ensemble import run_ensemble
from model.finetune.job import EnsembleJob, Job, read_job
from model.finetune.loop import NonFinite, Stopped
from model.finetune.run import FinetuneRun


def run_job(job: Job, stop: threading.Event | None = None) -> str:
    """Run a job to its end, or until `stop` is set.

    Returns:
        "done", or "to be continued" when it was stopped; called again it goes on from its checkpoint if it
        left one.

    Raises:
        UserError: a mistake in the job, its data or its encoder.
        NonFinite: the loss is not a number.
    """
    if _has_result(job):
        return "done"
    run = FinetuneRun(job, stop or threading.Event())
    try:
        run.execute()
    except Stopped:
        run.status.end("to be continued", "stopped; it goes on when it is started again")
        return "to be continued"
    run.status.end("done")
    return "done"


def run_guarded(load: Callable[[], Job | EnsembleJob], status_path: Path | None, stop: threading.Event) -> int:
    """Run a job, and turn what goes wrong into status.json and an exit code.

    A user's mistake is one line on standard error and 2, any other failure 1; 0 says nothing about success.
    `status_path` serves for a job that cannot even be loaded.
    """
    try:
        job = load()
        status_path = job.status_path
        if isinstance(job, EnsembleJob):
            run_ensemble(job)
        else:
            run_job(job, stop)
        return 0
    except UserError as error:
        _fail(status_path, "user", str(error))
        return 2
    except NonFinite as error:
        _fail(status_path, "non-finite", str(error))
        return 1
    except (MemoryError, torch.OutOfMemoryError) as error:
        _fail(status_path, "memory", _first_line(error) or "out of memory")
        return 1
    except Exception as error:
        out_of_memory = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
        message = f"{type(error).__name__}: {_first_line(error)}"
        _fail(status_path, "memory" if out_of_memory else "internal", message)
        if out_of_memory:
            return 1
        raise


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _has_result(job: Job) -> bool:
    return job.result_path.exists() and read_json(job.result_path).get("digest") == job.digest


def _fail(status_path: Path | None, fault: Fault, message: str) -> None:
    print(message, file=sys.stderr, flush=True)
    if status_path is not None:
        Status(status_path).end("failed", message, fault)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def main(arguments: list[str]) -> int:
    """Run the job in JOB.json."""
    process_guard.guard()
    if len(arguments) != 1:
        print("usage: python -P -m model.finetune JOB.json", file=sys.stderr)
        return 2
    return run_guarded(lambda: read_job(Path(arguments[0])), None, stop_on_signals())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
