"""The fork server: a process that has imported torch, and runs each training job of one rank in a fork of itself.

`python -P -m model.fork_server` reads requests from standard input, one JSON object per line, and writes events to
standard output in the same way:

    {"job": "JOB.json", "environment": {"CUDA_VISIBLE_DEVICES": "1"}}  start a job (the environment is optional)
    {"cancel": "digest", "grace": 5.0}                 stop it; after that many seconds it is killed

    {"started": "digest", "pid": 4711}
    {"ended": "digest", "code": 0, "signal": null}     its process has ended; success is its result.json alone
    {"refused": {...}, "message": "..."}               an invalid request

A job is the JOB.json of a fine-tuning job or ensemble, or the RUN.json of a pre-training run. When standard input ends,
or on SIGTERM, running jobs are asked to stop and the server ends after them.
"""

from __future__ import annotations

import gc

gc.disable()  # only the forks collect: in the server it would slow down imports, and unshare pages (see gc.freeze)

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

import model.pretrain.training  # noqa: F401, so that forks need not import it
from model.benchmarks.table import BENCHMARKS
from model.common import process_guard
from model.common.files import read_json
from model.common.run_dir import RunDir
from model.common.status import local_time
from model.config.encoder import EncoderConfig
from model.config.finetuning import FinetuneRecipe
from model.config.hardware import HardwareOptions, resolve
from model.config.pretraining import read_run
from model.encoder.encoder import Encoder
from model.engine.distributed import make_fabric
from model.engine.process import StopRequest, exit_code, run_guarded
from model.finetune.job import read_work
from model.finetune.run import run_job
from model.finetune.training import make_trainer
from model.heads.features import Features, Ragged
from model.heads.task_model import TaskModel
from model.pretrain.__main__ import pretrain
from model.tokenizer.wordpiece import SPECIAL_TOKENS, CachedTokenizer, make_tokenizer

GRACE_SECONDS = 5.0  # that a job may take to stop before it is killed, when the server ends


class Server:
    """Waits for requests, for its children and for the end of its guard pipe.

    It has only one thread: a fork copies the one that calls it, and locks that another held would stay locked.
    """

    def __init__(self, requests: int, events: int, guard_pipe: int | None) -> None:
        self._requests, self._events, self._guard_pipe = requests, events, guard_pipe
        self._digests: dict[int, str] = {}  # of running jobs, by process id
        self._kill_at: dict[int, float] = {}  # of those that were asked to stop
        self._buffer = b""
        self._ending = False
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._watched = [end for end in (self._wake_read, requests, guard_pipe) if end is not None]

    def serve(self) -> None:
        """Serve until standard input ends or SIGTERM comes, and all jobs have ended."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only wakes the server, as any signal does
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        while not self._ending or self._digests:
            patience = max(0.01, min(self._kill_at.values()) - time.monotonic()) if self._kill_at else None
            ready, _, _ = select.select(self._watched, [], [], patience)
            if self._guard_pipe in ready:
                os.killpg(os.getpgrp(), signal.SIGKILL)
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    while os.read(self._wake_read, 4096):
                        continue
            if self._requests in ready:
                self._read_requests()
            self._reap()
            for pid, deadline in list(self._kill_at.items()):  # SIGTERM may add some meanwhile
                if time.monotonic() >= deadline:
                    os.kill(pid, signal.SIGKILL)

    def _read_requests(self) -> None:
        chunk = os.read(self._requests, 65536)
        if not chunk:
            self._watched.remove(self._requests)
            self._end()
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in filter(None, lines):
            self._handle(line)

    def _handle(self, line: bytes) -> None:
        request: Any = None
        try:
            request = json.loads(line)
            if "cancel" in request:
                pids = [pid for pid, digest in self._digests.items() if digest == request["cancel"]]
                self._stop(pids, float(request["grace"]))
            elif not self._ending:
                self._start(Path(request["job"]), request.get("environment", {}))
        except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
            self._emit({"refused": request, "message": f"{type(error).__name__}: {error}"})

    def _start(self, path: Path, environment: dict[str, str]) -> None:
        document = read_json(path)
        digest, run_dir = str(document["digest"]), RunDir(Path(document["run_dir"]))
        if digest in self._digests.values():
            raise ValueError(f"job {digest} is running already")
        run_dir.path.mkdir(parents=True, exist_ok=True)
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_job(path, run_dir, environment, server)
        self._digests[pid] = digest
        self._emit({"started": digest, "pid": pid})

    def _become_job(self, path: Path, run_dir: RunDir, environment: dict[str, str], server: int) -> NoReturn:
        """In the fork: run the job, and exit without the server's clean-up."""
        code = 1
        try:
            gc.enable()
            # The kernel's signal follows the thread that forked, which is the server's only one.
            process_guard.die_with_parent()
            if os.getppid() != server:
                os._exit(1)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            stop = StopRequest()
            for descriptor in (self._requests, self._events, self._wake_read, self._wake_write):
                os.close(descriptor)
            log = os.open(run_dir.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            for descriptor, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
                os.dup2(source, descriptor)
            os.environ.update(environment)
            process_guard.guard("self")
            print(f"started as process {os.getpid()} at {local_time()}", flush=True)
            if path.name == run_dir.pretrain_config.name:
                code = run_guarded(
                    lambda: read_run(path), lambda run, status: pretrain(run, stop, status), run_dir.status
                )
            else:
                code = run_guarded(
                    lambda: read_work(path), lambda job, status: run_job(job, stop, status), run_dir.status
                )
        except BaseException as error:
            code = exit_code(error)
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(ValueError, OSError):  # a closed stream, a full disk
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _stop(self, pids: Iterable[int], grace_seconds: float) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)  # not reaped yet, so the number is still the child's
            self._kill_at.setdefault(pid, time.monotonic() + grace_seconds)

    def _end(self) -> None:
        self._ending = True
        self._stop(self._digests, GRACE_SECONDS)

    def _reap(self) -> None:
        while self._digests:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            digest, code = self._digests.pop(pid), os.waitstatus_to_exitcode(status)
            self._kill_at.pop(pid, None)
            self._emit({"ended": digest, "code": code, "signal": -code if code < 0 else None})

    def _emit(self, event: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody listens: the end of standard input follows
            os.write(self._events, (json.dumps(event) + "\n").encode())


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
    gc.freeze()
    Server(requests, events, int(end) if end else None).serve()
    return 0


if __name__ == "__main__":
    os._exit(main())  # freeing all modules would take a second; nothing is left to flush
