"""Resources of several nodes: on which one a job runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from model.common.errors import Paused, UserError
from tasks.cluster import dask_cluster
from tasks.cluster.dask_cluster import DaskEndpoint
from tasks.cluster.dask_node import TOKEN
from tasks.cluster.node_pool import Node, NodePool
from tasks.jobs.resources import MemoryEstimate, ResourcePool
from tasks.params.finetune import FinetuneParams

GIB = 2**30


def pool_of(folder: Path, *nodes: ResourcePool) -> NodePool:
    (folder / TOKEN).write_text("token")
    pool = NodePool(DaskEndpoint("tcp://a:1", "cluster.pool", folder), None, FinetuneParams(), threading.Event())
    nothing: Any = None
    for number, resources in enumerate(nodes):
        address = f"tcp://{number}:1"
        pool._nodes[address] = Node(f"node{number}", address, resources, nothing, "session", nothing)
    return pool


def test_jobs_spread_over_nodes_that_have_room(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, ResourcePool(2, 3 * GIB, {"0": 8 * GIB}), ResourcePool(4, 10 * GIB))
    assert pool.num_jobs == 6
    small = MemoryEstimate(GIB, GIB)
    devices = [found.device for number in range(3) if (found := pool.allocate(str(number), small))]
    assert devices == ["0", None, None]
    assert [pool.node_of(str(number)).name for number in range(3)] == ["node0", "node1", "node1"]
    assert pool.allocate("large", MemoryEstimate(6 * GIB)) is not None
    assert pool.node_of("large").name == "node1", "the other node is too small for it"
    assert pool.allocate("another", MemoryEstimate(6 * GIB)) is None
    pool.release("large")
    assert pool.allocate("another", MemoryEstimate(6 * GIB)) is not None
    assert pool.allocate("alone", small, alone=True) is None
    pool.release("0")
    assert pool.allocate("alone", small, alone=True) is not None
    assert pool.node_of("alone").name == "node0"


def test_a_lost_node_takes_no_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = pool_of(tmp_path, ResourcePool(1, GIB), ResourcePool(1, GIB))
    memory = MemoryEstimate(GIB)
    assert pool.allocate("first", memory) is not None
    lost = pool.node_of("first")
    pool._lose({lost.address})
    assert f"{lost.name} was lost" in capsys.readouterr().err
    assert lost.lost.is_set() and pool.num_jobs == 1
    assert pool.allocate("second", memory) is not None and pool.node_of("second") is not lost
    pool.release("first")
    assert pool.allocate("first", memory) is None
    pool._failure = Paused("the scheduler was lost")
    with pytest.raises(Paused):
        pool.allocate("first", memory)


def test_nobody_waits_forever_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    wait = DaskEndpoint("tcp://a:1", "cluster.pool").patience()
    wait.check(False)
    now[0] += dask_cluster.CONNECT_SECONDS + 1
    with pytest.raises(UserError, match=r"tcp://a:1: the Dask scheduler has no workers; start some"):
        wait.check(False)
    wait.check(True)
    now[0] += 100
    wait.check(False)
    now[0] += 100
    with pytest.raises(Paused, match="all Dask workers were lost"):
        wait.check(False)
