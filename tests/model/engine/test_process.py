"""How a training process ends when it is asked to stop."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

_PROCESS = """
import sys, time
from model.engine.process import StopRequest

class Slow:
    def __del__(self, sleep=time.sleep, write=sys.stdout.write, flush=sys.stdout.flush):
        write("ends\\n")
        flush()
        sleep(1)

slow, stop = Slow(), StopRequest()
print("runs", flush=True)
while not stop():
    time.sleep(0.01)
"""


def test_a_repeated_request_does_not_kill_a_process_that_exits() -> None:
    process = subprocess.Popen([sys.executable, "-c", _PROCESS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "runs\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "ends\n"  # Python has put the default signal handlers back
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
