"""The pipeline end to end on a cut-down sample, through both doors."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from model.benchmarks.table import BENCHMARKS
from tests.flows.clone import Clone, commit

pytestmark = pytest.mark.slow


def up_to_date(clone: Clone) -> bool:
    return "Data and pipelines are up to date" in clone.run("dvc", "status")


def test_one_command_ends_with_the_leaderboard(finished: Clone) -> None:
    board = finished.board()
    assert set(board["tasks"]) == set(BENCHMARKS)
    kinds = {system["name"]: system["kind"] for system in board["systems"]}
    assert kinds["pretrained"] == "pretrained"
    assert kinds["scratch"] == "scratch"
    assert "quoted" not in kinds.values() and "squad2" in board["controls"], "the sample is recognized"
    for system in board["systems"]:
        assert set(system["scores"]) == set(BENCHMARKS)
        assert all(cell["num_runs"] == 1 for scores in system["scores"].values() for cell in scores.values())
    assert (finished.root / "build" / "leaderboard" / "leaderboard.html").stat().st_size > 50_000
    assert set(board["errors"]) == set(BENCHMARKS) and all(board["errors"].values())


def test_it_leaves_a_record_that_the_board_finds(finished: Clone) -> None:
    said = finished.run("cloze", "board")
    assert "compared with the reference" in said and "run " in said
    home = finished.root / ".cloze" / "leaderboard"
    [record] = [json.loads(path.read_text()) for path in home.glob("*/record.json")]
    assert [system["name"] for system in record["systems"]] == ["pretrained", "scratch"]
    assert record["git_commit"] and record["data"] and record["pipeline"]
    assert all(cost["total"]["num_timed"] == len(BENCHMARKS) for cost in record["cost"].values())
    assert record["params"]["finetune"]["seeds"] and set(record["stage_seconds"]) >= {"pretrain", "finetune"}
    assert "Parameters of this run" in (home / record["digest"] / "leaderboard.html").read_text()
    said = finished.run("cloze", "compare", f"pretrained@{record['digest'][:6]}", "scratch", "rte")
    assert said.index("epochs_factor" if "epochs_factor" in said else "phases") < said.index("rte")
    page = (home / "board.html").read_text()
    assert f'href="{record["digest"]}/leaderboard.html"' in page


def test_outputs_load_in_the_libraries_that_people_use(finished: Clone) -> None:
    import datasets
    from transformers import AutoModel, AutoTokenizer

    build = finished.root / "build"
    shards = [str(path) for path in sorted((build / "corpus").glob("*.parquet"))]
    corpus = datasets.load_dataset("parquet", data_files=shards, split="train", cache_dir=str(build / "runs" / "hf"))
    assert set(corpus.column_names) == {"source", "id", "title", "sentences"}
    model = AutoModel.from_pretrained(build / "pretrain" / "pretrained")
    tokenizer = AutoTokenizer.from_pretrained(build / "pretrain" / "pretrained")
    assert model(**tokenizer(corpus[0]["title"], return_tensors="pt")).last_hidden_state.isfinite().all()


def test_mlflow_has_a_parent_and_a_child_per_job(finished: Clone) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{finished.root}/.cloze/mlflow/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("cloze").experiment_id], max_results=1000)
    parents = [run for run in runs if run.data.tags.get("cloze.kind") == "pipeline"]
    assert len(parents) == 1
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parents[0].info.run_id]
    assert len(children) == 2 + 2 * len(BENCHMARKS)
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert all(run.data.tags["cloze.git_commit"] and run.data.tags["cloze.data"] for run in runs)
    names = {run.info.run_name for run in children}
    assert {"pretrain/pretrained", "pretrain/scratch", "pretrained/rte/seed=1", "scratch/squad1/seed=1"} <= names
    [pretrained] = [run for run in children if run.info.run_name == "pretrain/pretrained"]
    steps = [point.step for point in client.get_metric_history(pretrained.info.run_id, "train/mlm_loss")]
    assert steps == sorted(set(steps))
    assert len(steps) == 12
    assert any(name.startswith("system/") for name in pretrained.data.metrics)
    artifacts = {item.path for item in client.list_artifacts(pretrained.info.run_id)}
    assert {"config", "log", "model"} <= artifacts
    systems = [run for run in runs if run.data.tags.get("cloze.kind") == "system"]
    assert {run.data.tags["cloze.system"] for run in systems} == {"pretrained", "scratch"}
    assert all(f"dev/{name}/{row.headline}" in run.data.metrics for run in systems for name, row in BENCHMARKS.items())
    assert "leaderboard/record.json" in {
        item.path for item in client.list_artifacts(parents[0].info.run_id, "leaderboard")
    }
    assert "leaderboard" in {item.path for item in client.list_artifacts(parents[0].info.run_id)}


def test_a_second_run_does_nothing(finished: Clone) -> None:
    log = finished.root / ".cloze" / "prefect" / "server.log"
    before = (log.stat().st_mtime_ns, finished.job_times("finetune"))
    assert "Everything is up to date" in finished.run("cloze", "run")
    assert "Everything is up to date" in finished.run("cloze", "repro")
    assert up_to_date(finished)
    assert "Running stage" not in finished.run("dvc", "repro")
    assert (log.stat().st_mtime_ns, finished.job_times("finetune")) == before
    finished.run("git", "diff", "--exit-code")


@pytest.mark.parametrize("door", [("cloze", "run"), ("dvc", "repro")])
def test_one_parameter_of_one_benchmark(served: Clone, tmp_path: Path, door: tuple[str, str]) -> None:
    clone = served.copy(tmp_path / "clone")

    def change(content: dict[str, Any]) -> None:
        content["finetune"]["benchmarks"] = dict.fromkeys(BENCHMARKS) | {"rte": {"recipe": {"num_epochs": 2}}}

    clone.params(change)
    before = {stage: clone.job_times(stage) for stage in ("pretrain", "finetune")}
    said = clone.run(*door)
    after = {stage: clone.job_times(stage) for stage in ("pretrain", "finetune")}
    assert after["pretrain"] == before["pretrain"]
    new = {name for name, when in after["finetune"].items() if before["finetune"].get(name) != when}
    assert sorted(name.split("-")[:2] for name in new) == [["pretrained", "rte"], ["scratch", "rte"]]
    assert "corpus: done" not in said
    assert "leaderboard: done" in said
    assert up_to_date(clone)
    assert "Everything is up to date" in clone.run("cloze", "run")
    metrics = json.loads((clone.root / "build" / "finetune" / "scratch" / "rte" / "metrics.json").read_text())
    assert [job["recipe"]["num_epochs"] for job in metrics["jobs"]] == [4]


def test_going_back_trains_only_what_was_never_trained(served: Clone, tmp_path: Path) -> None:
    clone = served.copy(tmp_path / "clone")
    original = (clone.root / "params.yaml").read_text()
    board, encoder = clone.board(), clone.root / "build" / "pretrain" / "pretrained" / "model.safetensors"
    weights = encoder.read_bytes()

    def elsewhere(content: dict[str, Any]) -> None:
        content["tokens"]["heldout_fraction"] = 0.05
        content["finetune"]["benchmarks"] = {"wnli": None}

    clone.params(elsewhere)
    clone.run("cloze", "run")
    assert encoder.read_bytes() != weights
    for stage in ("pretrain", "finetune"):
        shutil.rmtree(clone.root / "build" / "runs" / stage)
    (clone.root / "params.yaml").write_text(original)

    def one_more(content: dict[str, Any]) -> None:
        fresh = {**content["pretrain"]["encoders"][1], "name": "fresh"}
        content["pretrain"]["encoders"].append(fresh)
        content["finetune"]["benchmarks"] = {"rte": None, "wnli": {"recipe": {"num_epochs": 2}}}

    clone.params(one_more)
    said = clone.run("cloze", "run", "--dry-run")
    assert "1 encoder to pre-train (fresh), 4 of 6 fine-tuning jobs" in said and "is cached" not in said
    clone.run("cloze", "run")
    for stage, number in (("pretrain", 1), ("finetune", 4)):
        assert len(list((clone.root / "build" / "runs" / stage).glob("*/log.txt"))) == number
    assert encoder.read_bytes() == weights
    assert len(list((clone.root / "build" / "finetune").glob("*/*/model/model.safetensors"))) == 6
    assert not list((clone.root / "build" / "runs").glob("*/*/model")), "published models are not kept twice"

    (clone.root / "params.yaml").write_text(original)
    said = clone.run("cloze", "run", "--dry-run")
    assert said.count("would be restored from") == 3 and said.endswith(
        "nothing would run; 3 stages would be restored\n"
    )
    said = clone.run("cloze", "run")
    assert said.count("restored from the DVC cache") == 3 and ": done in" not in said
    assert clone.board() == board and encoder.read_bytes() == weights
    assert up_to_date(clone)


def test_comments_and_bumped_versions(served: Clone, tmp_path: Path) -> None:
    clone = served.copy(tmp_path / "clone")
    versions, lock = clone.root / "versions.yaml", clone.root / "dvc.lock"
    text = versions.read_text()
    versions.write_text(text + "# a comment\n")
    assert "Everything is up to date" in clone.run("cloze", "run")
    before = clone.job_times("finetune")
    for path in (versions, lock):  # as an earlier release has left them
        old = re.sub(r"(?<=leaderboard: )\d+", lambda number: str(int(number[0]) - 1), path.read_text())
        path.write_text(old.replace("cloze: 0.1.0", "cloze: 0.0.9"))
    shutil.rmtree(clone.root / ".dvc" / "cache" / "runs")
    for command in (["run"], ["run", "--dry-run"], ["leaderboard"]):
        said = clone.run("cloze", *command, code=2)
        assert "run `cloze upgrade`, or install Cloze 0.0.9 again" in said
        assert [line for line in said.splitlines() if "working" not in line] == said.splitlines()[-1:]
    assert "leaderboard will run again: its code version changed from" in clone.run("cloze", "upgrade")
    assert versions.read_text() == text
    said = clone.run("cloze", "run")
    assert [line.split(":")[0] for line in said.splitlines() if ": done in" in line] == ["[6/6] leaderboard"]
    assert "[5/6] finetune: up to date" in said
    assert clone.job_times("finetune") == before
    assert up_to_date(clone)


def test_a_failing_job_is_named_and_the_others_finish(served: Clone, tmp_path: Path) -> None:
    clone = served.copy(tmp_path / "clone")
    clone.params(
        lambda content: content["finetune"].update(
            benchmarks={"rte": {"recipe": {"learning_rate": 1000.0, "num_epochs": 20}}}
        )
    )
    before = clone.board()
    said = clone.run("cloze", "run", "--accept-data", code=1)
    assert "pretrained/rte/" in said
    assert "lower the learning rate" in said
    assert "Traceback" not in said
    assert clone.board() == before
    said = clone.run("cloze", "run", "--allow-missing", code=1)
    assert clone.board()["missing"]
    assert not up_to_date(clone)


def test_push_and_pull(finished: Clone, tmp_path: Path) -> None:
    origin = finished.copy(tmp_path / "origin")
    origin.run("dvc", "push", "-q")
    target = tmp_path / "other"
    origin.run("git", "clone", "-q", str(origin.root), str(target))
    other = Clone(target)
    (target / ".cloze").mkdir(exist_ok=True)
    other.run("dvc", "remote", "modify", "--local", "local", "url", str(origin.root / ".cloze" / "remote"))
    other.run("dvc", "pull", "-q")
    assert up_to_date(other)
    assert "Everything is up to date" in other.run("cloze", "run")
    assert other.board() == origin.board()
    commit(other)


def test_other_parameters_run_in_a_workspace_of_their_own(served: Clone, tmp_path: Path) -> None:
    clone = served.copy(tmp_path / "clone")
    before = clone.board()
    clone.run("git", "worktree", "prune")
    other = tmp_path / "other.yaml"
    content = yaml.safe_load((clone.root / "params.yaml").read_text())
    content["finetune"]["benchmarks"] = {"rte": None, "ner": None}
    content["leaderboard"] = {"notes": ["other"]}
    other.write_text(yaml.safe_dump(content))
    said = clone.run("cloze", "run", "--params", str(other), "--name", "two-tasks")
    [workspace] = (clone.root / ".cloze" / "workspaces").iterdir()
    label = workspace.name
    assert label.startswith("two-tasks-")
    assert said.count(f"run {label}") == 2, "in the first and in the last lines"
    inner = Clone(workspace)
    records = [json.loads(path.read_text()) for path in (clone.root / ".cloze" / "leaderboard").glob("*/record.json")]
    [record] = [record for record in records if record["name"]]
    assert f"{record['name']}-{record['pipeline'][:8]}" == label
    listed = clone.run("cloze", "logs", "--run", "two-tasks").splitlines()
    assert "pretrained/rte" not in listed[0] and len(listed) == 1, "all jobs came from the cache"
    assert inner.board()["notes"][0] == "other"
    assert set(inner.board()["tasks"]) == {"rte", "ner"}
    assert clone.board() == before
    assert "Everything is up to date" in clone.run("cloze", "run")
    assert "Everything is up to date" in clone.run("cloze", "run", "--params", str(other))
