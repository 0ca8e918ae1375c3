"""Entries and journals reach a real MLflow (SQLite), whole and once."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from model.common.metrics_log import MetricsLog
from tasks.project.project import Project
from tasks.project.stage_versions import write_versions
from tasks.project.workspace import user_name
from tasks.tracking import tracking
from tasks.tracking.tracking import DataInput, Forwarder, run_page, runs_page, systems_page
from tests.conftest import ROOT
from tests.servers import mlflow_alone

pytestmark = pytest.mark.slow  # MLflow makes its tables


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_versions(tmp_path)
    return Project(tmp_path, tmp_path)


def all_runs(project: Project) -> list[Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(project.tracking_uri)
    [experiment] = [one for one in client.search_experiments() if one.name == "cloze"]
    return list(client.search_runs([experiment.experiment_id]))


def runs(project: Project) -> dict[str, Any]:
    return {run.data.tags["mlflow.runName"]: run for run in all_runs(project)}


def history(project: Project, run: Any, metric: str) -> list[tuple[int, float]]:
    from mlflow.tracking import MlflowClient

    found = MlflowClient(project.tracking_uri).get_metric_history(run.info.run_id, metric)
    return [(point.step, point.value) for point in found]


def test_a_pipeline_and_its_jobs(project: Project, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    journal = MetricsLog(tmp_path / "journal.jsonl")
    artifact = tmp_path / "predictions.jsonl"
    artifact.write_text("{}")
    published = tmp_path / "published"
    published.mkdir()
    (published / "config.json").write_text("{}")
    params = {"a": {"b": 1}}

    with tracking.session(project, params, "data1", last=False) as tracker:  # the stage of one door
        inputs = [DataInput("data/a.tsv", "0" * 32, "training"), DataInput("data/b", "1" * 32 + ".dir", "validation")]
        tracker.begin("job1", "a job", {"cloze.seed": "1"}, {"recipe": {"learning_rate": 0.1}}, journal.path, inputs)
        for step in range(1500):  # more than a batch
            journal.log(step, {"train/loss": 1 / (step + 1)})
        for step, score in ((500, 40.0), (1000, 50.0)):
            journal.log(step, {"dev/f1": score, "dev/accuracy": score}, "dev")
        tracker.end("job1", "FINISHED", {"dev/f1": 50.0, "dev/accuracy": 45.0}, [(artifact, "predictions")])
        assert tracker.lacks("job1", "published") and not tracker.lacks("job of another project", "published")
        tracker.attach("job1", published, "published")
        assert not tracker.lacks("job1", "published")
        tracker.tag({"cloze.dvc.build/corpus": "2" * 32})
        tracker.begin("job2", "a job that never ends", {}, {}, tmp_path / "none.jsonl")

    kind, data = {"cloze.kind": "system"}, [DataInput("data", "data1", "validation")]
    with tracking.session(project, params, "data1", description="about **it**") as tracker:  # the last stage
        tracker.note(metrics={"average": 60.0})
        tracker.begin("system-a", "a system", kind, {"p": 1}, inputs=data, nested=False, model="encoder-a")
        tracker.end("system-a", "FINISHED", {"dev/mrpc/f1": 80.0})
    with tracking.session(project, params, "data1") as tracker:  # the same once more
        tracker.begin("system-a", "a system", kind, {"p": 1}, inputs=data, nested=False, model="encoder-a")
        tracker.end("system-a", "FINISHED", {"dev/mrpc/f1": 80.0, "dev/rte/accuracy": 70.0})

    found = runs(project)
    assert set(found) == {"a job", "a job that never ends", "a system", tracker.parent.name}
    parent, job = found[tracker.parent.name], found["a job"]
    assert {item.path for item in MlflowClient(project.tracking_uri).list_artifacts(job.info.run_id)} == {
        "predictions",
        "published",
    }
    assert parent.info.status == job.info.status == "FINISHED"
    assert parent.data.params == {"a.b": "1"}
    assert parent.data.tags["cloze.dvc.build/corpus"] == "2" * 32
    assert parent.data.metrics["average"] == 60.0
    assert job.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert job.data.tags["cloze.data"] == "data1"
    assert job.data.params["recipe.learning_rate"] == "0.1"
    system = found["a system"]
    assert "mlflow.parentRunId" not in system.data.tags, "MLflow's list would fold it away"
    assert system.data.tags["cloze.run"] == tracker.parent.key
    assert system.data.metrics == {"dev/mrpc/f1": 80.0, "dev/rte/accuracy": 70.0}
    [model] = MlflowClient(project.tracking_uri).search_logged_models([system.info.experiment_id])
    assert (model.name, model.source_run_id, str(model.status)) == ("encoder-a", system.info.run_id, "READY")
    assert {one.key: one.value for one in model.metrics} == system.data.metrics and model.params == {"p": "1"}
    assert {(one.dataset_name, one.dataset_digest) for one in model.metrics} == {("data", "data1")}
    assert history(project, job, "dev/f1") == [(500, 40.0), (1000, 50.0)], "the final score is there already"
    assert history(project, job, "dev/accuracy")[2:] == [(1499, 45.0)], "that of another epoch counts"
    assert job.data.metrics["dev/accuracy"] == 45.0
    assert history(project, parent, "average") == [(0, 60.0)]
    assert {(one.dataset.name, one.dataset.digest, one.tags[0].value) for one in job.inputs.dataset_inputs} == set(
        inputs
    )
    for run in (parent, system):
        [used] = run.inputs.dataset_inputs
        assert (used.dataset.name, used.dataset.digest) == ("data", "data1")
    for run in (parent, job, system):
        assert run.data.tags["mlflow.user"] == run.info.user_id == user_name()
        assert run.data.tags["mlflow.source.type"] == "LOCAL"
    assert parent.data.tags["mlflow.note.content"] == "about **it**"
    assert sorted(history(project, job, "train/loss")) == [(step, 1 / (step + 1)) for step in range(1500)]


def test_the_same_job_in_two_pipeline_runs_is_two_runs(project: Project, tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / str(number)
        with tracking.session(project, {"number": number}, "data1") as tracker:
            tracker.begin("job1", "a job", {}, {"seed": 1, "run_dir": str(folder)}, folder / "journal.jsonl")
            tracker.end("job1", "FINISHED", {"dev/f1": float(number)})
        for path in tracker.folder.iterdir():  # as another workspace begins
            path.unlink()
    jobs = [run for run in all_runs(project) if run.info.run_name == "a job"]
    assert sorted(run.data.metrics["dev/f1"] for run in jobs) == [1.0, 2.0]
    assert len({run.data.tags["mlflow.parentRunId"] for run in jobs}) == 2
    assert [run.data.params for run in jobs] == [{"seed": "1"}] * 2


def test_one_refused_entry_does_not_hold_up_the_others(project: Project, tmp_path: Path) -> None:
    with tracking.session(project, {}, "data1") as tracker:
        tracker.begin("bad", "a job with a metric that is none", {}, {}, tmp_path / "none.jsonl")
        tracker.end("bad", "FINISHED", {"not a name, says MLflow: \n": 1.0})
        tracker.begin("good", "a good job", {}, {}, tmp_path / "none.jsonl")
        tracker.end("good", "FINISHED", {"dev/f1": 1.0})
    assert runs(project)["a good job"].data.metrics == {"dev/f1": 1.0}


def test_lines_sent_twice_are_stored_once(project: Project, tmp_path: Path) -> None:
    journal = MetricsLog(tmp_path / "journal.jsonl")
    with tracking.session(project, {}, "data1", last=False) as tracker:
        tracker.begin("job1", "a job", {}, {}, journal.path)
        for step in range(10):
            journal.log(step, {"train/loss": float(step)})
        folder = tracker.folder
    (folder / "job1.sent").unlink()  # killed between sending and remembering it
    forwarder = Forwarder(project.tracking_uri, project.mlflow_home, folder)
    forwarder.start()
    assert forwarder.drain() == 0
    assert len(history(project, runs(project)["a job"], "train/loss")) == 10


def test_a_dead_server_loses_nothing(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = MetricsLog(tmp_path / "journal.jsonl")
    with monkeypatch.context() as dead:
        dead.setattr("tasks.tracking.tracking.DRAIN_SECONDS", 5.0)
        dead.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        dead.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        with tracking.session(project, {}, "data1", last=False) as tracker:
            tracker.begin("job1", "a job", {}, {}, journal.path)
            journal.log(1, {"train/loss": 1.0})
            tracker.end("job1", "FINISHED")
    assert "did not accept 2 records" in capsys.readouterr().err
    tracking.send_rest(project)  # as `cloze run` does that has nothing else to do
    assert history(project, runs(project)["a job"], "train/loss") == [(1, 1.0)]


def record(tracker: tracking.Tracking, tmp_path: Path, *keys: str) -> None:
    for key in keys:
        tracker.begin(key, key, {}, {}, tmp_path / "none.jsonl")
        tracker.end(key, "FINISHED", {"dev/f1": 1.0})


def test_a_database_that_was_deleted_receives_everything_again(project: Project, tmp_path: Path) -> None:
    with tracking.session(project, {}, "data1") as tracker:
        record(tracker, tmp_path, "job1", "job2")
    database = project.mlflow_home / "mlflow.db"
    database.unlink()
    program = (
        "import sys; from pathlib import Path; from tasks.project.project import Project\n"
        "from tasks.tracking import tracking; tracking.send_rest(Project(Path(sys.argv[1]), Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]  # another process: MLflow keeps databases open
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stderr
    assert said.count("lacks earlier records of this project; sending them again") == 1
    with contextlib.closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT name, status FROM runs").fetchall()
    assert {("job1", "FINISHED"), ("job2", "FINISHED")} <= set(found) and len(found) == 3
    assert not subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stderr


def test_a_database_deleted_during_a_run_receives_nothing_more(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tracking.session(project, {}, "data1") as tracker:
        record(tracker, tmp_path, "job1")
        deadline = time.monotonic() + 60
        while not (tracker.folder / "job1.sent").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        (project.mlflow_home / "mlflow.db").unlink()
        record(tracker, tmp_path, "job1", "job2", "job3")
    assert "mlflow.db was deleted; the next run records this one again" in capsys.readouterr().err
    assert not list(tracker.folder.glob("*.sent")), "what says that something was sent would keep it from being sent"


def test_answers_that_are_lost_double_nothing(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has done what it was asked, and dies before it says so: once for each kind of request."""
    from mlflow.tracking import MlflowClient

    lost: list[str] = []

    def lose(name: str) -> None:
        real = getattr(MlflowClient, name)

        def ask(self: Any, *given: Any, **named: Any) -> Any:
            answer = real(self, *given, **named)
            if lost.count(name) < 2:
                lost.append(name)
                raise ConnectionError("the answer is lost")
            return answer

        monkeypatch.setattr(MlflowClient, name, ask)

    asked = ("create_experiment", "create_run", "log_batch", "log_artifact", "set_terminated")
    for name in asked:
        lose(name)
    monkeypatch.setattr("tasks.tracking.tracking.EVERY_SECONDS", 0.01)
    artifact = tmp_path / "config.json"
    artifact.write_text("{}")
    journal = MetricsLog(tmp_path / "journal.jsonl")
    with tracking.session(project, {}, "data1") as tracker:
        tracker.begin("job1", "a job", {}, {"seed": 1}, journal.path)
        for step in range(10):
            journal.log(step, {"train/loss": float(step)})
        tracker.note({"average": 1.0})
        tracker.end("job1", "FINISHED", {"dev/f1": 2.0}, [(artifact, "config")])
    for _ in range(10):
        tracking.send_rest(project)
    assert sorted(set(lost)) == sorted(asked)
    assert len(all_runs(project)) == 2 and {run.info.status for run in all_runs(project)} == {"FINISHED"}
    found = runs(project)
    assert sorted(history(project, found["a job"], "train/loss")) == [(step, float(step)) for step in range(10)]
    assert history(project, found["a job"], "dev/f1") == [(9, 2.0)]
    assert history(project, found[tracker.parent.name], "average") == [(0, 1.0)]


def test_a_server_that_was_down_receives_the_files_of_that_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    server, uri = mlflow_alone(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    write_versions(tmp_path)
    project = Project(tmp_path, tmp_path)
    log, weights = tmp_path / "log.txt", tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"weights")
    log.write_text("first\n")
    with monkeypatch.context() as impatient:
        impatient.setattr("tasks.tracking.tracking.DRAIN_SECONDS", 2.0)
        with tracking.session(project, {}, "data1", last=False) as tracker:
            tracker.begin("job1", "a job", {}, {}, tmp_path / "none.jsonl")
            tracker.end("job1", "FINISHED", {}, [(log, "log")])
            tracker.attach("job1", weights.parent, "model")
    with log.open("a") as file:
        file.write("of a later run\n")
    weights.unlink()

    server.start()
    try:
        tracking.send_rest(project)
        client = MlflowClient(uri)
        job = runs(project)["a job"]
        assert Path(client.download_artifacts(job.info.run_id, "log/log.txt")).read_text() == "first\n"
        model = client.download_artifacts(job.info.run_id, "model/model.safetensors")
        assert Path(model).read_bytes() == b"weights"
        assert not list((tracker.folder / "files").rglob("*")), "sent files take no space"

        with tracking.session(project, {}, "data1", last=False) as tracker:  # the job is resumed
            tracker.begin("job1", "a job", {}, {}, tmp_path / "none.jsonl")
            assert not tracker.lacks("job1", "model")
            tracker.end("job1", "FINISHED", {}, [(log, "log")])
        text = Path(client.download_artifacts(job.info.run_id, "log/log.txt")).read_text()
        assert text == "first\nof a later run\n"
    finally:
        server.end()


def test_weights_are_not_copied_into_a_local_store(project: Project, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("model.safetensors", "config.json"):
        (model / name).write_text("{}")
    with tracking.session(project, {}, "data1", last=False) as tracker:
        tracker.begin("job1", "a job", {}, {}, tmp_path / "none.jsonl")
        tracker.end("job1", "FINISHED")
        tracker.attach("job1", model, "model")
    stored = Path(runs(project)["a job"].info.artifact_uri.removeprefix("file://")) / "model"
    assert (stored / "model.safetensors").samefile(model / "model.safetensors")
    assert not (stored / "config.json").samefile(model / "config.json")


def test_durations_are_those_of_the_work(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000
    monkeypatch.setattr("tasks.tracking.tracking._now_ms", lambda: now)

    def times(name: str) -> tuple[int, int]:
        info = runs(project)[name].info
        return info.start_time, info.end_time

    for _ in range(2):  # the second time, the same results are recorded
        with tracking.session(project, {}, "data1") as tracker:
            if now == 1_000_000:
                tracker.begin("job1", "a job", {}, {}, tmp_path / "none.jsonl")
                now += 60_000
                tracker.end("job1", "FINISHED")
            tracker.begin("system-a", "a system", {}, {})
            tracker.end("system-a", "FINISHED", {"average": 1.0})
            now += 5_000
        now += 10_000_000
    assert times("a job") == (1_000_000, 1_060_000)
    assert times("a system") == (1_060_000, 1_060_000)
    with tracking.session(project, {}, "data1") as tracker:
        tracker.tag({"cloze.prefect_run": "another"})
    start, end = times(tracker.parent.name)
    assert (start, end) == (1_000_000, 11_070_000), "a run that does nothing does not prolong it"


TRACK_A_JOB = """
import sys
from pathlib import Path
from model.common.metrics_log import MetricsLog
from tasks.project.project import Project
from tasks.project.stage_versions import write_versions
from tasks.tracking import tracking

key, root = sys.argv[1], Path(sys.argv[2])
project = Project(root, root)
artifact = project.runs / key / "config.json"
artifact.parent.mkdir(parents=True)
artifact.write_text(key)
journal = MetricsLog(project.runs / key / "journal.jsonl")
with tracking.session(project, {}, "data1", last=False) as tracker:
    tracker.begin(key, key, {}, {}, journal.path)
    journal.log(1, {"train/loss": 1.0})
    tracker.end(key, "FINISHED", {}, [(artifact, "config")])
"""


def test_a_copied_project(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Unsent entries find their files, and nothing is read from or written to the place of the original."""
    from mlflow.tracking import MlflowClient

    def track(key: str, root: Path) -> None:
        subprocess.run([sys.executable, "-c", TRACK_A_JOB, key, str(root)], cwd=ROOT, check=True)

    track("before", project.root)
    (project.runs / "tracking" / "before.sent").unlink()  # as if it had not been sent
    target = tmp_path_factory.mktemp("other") / "it's a copy"
    shutil.copytree(project.root, target)
    shutil.rmtree(project.runs / "before")
    old = {path: path.stat().st_mtime_ns for path in project.root.rglob("*")}
    track("after", target)
    assert {path: path.stat().st_mtime_ns for path in project.root.rglob("*")} == old
    copy = Project(target, target)
    for name, run in runs(copy).items():
        assert run.info.artifact_uri.startswith((copy.mlflow_home / "artifacts").as_uri() + "/")
        if name in ("before", "after"):
            path = MlflowClient(copy.tracking_uri).download_artifacts(run.info.run_id, "config/config.json")
            assert Path(path).read_text() == name
            assert history(copy, run, "train/loss") == [(1, 1.0)]


def test_links_open_the_table_of_runs(project: Project) -> None:
    page = runs_page("http://ann:s3cret@127.0.0.1:5000/", "1", "abc")
    assert page == "http://127.0.0.1:5000/#/experiments/1/runs/abc?workflowType=machine_learning"
    systems = systems_page("http://127.0.0.1:5000", "1")
    assert "#/experiments/1/runs?workflowType=machine_learning&searchFilter=tags.%60cloze.kind%60" in systems
    for ask in (runs_page, systems_page):
        assert ask(project.tracking_uri, "1") == "", "a database has no pages"
    with tracking.session(project, {}, "data1") as tracker:
        pass
    assert run_page(project, tracker.parent.key) == ""


def test_a_name_changes_no_digest_and_is_kept(project: Project) -> None:
    key = tracking.pipeline_key(project, {"a": 1}, "data1")
    with tracking.session(project, {"a": 1}, "data1") as tracker:
        assert tracker.parent.key == key and tracker.parent.name == f"pipeline-{key[:8]}"
    with tracking.session(project, {"a": 1}, "data1", name="mine") as tracker:
        assert tracker.parent.key == key and tracker.run_name == "mine"
    with tracking.session(project, {"a": 1, "fetch": {"sources": []}}, "data1") as tracker:  # resumed without the name
        assert tracker.parent.name == f"mine-{key[:8]}"
    assert set(runs(project)) == {f"mine-{key[:8]}"}, "one run, renamed"
