"""The Dask cluster of a stage: one that runs already, or workers that a launcher starts for the stage.

For the latter, the scheduler runs in the stage's process and accepts only connections with a key that is made for this
run. The workers are a job of the cluster; each connects when its node is free. They end with the stage, or when its
process is gone; what a killed run left in the queue, the next one cancels.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from model.common.errors import Paused, UserError, missing_package
from tasks.cluster.cluster_job import CONNECTION, ClusterJob, Launcher, LauncherUnavailable
from tasks.cluster.dask_node import TOKEN
from tasks.cluster.launchers import find_patiently, launcher_named
from tasks.jobs.local_launcher import last_line
from tasks.params.root import Params
from tasks.project.progress import echo, warn

CONNECT_SECONDS = 30
_ALONE_SECONDS = 120.0  # without any worker, after there were some
_SILENT_SECONDS = "120s"  # until a worker that is connected but does nothing, such as a frozen one, counts as lost
_LOOK_SECONDS = 5.0  # between two looks at the queue

PoolStage = Literal["corpus", "finetune"]
POOL_STAGES: tuple[PoolStage, ...] = get_args(PoolStage)


@dataclass(frozen=True)
class _Submitted:
    """The workers' job in a launcher's queue."""

    launcher: Launcher
    job: ClusterJob
    number: str


@dataclass(frozen=True)
class DaskEndpoint:
    """A Dask scheduler."""

    address: str
    """Such as tcp://host:8786."""
    setting: str
    """The setting that it comes from, for messages."""
    folder: Path | None = None
    """The stage's folder for logs, in the project directory, which nodes see."""
    security: Any = None
    """distributed.Security; None uses Dask's own configuration."""
    submitted: _Submitted | None = None
    """The job of the workers; None for a cluster that runs already."""

    @contextlib.contextmanager
    def client(self, make: Callable[..., Any] | None = None) -> Iterator[Any]:
        """Connect to the scheduler.

        Args:
            make: class of the client; by default, distributed.Client.

        Raises:
            UserError: the scheduler is unreachable, or Dask is not installed.
        """
        require_dask(self.setting)
        from distributed import Client

        _be_quiet()
        try:
            client = (make or Client)(
                self.address, timeout=CONNECT_SECONDS, set_as_default=False, security=self.security
            )
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{self.setting}: no Dask scheduler at {self.address} ({reason}); start one") from None
        try:
            yield client
        finally:
            client.close(timeout=5)

    def num_threads(self, client: Any) -> dict[str, int]:
        """Return the number of threads of each connected worker, by address.

        Raises:
            Paused: the scheduler is lost.
        """
        try:
            return dict(client.nthreads())
        except Exception as error:  # whatever a client raises that is closing
            if not isinstance(error, OSError | TimeoutError | RuntimeError | AttributeError):
                raise
            raise Paused(
                f"{self.setting}: the Dask scheduler at {self.address} was lost; run the same command again"
            ) from None

    def patience(self) -> WorkerWait:
        """Return a clock that says when to wait no longer for workers."""
        return WorkerWait(self)


class WorkerWait:
    """Decides how long a stage waits while no worker is connected."""

    def __init__(self, endpoint: DaskEndpoint) -> None:
        self._endpoint = endpoint
        self._had_workers = False
        self._since = self._looked = time.monotonic()

    def check(self, has_workers: bool) -> None:
        """Wait on, or raise.

        Raises:
            UserError: no worker has connected to a cluster that runs already, or those that a launcher started ended
                before.
            Paused: all workers were lost, or their job has left the queue.
        """
        now = time.monotonic()
        if has_workers:
            self._had_workers, self._since = True, now
            return
        endpoint, waited = self._endpoint, now - self._since
        if endpoint.submitted is not None:
            if now - self._looked >= _LOOK_SECONDS:
                self._looked = now
                self._look(endpoint.submitted)
        elif not self._had_workers and waited > CONNECT_SECONDS:
            raise UserError(
                f"{endpoint.address}: the Dask scheduler has no workers; start some (`dask worker {endpoint.address}`)"
            )
        elif waited > _ALONE_SECONDS:
            raise Paused(f"{endpoint.setting}: all Dask workers were lost; run the same command again")

    def _look(self, submitted: _Submitted) -> None:
        try:
            if submitted.launcher.find(submitted.job.key) is not None:
                return
        except LauncherUnavailable:
            return
        line = last_line(submitted.job.log)
        where = f"{submitted.launcher.title} job {submitted.number} of the workers"
        if self._had_workers or not line or "CANCELLED" in line:
            raise Paused(f"{self._endpoint.setting}: the {where} has left the queue; run the same command again")
        raise UserError(f"{self._endpoint.setting}: the {where} ended before a worker connected: {line}")


def require_dask(what: str) -> None:
    """Check that Dask is installed; `what` names the setting that needs it.

    Raises:
        UserError: it is not.
    """
    try:
        import cryptography  # noqa: F401, for credentials
        import distributed  # noqa: F401
    except ImportError as error:
        raise missing_package(error, what) from None


def is_remote(stage: str, params: Params) -> bool:
    """Check whether a stage runs on a Dask cluster."""
    cluster = params.cluster
    if stage == "corpus" and params.corpus.scheduler is not None:
        return True
    return stage in POOL_STAGES and (cluster.pool is not None or getattr(cluster, stage) is not None)


def workers_job(stage: PoolStage, params: Params, runs: Path) -> ClusterJob | None:
    """Return the job of the workers that the launcher starts for a stage; None if it starts none."""
    resources = getattr(params.cluster, stage)
    if resources is None:
        return None
    machine = params.finetune.machine
    on_gpu = stage == "finetune" and machine.accelerator != "cpu"
    num_gpus = resources.devices or (machine.num_devices if machine.accelerator == "gpu" else 0)
    project = runs.parent.parent  # of build/runs
    return ClusterJob.of_workers(stage, _folder(runs, stage), resources, project, num_gpus if on_gpu else 0)


def _folder(runs: Path, stage: str) -> Path:
    return runs / "nodes" / stage


@contextlib.contextmanager
def stage_cluster(stage: PoolStage, params: Params, runs: Path, stop: threading.Event) -> Iterator[DaskEndpoint]:
    """Provide the Dask cluster of a stage that `is_remote` while the block runs.

    Args:
        runs: build/runs of the project.

    Raises:
        UserError: the launcher refuses the workers, or a package is missing.
        Paused: the launcher does not answer, and `stop` is set.
    """
    folder = _folder(runs, stage)
    shutil.rmtree(folder, ignore_errors=True)  # logs of the run before
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TOKEN).write_text(uuid.uuid4().hex, encoding="utf-8")
    job = workers_job(stage, params, runs)
    if job is None:
        own = params.corpus.scheduler if stage == "corpus" else None
        yield DaskEndpoint(own or params.cluster.pool or "", "corpus.scheduler" if own else "cluster.pool", folder)
        return
    launcher = launcher_named(params.cluster.launcher, params.cluster)
    assert launcher is not None, "settings refuse workers without a launcher"
    with contextlib.ExitStack() as stack:
        try:
            earlier = find_patiently(launcher, job.key, stop)
            if earlier is not None:
                echo(f"  {stage}: canceling {launcher.title} job {earlier.id}, the workers of a run that was killed")
                launcher.cancel(earlier.id)
            address, security = stack.enter_context(
                _scheduler(launcher.local_address(job.resources), f"cluster.{stage}", folder)
            )
            number = launcher.submit(job)
        except LauncherUnavailable as reason:
            raise Paused(f"{stage}: {reason}; run the same command again") from None
        stack.callback(_cancel, launcher, number)
        echo(f"  {stage}: {launcher.title} job {number} starts workers on {job.resources.nodes} nodes")
        yield DaskEndpoint(address, f"cluster.{stage}", folder, security, _Submitted(launcher, job, number))


def _cancel(launcher: Launcher, number: str) -> None:
    try:
        launcher.cancel(number)
    except LauncherUnavailable as reason:
        warn(f"{reason}; the workers of job {number} end by themselves")


@contextlib.contextmanager
def _scheduler(host: str, setting: str, folder: Path) -> Iterator[tuple[str, Any]]:
    """Run a scheduler in this process; yield its address and the credentials for connections to it."""
    require_dask(setting)
    import dask
    from distributed import LocalCluster, Security

    security = Security.temporary()
    _be_quiet()
    options: dict[str, Any] = {"protocol": "tls", "security": security, "dashboard_address": None}
    path = folder / CONNECTION
    with (
        dask.config.set({"distributed.scheduler.worker-ttl": _SILENT_SECONDS}),
        LocalCluster(n_workers=0, host=host, scheduler_port=0, silence_logs=logging.CRITICAL, **options) as cluster,
    ):
        content = {
            "address": cluster.scheduler_address,
            "key": security.tls_worker_key,
            "certificate": security.tls_worker_cert,
        }
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
        try:
            yield cluster.scheduler_address, security
        finally:
            path.unlink(missing_ok=True)


def _be_quiet() -> None:
    """Keep Dask's messages about lost workers and closed connections off the terminal; the stage says it in a line."""
    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
