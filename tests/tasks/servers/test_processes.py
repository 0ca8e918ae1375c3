"""Processes that outlive their command are found again, ended whole, and never mistaken for another's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from model.common.files import read_json, write_json
from tasks.servers import processes

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
PARENT = [
    sys.executable,
    "-c",
    "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
    " start_new_session=True); time.sleep(60)",
]


def _children(member: processes.ServerProcess) -> list[psutil.Process]:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        process = member.process
        assert process is not None
        if found := process.children():
            return found
        time.sleep(0.05)
    raise AssertionError("it has started nothing")


def test_a_member_is_found_again_and_ended(tmp_path: Path) -> None:
    processes.launch(tmp_path, "mlflow", SLEEP, os.environ, tmp_path, address="here")
    again = processes.read_process(tmp_path, "mlflow")
    assert again is not None and again.process is not None and again.address == "here"
    assert processes.stop(tmp_path, "mlflow")
    assert not psutil.pid_exists(again.pid) or again.process is None
    assert processes.read_process(tmp_path, "mlflow") is None
    assert not processes.stop(tmp_path, "mlflow")


def test_a_foreign_process_with_the_pid_of_a_dead_member_is_left_alone(tmp_path: Path) -> None:
    foreign = subprocess.Popen(SLEEP)
    try:
        record = {"name": "worker", "pid": foreign.pid, "started": time.time() - 3600}
        write_json(tmp_path / "worker.json", record)
        assert not processes.stop(tmp_path, "worker")
        time.sleep(0.2)
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def test_what_a_member_started_ends_with_it(tmp_path: Path) -> None:
    member = processes.launch(tmp_path, "worker", PARENT, os.environ, tmp_path)
    [child] = _children(member)
    processes.stop(tmp_path, "worker")
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_what_a_killed_member_left_is_swept_up(tmp_path: Path) -> None:
    member = processes.launch(tmp_path, "worker", PARENT, os.environ, tmp_path)
    [child] = _children(member)
    os.kill(member.pid, signal.SIGKILL)
    os.waitpid(member.pid, 0)
    assert not processes.stop(tmp_path, "worker")
    assert child.is_running()
    elsewhere = tmp_path / "elsewhere"
    assert processes.sweep(elsewhere) == 0
    assert processes.sweep(tmp_path) == 1
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_log_is_for_its_owner_alone(tmp_path: Path) -> None:
    processes.launch(tmp_path, "mlflow", SLEEP, os.environ, tmp_path)
    processes.stop(tmp_path, "mlflow")
    assert processes.log_path(tmp_path, "mlflow").stat().st_mode & 0o077 == 0


def test_the_record_names_the_start(tmp_path: Path) -> None:
    member = processes.launch(tmp_path, "mlflow", SLEEP, os.environ, tmp_path)
    try:
        assert read_json(tmp_path / "mlflow.json")["started"] == member.started
    finally:
        processes.stop(tmp_path, "mlflow")
