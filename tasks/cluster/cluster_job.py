"""A job on a cluster, and the protocol of the launchers that submit one and find it again."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from model.common.run_dir import RunDir
from model.config.pretraining import PretrainRun
from tasks.params.cluster import JobResources

CONNECTION = "connection.json"
"""Name of the file with the address and the credentials of a stage's Dask scheduler."""


class LauncherUnavailable(Exception):
    """The cluster does not answer at the moment; its jobs continue."""


class JobKey(NamedTuple):
    """Identifies a job on a cluster for any process that knows its run directory."""

    name: str
    """Name of the run directory, and of the job."""
    comment: str
    """Digest and path of the run directory: two projects may train equal encoders at the same time."""

    @classmethod
    def of(cls, digest: str, run_dir: Path) -> JobKey:
        """Key of the job in `run_dir`."""
        return cls(run_dir.name, f"{digest} {run_dir}")


class QueuedJob(NamedTuple):
    """A job that the cluster knows and that has not ended."""

    id: str
    is_running: bool
    """False while the job waits for resources, or to be started again."""
    reason: str = ""
    """Reason why it waits, in the cluster's words; empty if the cluster gives none."""


@dataclass(frozen=True)
class ClusterJob:
    """A job on `resources.nodes` nodes. Every node sees the same project directory."""

    key: JobKey
    log: Path
    """File that output is appended to."""
    resources: JobResources
    folder: Path
    """Project directory, in which the job starts."""
    arguments: tuple[str, ...]
    """RUN.json and the attempt as which the job is submitted; for workers, those of `tasks.cluster.dask_worker`."""
    num_gpus: int = 0
    """GPUs per node."""
    is_workers: bool = False
    """The nodes work independently of each other: each starts when it is free, and is replaced by itself."""

    @classmethod
    def of_pretraining(cls, run: PretrainRun, resources: JobResources, folder: Path) -> ClusterJob:
        """Job of an encoder: its ranks work together, and restart together."""
        run_dir = RunDir(run.run_dir)
        arguments = (str(run_dir.pretrain_config), str(run.attempt))
        num_gpus = run.machine.num_devices if run.machine.accelerator == "gpu" else 0
        return cls(JobKey.of(run.digest, run.run_dir), run_dir.log, resources, folder, arguments, num_gpus)

    @classmethod
    def of_workers(
        cls, stage: str, stage_dir: Path, resources: JobResources, folder: Path, num_gpus: int
    ) -> ClusterJob:
        """Job of the Dask workers of a stage, which find its scheduler by a file in `stage_dir`."""
        key = JobKey(f"{stage}-workers", f"workers {stage_dir}")
        arguments = (str(stage_dir / CONNECTION), "node" if stage == "finetune" else "cores")
        return cls(key, stage_dir / "log.txt", resources, folder, arguments, num_gpus, is_workers=True)


def address_towards(host: str) -> str:
    """Return the address of this machine from which it reaches `host`. Nothing is sent.

    Raises:
        OSError: the name has no address, or there is no route.
    """
    [(family, *_, address), *_] = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


class Launcher(Protocol):
    """Submits jobs to a cluster. Methods that ask the cluster raise LauncherUnavailable if it does not answer."""

    title: str
    """Name of the cluster's software, for messages."""

    def problem(self) -> str:
        """Explain why this machine cannot submit jobs; empty if it can."""
        ...

    def manifest(self, job: ClusterJob) -> str:
        """Return exactly what `submit` creates, as text."""
        ...

    def submit(self, job: ClusterJob) -> str:
        """Submit a job, and return its id.

        Raises:
            UserError: the cluster refuses the job; the message is the cluster's.
        """
        ...

    def find(self, key: JobKey) -> QueuedJob | None:
        """Return the job with this key, unless it has ended."""
        ...

    def local_address(self, resources: JobResources) -> str:
        """Return the address of this machine at which nodes with these resources reach it."""
        ...

    def cancel(self, job_id: str) -> None:
        """Ask a job to save and end; the cluster kills it after a while."""
        ...
