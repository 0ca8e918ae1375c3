"""`python -P -m model.finetune JOB.json`: fine-tune an encoder on a benchmark in a process of its own.

Everything that a job writes is in its run_dir: result.json last, and only on success.
"""

from __future__ import annotations

import sys
from pathlib import Path

from model.common import process_guard
from model.engine.process import StopRequest, run_guarded
from model.finetune.job import read_work
from model.finetune.run import run_job


def main(arguments: list[str]) -> int:
    """Run the job in JOB.json, and return the exit code."""
    process_guard.guard()
    if len(arguments) != 1:
        print("usage: python -P -m model.finetune JOB.json", file=sys.stderr)
        return 2
    stop = StopRequest()
    return run_guarded(lambda: read_work(Path(arguments[0])), lambda job, status: run_job(job, stop, status))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
