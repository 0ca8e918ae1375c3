"""`cloze up` to `cloze down` with real servers: a run from the form, a scheduled one, a cancelled one."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from model.files import read_json
from tests.flows.clone import Clone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Up:
    """A clone with its servers up."""

    def __init__(self, clone: Clone) -> None:
        self.clone = clone
        self.ports = [_free_port(), _free_port()]
        self.api = f"http://127.0.0.1:{self.ports[0]}/api"

    def up(self, *options: str, code: int = 0) -> str:
        """`cloze up` on free ports."""
        ports = ("--prefect-port", str(self.ports[0]), "--mlflow-port", str(self.ports[1]))
        return self.clone.run("cloze", "up", *ports, *(options or ("--cron", "never")), code=code)

    def ask(self, path: str, body: Any = None) -> Any:
        """Prefect's API."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.api + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def start(self, deployment: str, change: Callable[[dict[str, Any]], None] = lambda _parameters: None) -> str:
        """Press run, with the form's parameters changed; the run's id."""
        found = self.ask(f"/deployments/name/{deployment}")
        change(found["parameters"])
        return self.ask(f"/deployments/{found['id']}/create_flow_run", {"parameters": found["parameters"]})["id"]

    def wait(self, run: str, seconds: float = 300) -> dict[str, Any]:
        """The state in which a run has ended."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")
        wait_until(lambda: self.ask(f"/flow_runs/{run}")["state"]["type"] in ended, seconds)
        return self.ask(f"/flow_runs/{run}")["state"]

    def pid(self, member: str) -> int:
        """The process of a member."""
        return int(read_json(self.clone.root / ".cloze" / "servers" / f"{member}.json")["pid"])


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.3)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def servers(finished: Clone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The servers of a clone after a whole run; nothing of them is left afterwards."""
    clone = finished.copy(tmp_path_factory.mktemp("operate") / "clone")
    clone.run("git", "worktree", "prune")
    made = Up(clone)
    try:
        assert made.up().count("started") == 3
        yield made
    finally:
        clone.run("cloze", "down")
        left = clone.alive()
    assert not left
    assert "nothing was up" in clone.run("cloze", "down")


def test_up_twice_starts_nothing(servers: Up) -> None:
    before = [servers.pid(name) for name in ("prefect", "mlflow", "worker")]
    assert servers.up().count("was up") == 3
    assert [servers.pid(name) for name in ("prefect", "mlflow", "worker")] == before
    assert "runs with other settings" in servers.clone.run("cloze", "up", "--prefect-port", "1024", code=2)


def test_a_dead_member_is_seen_and_started_again(servers: Up) -> None:
    os.kill(servers.pid("mlflow"), signal.SIGKILL)
    assert "dead" in servers.clone.run("cloze", "status", code=1)
    assert servers.up().count("was up") == 2
    servers.clone.run("cloze", "status")


def test_a_run_with_other_parameters_leaves_the_project_alone(servers: Up) -> None:
    board = servers.clone.board()

    def change(parameters: dict[str, Any]) -> None:
        parameters["params"]["leaderboard"]["notes"] = ["from the form"]
        parameters["name"] = "noted"

    state = servers.wait(servers.start("experiment/other-parameters", change))
    assert state["type"] == "COMPLETED", state["message"]
    [workspace] = (servers.clone.root / ".cloze" / "workspaces").glob("noted-*")
    assert Clone(workspace).board()["notes"] == ["from the form"]
    assert servers.clone.board() == board
    artifacts = servers.ask("/artifacts/filter", {"artifacts": {"key": {"any_": ["leaderboard"]}}})
    assert artifacts


def test_a_value_that_cannot_be_is_refused_by_the_form(servers: Up) -> None:
    def change(parameters: dict[str, Any]) -> None:
        parameters["params"]["tokenizer"]["vocab_size"] = "many"

    with pytest.raises(urllib.error.HTTPError, match="409|422"):
        servers.start("experiment/other-parameters", change)


def test_cancelling_ends_every_process_of_the_run(servers: Up) -> None:
    def change(parameters: dict[str, Any]) -> None:
        parameters["params"]["pretrain"]["recipe"]["phases"][0]["num_steps"] = 50_000
        parameters["name"] = "long"

    def training() -> list[str]:
        workspaces = (servers.clone.root / ".cloze" / "workspaces").glob("long-*")
        return [line for folder in workspaces for line in Clone(folder).alive() if "model.pretrain" in line]

    run = servers.start("experiment/other-parameters", change)
    wait_until(lambda: bool(training()), 120)
    start = time.monotonic()
    servers.ask(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    state = servers.wait(run, 30)
    assert state["type"] == "CANCELLED"
    wait_until(lambda: not training(), max(0.1, 15 - (time.monotonic() - start)))


def test_a_scheduled_run_executes(servers: Up) -> None:
    servers.up("--cron", "* * * * *")
    deployment = servers.ask("/deployments/name/retrain/on-schedule")["id"]
    body = {"flow_runs": {"deployment_id": {"any_": [deployment]}, "state": {"type": {"any_": ["COMPLETED"]}}}}
    wait_until(lambda: any(run["auto_scheduled"] for run in servers.ask("/flow_runs/filter", body)), 240)
    servers.up("--cron", "never")
    assert not servers.ask("/deployments/name/retrain/on-schedule")["schedules"]


def test_a_foreign_program_on_the_port_is_left_alone(root: Path, tmp_path: Path, finished: Clone) -> None:
    clone = finished.copy(tmp_path / "clone")
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        port = str(foreign.getsockname()[1])
        said = clone.run("cloze", "up", "--prefect-port", port, "--mlflow-port", str(_free_port()), code=2)
    assert f"127.0.0.1:{port} is taken by another program" in said
    assert not clone.alive()
