from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

PARENT = """
import subprocess, sys, time
from tasks.jobs.local_launcher import start
child = start([sys.executable, "-c", {child!r}], None)
print(child.pid, flush=True)
time.sleep(60)
"""
GUARDED = "from model.common import process_guard; process_guard.guard(); import time; time.sleep(60)"
FOREIGN = "import sys; from model.common import process_guard; sys.exit(process_guard.main(['sleep', '60']))"


def gone(pid: int, within_seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("child", [GUARDED, FOREIGN])
def test_a_child_dies_with_a_parent_that_is_killed(child: str, tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT.format(child=child)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(1.0)  # let it set up its guard
    family = [pid, *(grandchild.pid for grandchild in psutil.Process(pid).children(recursive=True))]
    assert all(psutil.pid_exists(member) for member in family)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert all(gone(member) for member in family)
