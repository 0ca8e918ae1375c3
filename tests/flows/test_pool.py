"""Fine-tuning and cleaning on a Dask cluster: the same results as on one machine, also when hosts are lost."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from model.common.files import read_json
from model.common.state_files import read_state
from tests.dask_hosts import DaskHosts
from tests.flows.clone import Clone
from tests.waiting import wait_for

pytest.importorskip("distributed")
pytestmark = [pytest.mark.slow, pytest.mark.disruption]
HOSTS = ("127.0.0.1", "127.0.0.2")


def new_jobs(content: dict[str, Any]) -> None:
    """Let every fine-tuning job run again, with another seed."""
    content["finetune"]["seeds"] = [2]


def slow_jobs(content: dict[str, Any]) -> None:
    """Two benchmarks whose jobs take a while."""
    content["finetune"] |= {"seeds": [3], "benchmarks": {"sst2": None, "rte": None}, "epochs_factor": {}}
    content["finetune"]["recipe"]["num_epochs"] = 300


@pytest.fixture(scope="module")
def local(served: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone after a run on this machine."""
    clone = served.copy(tmp_path_factory.mktemp("local") / "clone")
    clone.params(new_jobs)
    clone.run("cloze", "run")
    return clone


@pytest.fixture
def clone(served: Clone, tmp_path: Path) -> Clone:
    clone = served.copy(tmp_path / "clone")
    clone.params(new_jobs)
    return clone


@pytest.fixture
def hosts(tmp_path: Path, root: Path) -> Iterator[DaskHosts]:
    started = DaskHosts(tmp_path, root, HOSTS)
    yield started
    started.end()


def log(clone: Clone) -> str:
    return (clone.root / "test.log").read_text()


def owners(clone: Clone) -> list[dict[str, Any]]:
    """Owners of the run directories of fine-tuning jobs."""
    return [read_json(path) for path in (clone.root / "build" / "runs" / "finetune").glob("*/owner-*.json")]


def steps(clone: Clone) -> list[int]:
    """Steps of the jobs that are running."""
    found = [read_json(path) for path in (clone.root / "build" / "runs" / "finetune").glob("*/status.json")]
    return [status["step"] for status in found if status["state"] == "running"]


def test_a_host_is_lost_midway(clone: Clone, local: Clone, hosts: DaskHosts) -> None:
    before = clone.job_times("finetune")
    clone.params(lambda content: content.update(cluster={"pool": hosts.address}))
    process = clone.start("cloze", "run")
    clone.wait_for(lambda: len(clone.job_times("finetune").keys() - before) >= 5, process)
    clone.wait_for(lambda: len({owner["id"] for owner in owners(clone)}) == 2, process)
    finished = clone.job_times("finetune")
    hosts.processes[-1].send_signal(signal.SIGKILL)
    assert process.wait(300) == 0, log(clone)
    after = clone.job_times("finetune")
    assert {name: after[name] for name in finished} == finished, "no finished job runs again"
    assert "was lost; its jobs start again on another node" in log(clone)
    assert clone.board() == local.board()
    assert max(owner["attempt"] for owner in owners(clone)) == 2
    assert "Everything is up to date" in clone.run("cloze", "run"), "the section cluster makes nothing stale"


def test_a_stop_reaches_all_hosts(clone: Clone, hosts: DaskHosts) -> None:
    clone.params(slow_jobs)
    clone.params(lambda content: content.update(cluster={"pool": hosts.address}))
    clone.params(lambda content: content["finetune"].update(num_workers=1))
    process = clone.start("cloze", "finetune")
    clone.wait_for(lambda: len([step for step in steps(clone) if step > 10]) == 2, process)
    assert {owner["id"].rpartition("-")[0] for owner in owners(clone)} and len(owners(clone)) == 2
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 75, log(clone)
    assert not steps(clone), "no job runs on"
    # After kill -9 of the flow, the jobs save and end too; the cluster stays.
    process = clone.start("cloze", "finetune")
    clone.wait_for(lambda: len([step for step in steps(clone) if step > 10]) == 2, process)
    clone.kill(process)
    wait_for(lambda: not steps(clone), 15)
    assert all(worker.poll() is None for worker in hosts.processes)


def test_workers_that_do_not_fit_are_refused(clone: Clone, tmp_path: Path, root: Path) -> None:
    packages = tmp_path / "packages"
    for name in ("model", "tasks"):
        shutil.copytree(root / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "tasks" / "versions.py").write_text("# another version\n")
    hosts = DaskHosts(tmp_path, packages, HOSTS[:1])
    try:
        clone.params(lambda content: content.update(cluster={"pool": hosts.address}))
        said = clone.run("cloze", "finetune", code=2)
    finally:
        hosts.end()
    assert "is not used: it has another version of Cloze; update and restart it" in said and "Traceback" not in said
    assert "no Dask scheduler at" in clone.run("cloze", "finetune", code=2)


def test_a_host_that_was_cut_off_writes_nothing_more(
    clone: Clone, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's worker is frozen, so that it counts as lost; its job continues until it finds the later attempt."""
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "5s")
    hosts = DaskHosts(tmp_path, root, HOSTS)
    clone.params(slow_jobs)
    clone.params(lambda content: content.update(cluster={"pool": hosts.address}))
    clone.params(lambda content: content["finetune"].update(benchmarks={"rte": None}, num_workers=2))
    clone.params(lambda content: content["finetune"]["recipe"].update(num_epochs=2000))
    try:
        process = clone.start("cloze", "finetune")
        clone.wait_for(lambda: len([step for step in steps(clone) if step > 10]) == 2, process)
        worker = hosts.processes[-1]
        ports = {one.laddr.port for one in psutil.Process(worker.pid).net_connections() if one.status == "LISTEN"}
        mine = (path for path in (clone.root / "build" / "runs" / "finetune").glob("*/owner-1.json"))
        [folder] = [path.parent for path in mine if int(read_json(path)["id"].rpartition("-")[2]) in ports]
        worker.send_signal(signal.SIGSTOP)
        clone.wait_for(lambda: "attempt 1 stops" in (folder / "log.txt").read_text(), process)
        assert read_json(folder / "owner-2.json")["id"] != read_json(folder / "owner-1.json")["id"]
        worker.send_signal(signal.SIGCONT)
        clone.wait_for(lambda: worker.poll() is not None, process)  # Dask ends a worker that it has given up
        reached = read_state(folder / "status.json")["step"]
        clone.wait_for(lambda: read_state(folder / "status.json")["step"] > reached, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 75, log(clone)
    finally:
        hosts.end()
