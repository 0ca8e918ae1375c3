"""The pool with real processes: a server that is killed, jobs that run out of memory."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from model.common.files import read_json
from model.config.encoder import EncoderConfig
from model.encoder.encoder import Encoder
from model.formats.hf_folder import save_encoder
from tasks.finetune.plan import EncoderSource, Planner
from tasks.finetune.results import run_one
from tasks.finetune.scheduler import JobQueue, JobScheduler, MemoryEstimator
from tasks.jobs.local_launcher import WorkerPool
from tasks.jobs.resources import ResourcePool
from tasks.jobs.supervision import JobFailed
from tasks.params.finetune import FinetuneParams
from tests.model.conftest import write_small_data, write_small_encoder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are Linux's")
RECIPE = {"batch_size": 16, "learning_rate": 3e-3, "num_epochs": 1, "max_length": 48}
MACHINE = {"accelerator": "cpu", "precision": "fp32", "num_threads": 1}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with WorkerPool(tmp_path_factory.mktemp("pool") / "workers.log") as pool:
        yield pool


def server_of(pool: WorkerPool, folder: Path) -> psutil.Process:
    """The pool's fork server, which has run a job."""
    [short] = scheduler_of(folder).jobs()
    run_one(short, folder / "published", pool, None, threading.Event())
    assert pool._server is not None
    return psutil.Process(pool._server.pid)


def scheduler_of(folder: Path, is_large: bool = False, **params: Any) -> JobScheduler:
    write_small_data(folder / "data")
    write_small_encoder(folder / "encoder")
    if is_large:  # 50 MB of weights, four times as much in training
        known = read_json(folder / "encoder" / "config.json")["vocab_size"]
        sizes = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}
        save_encoder(Encoder(EncoderConfig(vocab_size=known, **sizes)), folder / "encoder")
    values = {"recipe": RECIPE, "machine": MACHINE, "benchmarks": {"sst2": None}, **params}
    encoder = EncoderSource("small", folder / "encoder", "scratch", "e")
    planner = Planner(FinetuneParams.parse(values, "test"), [encoder], folder / "data", folder / "runs", 1)
    return JobScheduler(planner, folder / "runs", folder / "published")


def test_a_job_is_lost_with_its_server_and_runs_on_the_next(pool: WorkerPool, tmp_path: Path) -> None:
    [planned] = scheduler_of(tmp_path, recipe={**RECIPE, "num_epochs": 400}).jobs()
    server = server_of(pool, tmp_path / "short")
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(run_one, planned, tmp_path / "published", pool, None, threading.Event())
        while not planned.run_dir.status.exists():
            time.sleep(0.05)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(JobFailed) as caught:
            future.result(30)
    assert caught.value.fault == "lost"
    [short] = scheduler_of(tmp_path).jobs()
    result = run_one(short, tmp_path / "published", pool, None, threading.Event())
    assert result["digest"] == short.digest
    timing = read_json(short.run_dir.timing)
    assert 0 < timing["shared_memory_bytes"] < timing["peak_memory_bytes"]


def test_a_job_on_the_next_server_outlives_the_news_of_the_previous_one(pool: WorkerPool, tmp_path: Path) -> None:
    [planned] = scheduler_of(tmp_path).jobs()
    server = server_of(pool, tmp_path / "short")
    assert pool._server is not None
    os.kill(server.pid, signal.SIGKILL)
    pool._server.wait()
    result = run_one(planned, tmp_path / "published", pool, None, threading.Event())
    assert result["digest"] == planned.digest
    assert planned.run_dir.log.read_text().count("started as process") == 1


@pytest.mark.slow
def test_a_job_of_two_ranks_runs_under_torchrun(pool: WorkerPool, tmp_path: Path) -> None:
    [planned] = scheduler_of(tmp_path, machine={**MACHINE, "num_devices": 2, "strategy": "ddp"}).jobs()
    result = run_one(planned, tmp_path / "published", pool, None, threading.Event())
    assert result["digest"] == planned.digest and result["headline"]["value"] > 0
    assert planned.run_dir.handle.exists(), "new processes, not a warm worker"


def test_a_job_that_ran_out_of_memory_runs_again_alone(pool: WorkerPool, tmp_path: Path) -> None:
    """Two jobs side by side under a limit that lets neither live; it is gone when each has the machine alone."""
    scheduler = scheduler_of(tmp_path, is_large=True, seeds=[1, 2], recipe={**RECIPE, "batch_size": 120})
    queue = JobQueue(scheduler, ResourcePool(2, 10**12), MemoryEstimator())
    server = server_of(pool, tmp_path / "short")
    limit = server.memory_info().vms + 180 * 2**20
    resource.prlimit(server.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    together: list[int] = []
    failures: list[str] = []

    def run(name: str) -> dict[str, Any]:
        work, _ = queue.work(name)
        together.append(len(queue._pool.allocations))
        return run_one(work, scheduler.published_dir, pool, None, threading.Event())  # type: ignore[arg-type]

    with ThreadPoolExecutor(2) as executor:
        running: dict[str, Future[Any]] = {}
        while True:
            while (name := queue.take()) is not None and "ensemble" not in name:
                running[name] = executor.submit(run, name)
            if not running:
                break
            name = next(iter(running))
            future = running.pop(name)
            error = future.exception(60)
            outcome = future.result() if error is None else error
            failures += [error.fault] if isinstance(error, JobFailed) else []
            assert queue.ended(name, outcome) is None or error is None
            if len(failures) == 2:
                resource.prlimit(server.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert failures == ["memory", "memory"]
    assert together[:2] in ([2, 2], [1, 2]) and together[2:] == [1, 1]
    assert all(scheduler.result(one) is not None for one in scheduler.jobs())


def test_a_killed_job_leaves_the_others_alone(pool: WorkerPool, tmp_path: Path) -> None:
    first, second = scheduler_of(tmp_path, seeds=[1, 2], recipe={**RECIPE, "num_epochs": 40}).jobs()
    with ThreadPoolExecutor(2) as executor:
        futures = [executor.submit(run_one, one, tmp_path, pool, None, threading.Event()) for one in (first, second)]
        log = first.run_dir.log
        while not (log.exists() and "first step" in log.read_text()):
            time.sleep(0.02)
        os.kill(int(log.read_text().split("process ")[1].split()[0]), signal.SIGKILL)
        with pytest.raises(JobFailed) as caught:
            futures[0].result(60)
        assert caught.value.fault == "killed"
        assert futures[1].result(60)["digest"] == second.digest
