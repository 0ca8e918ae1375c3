"""The batch script, with small scripts instead of Slurm's commands."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.infra.manifests import INFRA

SCRIPT = INFRA / "slurm" / "pretrain.sbatch"


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """An environment whose srun runs $STEP and whose scontrol records its arguments."""
    for name, body in {
        "srun": f'echo "$MASTER_ADDR $@" > {tmp_path}/srun\nsh -c "$STEP"',
        "scontrol": f'if [ "$1" = show ]; then echo first; echo second; else echo "$@" > {tmp_path}/asked; fi',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]"}


@pytest.mark.parametrize(("code", "ends", "requeued"), [(0, 0, False), (1, 1, False), (2, 2, False), (75, 0, True)])
def test_only_interrupted_jobs_are_requeued(
    slurm: dict[str, str], tmp_path: Path, code: int, ends: int, requeued: bool
) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT), "RUN.json"], env=slurm | {"STEP": f"exit {code}"}, timeout=30, check=False
    )
    assert done.returncode == ends
    assert (tmp_path / "asked").exists() is requeued
    if requeued:
        assert (tmp_path / "asked").read_text() == "requeue 7\n"
    started = (tmp_path / "srun").read_text()
    assert started.startswith("first ") and started.endswith("-P -m tasks.jobs.node_supervisor RUN.json\n")


def test_it_survives_the_signal_to_its_step(slurm: dict[str, str], tmp_path: Path) -> None:
    step = f"touch {tmp_path}/up; sleep 1.5; exit 75"
    process = subprocess.Popen(["bash", str(SCRIPT), "RUN.json"], env=slurm | {"STEP": step})
    deadline = time.monotonic() + 20
    while not (tmp_path / "up").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert (tmp_path / "asked").read_text() == "requeue 7\n"


def test_it_requests_the_signal_early_enough() -> None:
    directives = dict(
        line.removeprefix("#SBATCH --").partition("=")[::2]
        for line in SCRIPT.read_text().splitlines()
        if line.startswith("#SBATCH --")
    )
    assert directives["signal"] == "TERM@300" and "requeue" in directives and directives["ntasks-per-node"] == "1"
