"""Warm workers: a fork server that has imported torch and runs each fine-tuning job in a fork of itself.

`python -P -m model.finetune.fork_server` reads requests from standard input, a JSON object a line, and writes events to
standard output in the same way:

    {"job": "JOB.json", "environment": {"CUDA_VISIBLE_DEVICES": "1"}}   start a job (the environment is
    optional) {"cancel": "digest"}                       ask it to stop; after 5 s it is killed
    {"started": "digest", "pid": 4711}
    {"ended": "digest", "code": 0, "signal": null}    how its process ended; success is its result.json alone
    {"refused": {...}, "message": "..."}       a request that no job came of

When standard input ends, or on SIGTERM, running jobs are asked to stop and the server ends after them.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from model.benchmarks.table import BENCHMARKS
from model.common import process_guard
from model.common.files import read_json
from model.config.encoder import EncoderConfig
from model.config.finetuning import FinetuneRecipe
from model.config.hardware import HardwareOptions, resolve
from model.encoder.encoder import Encoder
from model.engine.distributed import make_fabric
from model.engine.process import StopRequest
from model.finetune.job import read_work
from model.finetune.run import run_as_process
from model.finetune.training import make_trainer
from model.heads.features import Features, Ragged
from model.heads.task_model import TaskModel
from model.tokenizer.wordpiece import SPECIAL_TOKENS, CachedTokenizer, make_tokenizer

GRACE_SECONDS = 5.0
"""How long a job may take to stop before it is killed."""
_LOG = "log.txt"
_RUN_DIR = "run_dir"


@dataclass
class _Child:
    digest: str
    kill_at: float | None = None


class Server:
    """One thread that waits for requests, for its children and for the end of its lifeline.

    It has no other thread: a fork copies the one that calls it, and what another held locked stays locked.
    """

    def __init__(self, requests: int, events: int, lifeline_end: int | None) -> None:
        self._requests = requests
        self._events = events
        self._lifeline_end = lifeline_end
        self._children: dict[int, _Child] = {}
        self._buffer = b""
        self._ending = False
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)

    def serve(self) -> None:
        """Serve until standard input ends or SIGTERM comes, and all jobs have ended."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it only has to wake the selector
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        self._selector.register(self._requests, selectors.EVENT_READ, self._read_requests)
        if self._lifeline_end is not None:
            self._selector.register(self._lifeline_end, selectors.EVENT_READ, self._lifeline_ended)
        while not self._ending or self._children:
            for key, _ in self._selector.select(self._patience()):
                key.data()
            self._reap()
            self._kill_late()

    def _read_requests(self) -> None:
        chunk = os.read(self._requests, 65536)
        if not chunk:
            self._selector.unregister(self._requests)
            self._end()
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in filter(None, lines):
            self._handle(line)

    def _handle(self, line: bytes) -> None:
        request: Any = None
        try:
            request = json.loads(line)
            if "cancel" in request:
                self._cancel(request["cancel"])
            elif not self._ending:
                self._start(Path(request["job"]), request.get("environment", {}))
        except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
            self._emit({"refused": request, "message": f"{type(error).__name__}: {error}"})

    def _start(self, path: Path, environment: dict[str, str]) -> None:
        document = read_json(path)
        digest, run_dir = str(document["digest"]), Path(document[_RUN_DIR])
        if any(child.digest == digest for child in self._children.values()):
            raise ValueError(f"job {digest} is running already")
        run_dir.mkdir(parents=True, exist_ok=True)
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_job(path, run_dir, environment, server)
        self._children[pid] = _Child(digest)
        self._emit({"started": digest, "pid": pid})

    def _become_job(self, path: Path, run_dir: Path, environment: dict[str, str], server: int) -> NoReturn:
        """In the fork: run the job, and leave without the server's clean-up."""
        code = 1
        try:
            # The kernel's signal follows the thread that forked, which is the server's only one.
            process_guard.die_with_parent()
            if os.getppid() != server:
                os._exit(1)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            stop = StopRequest()
            self._selector.close()
            for descriptor in (self._requests, self._events, self._wake_read, self._wake_write):
                os.close(descriptor)
            _redirect(run_dir / _LOG)
            os.environ.update(environment)
            process_guard.guard("self")
            print(f"started as process {os.getpid()} at {time.time():.3f}", flush=True)
            code = run_as_process(lambda: read_work(path), run_dir / "status.json", stop)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(ValueError):  # a closed stream
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _cancel(self, digest: str) -> None:
        for pid, child in self._children.items():
            if child.digest == digest:
                self._ask_to_stop(pid, child)

    def _ask_to_stop(self, pid: int, child: _Child) -> None:
        os.kill(pid, signal.SIGTERM)  # not reaped yet, so the number is still the child's
        if child.kill_at is None:
            child.kill_at = time.monotonic() + GRACE_SECONDS

    def _end(self) -> None:
        self._ending = True
        for pid, child in self._children.items():
            self._ask_to_stop(pid, child)

    def _lifeline_ended(self) -> None:
        os.killpg(os.getpgrp(), signal.SIGKILL)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                continue

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            ended = {
                "ended": self._children.pop(pid).digest,
                "code": code,
                "signal": -code if code < 0 else None,
            }
            self._emit(ended)

    def _kill_late(self) -> None:
        for pid, child in self._children.items():
            if child.kill_at is not None and time.monotonic() >= child.kill_at:
                os.kill(pid, signal.SIGKILL)

    def _patience(self) -> float | None:
        """How long the selector may wait: until the next job has to be killed."""
        times = [child.kill_at for child in self._children.values() if child.kill_at is not None]
        return max(0.01, min(times) - time.monotonic()) if times else None

    def _emit(self, event: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody listens: the end of standard input follows
            os.write(self._events, (json.dumps(event) + "\n").encode())


def _redirect(log_path: Path) -> None:
    """Standard output and error to the end of a file, standard input from nowhere."""
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, target)


def preload() -> None:
    """Train a toy model for two steps, so that kernels are loaded and compiled code is cached before the first fork.

    On a CPU with one thread only: neither CUDA nor a thread pool survives a fork.
    """
    torch.set_num_threads(1)
    CachedTokenizer(make_tokenizer(SPECIAL_TOKENS)).encode_lines(["a word", "é"])
    config = EncoderConfig(vocab_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    sequences = Ragged(np.arange(32, dtype=np.int32) % 16, np.array([0, 8, 16, 28, 32]))
    features = Features(sequences, np.array([4, 4, 4, 4]), np.array([0, 1, 0, 1]))
    for precision, bias_correction in (("fp32", True), ("bf16", False)):
        options = HardwareOptions.parse({"accelerator": "cpu", "precision": precision, "num_threads": 1}, "preload")
        model = TaskModel(Encoder(config), BENCHMARKS["cola"], dropout=0.1, seed=0)
        recipe = FinetuneRecipe(batch_size=4, num_epochs=1, bias_correction=bias_correction)
        fabric = make_fabric(options, resolve(options))
        make_trainer(fabric, model, features, recipe, seed=0, pad_id=0, bf16=precision == "bf16").train()


def main() -> int:
    """Serve on standard input and output; what libraries print goes to standard error."""
    end = os.environ.get(process_guard.VARIABLE)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads do not survive a fork
    events = os.dup(1)
    os.dup2(2, 1)
    requests = os.dup(0)
    preload()
    gc.collect()
    gc.freeze()  # so that collections in the forks do not touch, and copy, the server's pages
    Server(requests, events, int(end) if end else None).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
