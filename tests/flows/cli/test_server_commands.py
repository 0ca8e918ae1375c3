"""`cloze up` to `cloze down` with real servers, once for all: a schedule, retraining, the form, a cancelled run.

The tests go on from one another, as a person's day does; the first ones pass while the schedule comes round.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from model.common.files import read_json
from tests.flows.clone import Clone, commit
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.disruption, pytest.mark.timeout(900)]

TASKS = {"rte": None, "sst2": None}
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")


class Up:
    """A clone with running servers."""

    def __init__(self, clone: Clone) -> None:
        self.clone = clone
        self.ports = [_free_port(), _free_port(), _free_port()]
        self.api = f"http://127.0.0.1:{self.ports[0]}/api"
        self.mlflow = f"http://127.0.0.1:{self.ports[1]}/api/2.0/mlflow"
        self.pages = f"http://127.0.0.1:{self.ports[2]}"

    def up(self, *options: str, cron: str | None = "* * * * * */20", code: int = 0) -> str:
        """`cloze up` on free ports, by default retraining every 20 seconds (croniter's sixth field)."""
        names = ("--prefect-port", "--mlflow-port", "--pages-port")
        ports = [word for name, port in zip(names, self.ports, strict=True) for word in (name, str(port))]
        schedule = [] if cron is None else ["--cron", cron]
        return self.clone.run("cloze", "up", *ports, *schedule, *options, code=code)

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
        wait_for(lambda: self.state(run)["type"] in ENDED, seconds, every=0.5)
        return self.state(run)

    def scheduled(self, *types: str) -> list[str]:
        """Retrainings that the schedule has made and that are in one of these states."""
        deployment = self.ask("/deployments/name/retrain/retrain")["id"]
        runs = {"deployment_id": {"any_": [deployment]}, "state": {"type": {"any_": list(types)}}}
        return [run["id"] for run in self.ask("/flow_runs/filter", {"flow_runs": runs}) if run["auto_scheduled"]]

    def hold(self) -> None:
        """As if another run worked in the folder."""
        self._lock = (self.clone.root / ".cloze" / "run.lock").open("a")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def let_go(self) -> None:
        """That other run has ended."""
        self._lock.close()

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
    for _ in range(20):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            if error.code != 503:  # SQLite is busy: Prefect's own clients ask again, too
                raise
            time.sleep(0.5)
    raise AssertionError(f"{url} is busy all the time")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _for_minutes(content: dict[str, Any]) -> None:
    """One encoder, two tasks, and a gate that refuses only much worse models."""
    content["pretrain"]["encoders"] = content["pretrain"]["encoders"][:1]
    content["finetune"] |= {"benchmarks": TASKS, "epochs_factor": {}}
    content["promotion"] = {"may_be_degenerate": list(TASKS), "margin": 40}


class Notified:
    """A webhook that records its messages."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        texts = self.texts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                texts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def notified() -> Iterator[Notified]:
    """The webhook of CLOZE_NOTIFY_URL."""
    made = Notified()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def servers(finished: Clone, notified: Notified, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The servers of a clone after a complete run, stopped at the end."""
    clone = finished.copy(tmp_path_factory.mktemp("operate") / "clone")
    clone.run("git", "worktree", "prune")
    clone.params(_for_minutes)
    commit(clone)
    made = Up(clone)
    clone.environment["CLOZE_NOTIFY_URL"] = f"http://127.0.0.1:{notified.port}/hook"
    try:
        made.hold()
        said = made.up()
        assert said.count("started") == 4 and "waiting for prefect to respond" in said
        assert f"Start page: {made.pages}" in said
        assert re.search(r"next retraining: \d{4}-\d\d-\d\d \d\d:\d\d UTC; `cloze up --cron never` disables", said)
        yield made
    finally:
        made.let_go()
        clone.run("cloze", "down")
        left = clone.alive()
    assert not left
    assert "no server was running" in clone.run("cloze", "down")


def test_up_restarts_only_dead_servers(servers: Up) -> None:
    before = {name: servers.pid(name) for name in ("prefect", "mlflow", "pages", "worker")}
    os.kill(before["mlflow"], signal.SIGKILL)
    assert "dead" in servers.clone.run("cloze", "status", code=1)
    automations = servers.ask("/automations/filter", {})
    said = servers.up()
    assert said.count("already running") == 3 and "mlflow   started" in said
    assert servers.ask("/automations/filter", {}) == automations, "an update would forget the heartbeats of runs"
    servers.clone.run("cloze", "status")
    assert {name for name in before if servers.pid(name) != before[name]} == {"mlflow"}


def test_mistakes_are_one_line(servers: Up, tmp_path: Path) -> None:
    said = servers.clone.run("cloze", "up", "--prefect-port", "1024", code=2)
    assert said.splitlines() == ["cloze: prefect runs with other settings; stop it with `cloze down` first"]
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copyfile(servers.clone.root / name, tmp_path / name)
    other, (prefect, mlflow, _) = Clone(tmp_path), servers.ports
    ports = ["--prefect-port", str(prefect), "--mlflow-port", str(mlflow), "--pages-port", str(_free_port())]
    said = other.run("cloze", "up", *ports, code=2)
    assert f"127.0.0.1:{prefect} is used by another program; choose another port with --prefect-port" in said
    assert f"127.0.0.1:{mlflow} is used" in said and len(said.splitlines()) == 2
    said = other.run("cloze", "up", "--cron", "daily", code=2)
    assert "invalid schedule 'daily'" in said and "five fields" in said and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"params": {"tokenizer": {"vocab_size": "many"}}},
        {"base": "params/none.yaml"},
        {"overrides": ["finetune.seeds"]},
    ],
)
def test_the_form_refuses_an_invalid_value(servers: Up, values: dict[str, Any]) -> None:
    with pytest.raises(urllib.error.HTTPError, match="409|422"):
        servers.start("experiment/experiment", lambda parameters: parameters.update(values))


def test_a_scheduled_run_waits_for_the_folder_and_a_second_one_is_skipped(servers: Up) -> None:
    wait_for(lambda: servers.scheduled("RUNNING"), 130, every=0.5)
    [first] = servers.scheduled("RUNNING")
    second = servers.wait(servers.start("retrain/retrain"), 30)
    assert second["type"] == "CANCELLED", second
    wait_for(lambda: servers.scheduled("CANCELLED"), 130, every=0.5)  # that of the next time
    assert servers.scheduled("RUNNING") == [first]
    assert "retraining: on demand only" in servers.up(cron="never")
    assert "retraining: on demand only" in servers.up(cron=None), "until `cloze down`"
    jobs = servers.clone.job_times("finetune")
    servers.let_go()
    state = servers.wait(first)
    assert state["name"] == "Promoted", state
    assert "there is no champion yet" in state["message"]
    assert servers.clone.job_times("finetune").items() <= jobs.items()  # all that was asked for had its result


def test_retraining_without_a_change_is_skipped(servers: Up) -> None:
    state = servers.wait(servers.start("retrain/retrain"))
    assert state["name"] == "Skipped"
    assert "data, parameters and code have not changed" in state["message"]
    assert "# Skipped" in servers.report()
    [run] = servers.runs("tags.`cloze.kind` = 'retrain' AND tags.`cloze.outcome` = 'skipped'")
    assert run["info"]["status"] == "FINISHED"


def test_retraining_with_more_data_is_promoted(servers: Up) -> None:
    book = servers.clone.root / "data" / "books" / "book-001.txt"
    book.with_name("new.txt").write_text(" ".join(reversed(book.read_text().split(". "))))
    state = servers.wait(servers.start("retrain/retrain"))
    assert state["name"] == "Promoted", state
    report = servers.report()
    assert "against the best champion ever, pretrained" in report and "| words |" in report
    assert "- Look 1 of 52 on these dev rows" in report and re.search(
        r"- Change of pretrained@[0-9a-f]{8} \(version 2", report
    )
    [page, *_] = sorted((servers.clone.root / "build" / "runs" / "retrain").glob("2*.html"), reverse=True)
    assert "<table>" in page.read_text() and "Promoted" not in page.name
    assert "version 2" in servers.clone.run("cloze", "champion").splitlines()[0]
    assert servers.clone.run("git", "branch", "--list", "retrain/*").count("retrain/") == 2


def test_a_run_with_other_parameters_leaves_the_project_alone(servers: Up) -> None:
    board = servers.clone.board()

    wrong = {"name": "wrong", "overrides": ["leaderboard.nodes=[x]"]}
    state = servers.wait(servers.start("experiment/experiment", lambda parameters: parameters.update(wrong)), 60)
    assert state["type"] == "FAILED" and "did you mean 'notes'?" in state["message"]
    assert not list((servers.clone.root / ".cloze" / "workspaces").glob("wrong-*")), "before any work starts"
    words = ("deployment", "run", "experiment/experiment", "-p", "name=noted")
    words += ("-p", 'overrides=["leaderboard.notes=[from the form]"]')
    settings = (f"PREFECT_API_URL={servers.api}", f"PREFECT_HOME={servers.clone.root}/.cloze/prefect")
    said = servers.clone.run("env", *settings, sys.executable, "-m", "prefect", *words)
    run = next(line.partition("UUID: ")[2].strip() for line in said.splitlines() if "UUID: " in line)
    state = servers.wait(run)
    assert state["type"] == "COMPLETED", state["message"]
    [workspace] = (servers.clone.root / ".cloze" / "workspaces").glob("noted-*")
    inner = Clone(workspace)
    assert inner.board()["notes"] == ["from the form"]
    assert not inner.job_times("pretrain") and not inner.job_times("finetune")  # DVC's cache has what is unchanged
    assert servers.clone.board() == board
    assert servers.ask(f"/flow_runs/{run}")["name"] == f"experiment {workspace.name}"
    artifacts = servers.ask("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run]}}})
    shown = {artifact["key"]: artifact["data"] for artifact in artifacts}
    assert "| pretrained |" in shown["leaderboard"] and f"]({servers.pages}/board/" in shown["leaderboard-page"]
    assert "/runs/" in shown["mlflow-run"] and "workflowType=machine_learning" in shown["mlflow-run"]
    assert servers.ask(f"/flow_runs/{run}/graph-v2")["nodes"]
    logs = servers.ask("/logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}})
    assert any("restored from the DVC cache" in line["message"] for line in logs)


def test_the_pages_link_to_each_other(servers: Up) -> None:
    with urllib.request.urlopen(servers.pages, timeout=30) as answer:
        page = answer.read().decode()
    [board] = set(re.findall(r'"(/board/[0-9a-f]{16}/leaderboard.html)"', page))
    for url in (board, "/corpus/report.html", *re.findall(r'"(/retrain/[^"]*)"', page)):
        assert f'href="{url}"' in page
        with urllib.request.urlopen(servers.pages + url, timeout=30) as answer:
            assert b"<html" in answer.read()
    assert page.count(">up<") == 4 and "experiment noted" in page and ">Promoted<" in page
    version = re.search(
        r'Champion: <a href="[^"]*/#/models/([a-z-]+)/versions/(\d+)">pretrained@[0-9a-f]{8} \(version (\d+) of', page
    )
    assert version and version[1] == "cloze-encoder" and version[2] == version[3]
    [experiment] = {run["info"]["experiment_id"] for run in servers.runs("")}
    assert f"#/experiments/{experiment}/runs?workflowType=machine_learning" in page
    [promoted, *_] = servers.runs("tags.`cloze.outcome` = 'promoted'")
    tags = {tag["key"]: tag["value"] for tag in promoted["data"]["tags"]}
    assert tags["mlflow.note.content"].startswith("# pretrained@")
    [pipeline, *_] = servers.runs("tags.`cloze.kind` = 'pipeline'")
    [about] = [tag["value"] for tag in pipeline["data"]["tags"] if tag["key"] == "mlflow.note.content"]
    assert f"(http://127.0.0.1:{servers.ports[0]}/v2/runs/flow-run/" in about
    [data] = pipeline["inputs"]["dataset_inputs"]
    assert data["dataset"]["digest"].endswith(".dir")
    job = servers.runs("tags.`cloze.benchmark` = 'rte'")[0]
    contexts = {tag["value"] for one in job["inputs"]["dataset_inputs"] for tag in one["tags"]}
    assert contexts == {"training", "validation"}
    place = (servers.clone.root / ".cloze" / "mlflow" / "artifacts").as_uri()
    assert all(run["info"]["artifact_uri"].startswith(place) for run in servers.runs("")), "that of the original"


def test_a_sabotaged_recipe_is_refused_and_the_champion_stays(servers: Up) -> None:
    champion = servers.clone.run("cloze", "champion").splitlines()[0]
    servers.clone.params(lambda content: content["promotion"].update(may_be_degenerate=[]))
    servers.clone.params(lambda content: content["finetune"]["recipe"].update(learning_rate=10.0))
    state = servers.wait(servers.start("retrain/retrain"))
    assert state["name"] == "Refused", state
    assert state["type"] == "COMPLETED"
    assert "no degenerate task" in state["message"]
    assert "REFUSED" in servers.report()
    assert servers.clone.run("cloze", "champion").splitlines()[0] == champion
    outcomes = [run["data"]["tags"] for run in servers.runs("tags.`cloze.kind` = 'retrain'")]
    found = sorted(tag["value"] for tags in outcomes for tag in tags if tag["key"] == "cloze.outcome")
    assert found == ["promoted", "promoted", "refused", "skipped"]


def test_a_failed_run_is_reported(servers: Up, notified: Notified) -> None:
    door = "fine-tune-task/fine-tune-task"
    with pytest.raises(urllib.error.HTTPError) as refused:
        servers.start(door, lambda parameters: parameters.update(task="x"))
    assert b"'x' is not one of ['rte', 'sst2']" in refused.value.read()
    wrong = {"task": "rte", "recipe": {"nun_epochs": 2}}
    state = servers.wait(servers.start(door, lambda parameters: parameters.update(wrong)))
    fault = "unknown key 'finetune.benchmarks.rte.recipe.nun_epochs'; did you mean 'num_epochs'?"
    assert state["type"] == "FAILED" and fault in state["message"]
    start = "cloze: fine-tune-task / fine-tune rte: Failed"
    wait_for(lambda: [text for text in notified.texts if text.startswith(start) and fault in text], 20)


def test_cancelling_ends_every_process_of_the_run(servers: Up) -> None:
    workspaces = servers.clone.root / ".cloze" / "workspaces"

    def change(parameters: dict[str, Any]) -> None:
        parameters |= {"name": "long", "overrides": ["pretrain.recipe.phases.0.num_steps=50000"]}

    def processes() -> list[str]:
        return [line for folder in workspaces.glob("long-*") for line in Clone(folder).alive()]

    run = servers.start("experiment/experiment", change)
    wait_for(lambda: any(workspaces.glob("long-*/build/runs/pretrain/pretrained-*/status.json")), 120)
    start = time.monotonic()
    servers.ask(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    state = servers.wait(run, 15)
    assert state["type"] == "CANCELLED"
    wait_for(lambda: not processes(), max(0.1, 15 - (time.monotonic() - start)))
    killed = servers.runs("attributes.status = 'KILLED'")
    stages = {"name": {"any_": ["pretrain"]}, "state": {"type": {"any_": ["CANCELLED", "FAILED"]}}}
    assert [stage["state_type"] for stage in servers.ask("/flow_runs/filter", {"flow_runs": stages})] == ["CANCELLED"]
    assert {"long", "pretrain"} <= {re.split("[-/]", run["info"]["run_name"])[0] for run in killed}
