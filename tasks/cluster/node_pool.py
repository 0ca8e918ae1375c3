"""The nodes of a Dask cluster, and the jobs that run on them: their resources, and what the loss of a node means.

A job is taken when one node has room for it, and runs on that node's fork server (tasks/cluster/dask_node.py). Its
files are in the project directory, which all nodes see. If its worker is lost, the queue starts the job on another
node, as another owner of its run directory.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from model.common.errors import Paused, UserError
from model.common.run_dir import RunDir
from tasks.cluster import dask_node
from tasks.cluster.dask_cluster import DaskEndpoint
from tasks.jobs.local_launcher import JobEnd
from tasks.jobs.resources import Allocation, MemoryEstimate, ResourcePool
from tasks.params.finetune import FinetuneParams
from tasks.project.environment import TUNED_ALLOCATOR, training_environment
from tasks.project.progress import echo, warn

MOST_JOBS = 1000
"""Maximum number of concurrent jobs on all nodes; each takes a thread that waits for it."""
_SECONDS_BETWEEN = 0.5
_SECONDS_TO_SEE = 90.0  # until another machine's files are visible; clients of NFS cache directories for up to 60 s
_VARIABLES = (*TUNED_ALLOCATOR, "NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TOKENIZERS_PARALLELISM")


@dataclass(frozen=True)
class Node:
    """A node that runs jobs."""

    name: str
    address: str
    """Address of its Dask worker."""
    resources: ResourcePool
    _client: Any
    _session: str
    _held: Any
    """Future of the task that keeps the fork server."""
    lost: threading.Event = field(default_factory=threading.Event)
    """Set when the worker has disconnected, or leaves: it takes no other job."""

    def run(
        self,
        module: str,
        document: dict[str, Any],
        config_path: Path,
        run_dir: RunDir,
        *,
        num_ranks: int = 1,
        device: str | None = None,
    ) -> JobEnd:
        """Run one attempt at a job, and return how it ended; the fault is `node` if the node was lost meanwhile.

        Args:
            document: content of the job's file `config_path`.
        """
        run_dir.status.unlink(missing_ok=True)
        arguments = (self._session, module, document, str(config_path), num_ranks, device)
        future = _submit(self._client, self.address, dask_node.run_job, *arguments)
        try:
            while not future.done():
                if self.lost.wait(0.2):
                    return JobEnd(1, fault="node")
            if future.status == "error":
                raise RuntimeError(f"{self.name}: {future.exception()!r}")
            if future.status != "finished":  # the connection to the scheduler was lost, and with it all tasks
                self.lost.set()
                return JobEnd(1, fault="node")
            end = dict(future.result())
        finally:
            with contextlib.suppress(Exception):  # the connection is closed
                future.cancel()
        if end["fault"] == "node":
            self.lost.set()
        if end.pop("has_result"):
            deadline = time.monotonic() + _SECONDS_TO_SEE
            while run_dir.result not in run_dir.path.iterdir() and time.monotonic() < deadline:
                time.sleep(_SECONDS_BETWEEN)
        return JobEnd(**end)


class NodePool(contextlib.AbstractContextManager["NodePool"]):
    """The nodes of a Dask cluster, which come and go, as resources of a queue.

    Args:
        params: limits of concurrent jobs, which count for each node.
        stop: when set, jobs on all nodes are asked to save and end.
    """

    can_grow: ClassVar[bool] = True

    def __init__(self, endpoint: DaskEndpoint, client: Any, params: FinetuneParams, stop: threading.Event) -> None:
        assert endpoint.folder is not None, "nodes have a folder for their logs"
        self._endpoint, self._client, self._params, self._stop = endpoint, client, params, stop
        self._folder = endpoint.folder
        self._token = (self._folder / dask_node.TOKEN).read_text(encoding="utf-8")
        self._session = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}
        self._reports: dict[str, Any] = {}  # futures, of workers that are not nodes yet
        self._refused: dict[str, str] = {}  # reasons, by address
        self._running: dict[str, tuple[Allocation, Node]] = {}
        self._failure: Exception | None = None
        self._has_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="nodes")

    def __enter__(self) -> NodePool:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the fork servers, with any jobs that still run."""
        self._has_closed.set()
        self._thread.join()
        with contextlib.suppress(Exception):  # the connection is closed
            self._client.cancel([node._held for node in self._nodes.values()], force=True)

    @property
    def num_jobs(self) -> int:
        """Maximum number of concurrent jobs on the present nodes."""
        with self._lock:
            return sum(node.resources.num_jobs for node in self._nodes.values())

    @property
    def allocations(self) -> Mapping[str, Allocation]:
        """Running jobs by name."""
        with self._lock:
            return {name: allocation for name, (allocation, _) in self._running.items()}

    def node_of(self, name: str) -> Node:
        """Return the node of a running job, which may be lost."""
        with self._lock:
            return self._running[name][1]

    def allocate(self, name: str, memory: MemoryEstimate, alone: bool = False) -> Allocation | None:
        """Reserve resources on the node with the largest free share of job slots.

        A job that exceeds the memory of some nodes runs only on others, if there are any.

        Raises:
            UserError, Paused: the cluster is of no use any more.
        """
        if self._failure is not None:
            raise self._failure
        with self._lock:
            nodes = [node for node in self._nodes.values() if not node.lost.is_set()]
            large = [node for node in nodes if node.resources.memory_bytes >= memory.memory_bytes]
            for node in sorted(large or nodes, key=lambda one: len(one.resources.allocations) / one.resources.num_jobs):
                found = node.resources.allocate(name, memory, alone)
                if found is not None:
                    self._running[name] = found, node
                    return found
        return None

    def release(self, name: str) -> None:
        """Free the resources of a job that has ended."""
        with self._lock:
            self._running.pop(name)[1].resources.release(name)

    def _watch(self) -> None:
        """Follow which workers are connected, until this pool is closed."""
        wait, has_stopped = self._endpoint.patience(), False
        while not self._has_closed.wait(_SECONDS_BETWEEN):
            try:
                if self._stop.is_set() and not has_stopped:
                    has_stopped = True
                    for address in list(self._nodes):
                        with contextlib.suppress(Exception):  # a worker that is lost at this moment
                            self._client.run(dask_node.stop_jobs, self._session, workers=[address])
                present = set(self._endpoint.num_threads(self._client))
                self._lose(
                    {one.address for one in self._nodes.values() if one.lost.is_set()} | set(self._nodes) - present
                )
                self._ask(present)
                self._admit()
                wait.check(bool(present))
                if self._refused and not self._nodes and not self._reports:
                    raise UserError(next(iter(self._refused.values())))
            except Exception as error:
                self._failure = error
                self._lose(set(self._nodes))
                return

    def _lose(self, addresses: set[str]) -> None:
        for address in addresses:
            with self._lock:
                node = self._nodes.pop(address)
            node.lost.set()
            if not self._stop.is_set() and not isinstance(self._failure, Paused):
                warn(f"the node {node.name} was lost; its jobs start again on another node")

    def _ask(self, present: set[str]) -> None:
        """Ask new workers for their resources; one per host, as all workers of a host have the same."""
        params = self._params
        for address in [address for address in self._reports if address not in present]:
            del self._reports[address]
        for address in sorted(present - {*self._nodes, *self._reports, *self._refused}):
            if any(self._host(address) == self._host(other) for other in (*self._nodes, *self._reports)):
                continue
            machine = params.machine.model_dump(mode="json")
            limits = (params.num_workers, params.memory_bytes, params.jobs_per_device)
            self._reports[address] = _submit(
                self._client, address, dask_node.report, str(self._folder), machine, *limits
            )

    def _host(self, address: str) -> str:
        """Return the node of a worker: workers that a launcher started are nodes, on the same host too."""
        return address if self._endpoint.submitted is not None else address.rpartition(":")[0]

    def _admit(self) -> None:
        for address in [address for address, future in self._reports.items() if future.done()]:
            future = self._reports.pop(address)
            if future.status == "error":
                self._refuse(address, f"it cannot run jobs ({future.exception()!r})")
            elif future.status == "finished":
                self._admit_one(address, future.result())

    def _admit_one(self, address: str, found: dict[str, Any]) -> None:
        if found["is_leaving"]:
            return
        mine = dask_node.software()
        different = [name for name, value in found["software"].items() if value != mine[name]]
        if found["token"] != self._token:
            self._refuse(address, f"it does not see {self._folder}; mount the project directory there, at this path")
        elif different:
            self._refuse(address, f"it has another version of {' and '.join(different)}; update and restart it")
        else:
            name = f"{found['host']}-{address.rpartition(':')[2]}"
            environment = training_environment()
            environment = {name: environment[name] for name in _VARIABLES if name in environment}
            log = str(self._folder / f"{name}.log")
            held = _submit(self._client, address, dask_node.hold, self._session, log, environment)
            resources = ResourcePool(
                found["num_jobs"], found["memory_bytes"], found["devices"], self._params.jobs_per_device
            )
            with self._lock:
                self._nodes[address] = Node(name, address, resources, self._client, self._session, held)
            gpus = f" on {len(found['devices'])} GPUs" if found["devices"] else ""
            echo(f"  node {name}: {found['num_jobs']} jobs at a time{gpus}")

    def _refuse(self, address: str, reason: str) -> None:
        self._refused[address] = f"{self._endpoint.setting}: the Dask worker {address} is not used: {reason}"
        warn(self._refused[address])


def _submit(client: Any, address: str, function: Any, *arguments: Any) -> Any:
    """Run a function on one worker, and on no other, also if that one is lost."""
    key = f"cloze-{function.__name__}-{uuid.uuid4().hex}"
    options = {"key": key, "workers": [address], "allow_other_workers": False, "pure": False}
    return client.submit(function, *arguments, **options)
