"""`cloze up` to `cloze down` with real servers, once for all: a schedule, retraining, the form, a cancelled run.

The tests go on from one another, as a person's day does; the first ones pass while the schedule comes round.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from model.files import read_json
from tests.flows.clone import Clone, commit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("operate")]

TASKS = {"rte": None, "sst2": None}
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")


class Up:
    """A clone with its servers up."""

    def __init__(self, clone: Clone) -> None:
        self.clone = clone
        self.ports = [_free_port(), _free_port()]
        self.api = f"http://127.0.0.1:{self.ports[0]}/api"
        self.mlflow = f"http://127.0.0.1:{self.ports[1]}/api/2.0/mlflow"

    def up(self, *options: str, code: int = 0) -> str:
        """`cloze up` on free ports, retraining every minute."""
        ports = ("--prefect-port", str(self.ports[0]), "--mlflow-port", str(self.ports[1]))
        return self.clone.run("cloze", "up", *ports, "--cron", "* * * * *", *options, code=code)

    def ask(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """Prefect's API."""
        return _ask(self.api + path, body, method)

    def start(self, deployment: str, change: Callable[[dict[str, Any]], None] = lambda _parameters: None) -> str:
        """Press run, with the form's parameters changed; the run's id."""
        found = self.ask(f"/deployments/name/{deployment}")
        change(found["parameters"])
        return self.ask(f"/deployments/{found['id']}/create_flow_run", {"parameters": found["parameters"]})["id"]

    def state(self, run: str) -> dict[str, Any]:
        """A run's state."""
        return self.ask(f"/flow_runs/{run}")["state"]

    def wait(self, run: str, seconds: float = 300) -> dict[str, Any]:
        """The state in which a run has ended."""
        wait_until(lambda: self.state(run)["type"] in ENDED, seconds)
        return self.state(run)

    def scheduled(self, *types: str) -> list[str]:
        """Retrainings that the schedule has made and that are in one of these states."""
        made = {"auto_scheduled": {"eq_": True}} if False else {}
        deployment = self.ask("/deployments/name/retrain/on-schedule")["id"]
        runs = {"deployment_id": {"any_": [deployment]}, "state": {"type": {"any_": list(types)}}} | made
        return [run["id"] for run in self.ask("/flow_runs/filter", {"flow_runs": runs}) if run["auto_scheduled"]]

    def report(self) -> str:
        """The retraining's latest report on Prefect's page."""
        latest = self.ask("/artifacts/latest/filter", {"artifacts": {"key": {"any_": ["retrain-report"]}}})
        return str(latest[0]["data"])

    def runs(self, query: str) -> list[dict[str, Any]]:
        """MLflow's runs."""
        [experiment] = _ask(f"{self.mlflow}/experiments/search", {"max_results": 10, "filter": "name = 'cloze'"})[
            "experiments"
        ]
        body = {"experiment_ids": [experiment["experiment_id"]], "filter": query, "max_results": 1000}
        return _ask(f"{self.mlflow}/runs/search", body).get("runs", [])

    def pid(self, member: str) -> int:
        """The process of a member."""
        return int(read_json(self.clone.root / ".cloze" / "servers" / f"{member}.json")["pid"])


def _ask(url: str, body: Any = None, method: str | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or "null")


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def holding(clone: Clone) -> Iterator[None]:
    """As if another run worked in the folder."""
    with (clone.root / ".cloze" / "run.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _for_minutes(content: dict[str, Any]) -> None:
    """One encoder, two tasks, and a gate that lets small models pass unless they are far worse."""
    content["pretrain"]["encoders"] = content["pretrain"]["encoders"][:1]
    content["finetune"] |= {"benchmarks": TASKS, "epochs_factor": {}}
    content["promotion"] = {"may_be_degenerate": list(TASKS), "margin": 40}


@pytest.fixture(scope="module")
def servers(finished: Clone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The servers of a clone after a whole run; nothing of them is left afterwards."""
    clone = finished.copy(tmp_path_factory.mktemp("operate") / "clone")
    clone.run("git", "worktree", "prune")
    clone.params(_for_minutes)
    commit(clone)
    made = Up(clone)
    try:
        with holding(clone):
            assert made.up().count("started") == 3
            yield made
    finally:
        clone.run("cloze", "down")
        left = clone.alive()
    assert not left
    assert "nothing was up" in clone.run("cloze", "down")
