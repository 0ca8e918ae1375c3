"""Fixtures of the tests on a cluster: the cluster, a project on it, and the undisturbed training to compare with."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.docker import Engine, shared_engine
from tests.cluster.slurm import Slurm, why_not
from tests.cluster.training import MACHINE, longer
from tests.flows.clone import PREFECT_API, Clone
from tests.flows.conftest import finished  # noqa: F401 - a fixture
from tests.servers import prefect_alone
from tests.waiting import wait_for

Measured = Callable[[str, float], None]


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A Docker engine with the base image."""
    with shared_engine(tmp_path_factory) as engine:
        engine.load_base()
        yield engine


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if reason := why_not():
        pytest.skip(reason)
    with Slurm(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.fixture(scope="session")
def on_login(finished: Clone, slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:  # noqa: F811
    """That clone, on the login host, with a running Prefect server there."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(finished.root / ".cloze" / "prefect", folder / "prefect")  # its tables are made
    server, address = prefect_alone(folder, slurm.login.enter(folder))
    answers = server.answers
    server.answers = lambda: slurm.login.inside(answers)
    clone = Clone(finished.root)
    clone.environment[PREFECT_API] = address
    server.start()
    yield clone
    server.end()


@pytest.fixture(scope="session")
def trained(on_login: Clone, slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """build/pretrain after a training by two ranks on one host."""
    clone = longer(on_login.copy(tmp_path_factory.mktemp("local") / "clone"))
    clone.prefix = slurm.login.enter(clone.root)
    clone.params(lambda content: content["pretrain"].update(machine=MACHINE | {"num_devices": 2}))
    clone.run("cloze", "pretrain")
    return clone.root / "build" / "pretrain"


@pytest.fixture
def on_slurm(on_login: Clone, slurm: Slurm, tmp_path: Path) -> Iterator[Clone]:
    """A copy of that clone that can submit jobs. After the test, its processes and jobs are gone."""
    clone = on_login.copy(tmp_path / "clone")
    clone.prefix = slurm.login.enter(clone.root)
    clone.environment |= slurm.environment
    yield clone
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"] == str(clone.root):
            process.kill()  # of a test that failed
    slurm.clear()
    wait_for(lambda: not slurm.jobs(), 90)
    slurm.repair()


@pytest.fixture
def clone(on_slurm: Clone) -> Clone:
    """A project on the login host that trains on two nodes."""
    longer(on_slurm).params(lambda content: content["pretrain"].update(machine=MACHINE))
    on_slurm.params(lambda content: content.update(cluster={"launcher": "slurm", "pretrain": {"nodes": 2}}))
    return on_slurm


@pytest.fixture
def rng() -> random.Random:
    """Random numbers from CLUSTER_SEED, or from a seed that is printed."""
    seed = int(os.environ.get("CLUSTER_SEED", time.time_ns() % 10**6))
    print(f"CLUSTER_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Measured:
    """Records what was measured (a name and a number); the end of the test run lists it."""
    return lambda name, number: record_property("measured", f"{name}: {number:.2f}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what was measured."""
    for report in terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", []):
        if report.when == "call":
            for _, line in report.user_properties:
                terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {line}")
