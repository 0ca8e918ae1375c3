"""Own tasks from the YAML file to the leaderboard, on a tiny encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli.leaderboard_commands import score
from model.common.errors import UserError
from model.common.files import digest_of_file, read_json, write_json
from model.common.state_files import read_state
from model.finetune.job import read_work
from model.finetune.run import run_job
from tasks.corpus.filters.contamination import read_benchmark_texts
from tasks.finetune.plan import PlannedFinetune, Planner, find_encoders
from tasks.finetune.scheduler import JobScheduler, assemble, describe
from tasks.leaderboard.board import build_leaderboard
from tasks.params.finetune import FinetuneParams
from tasks.project.yaml_files import read_yaml
from tests.tasks.finetune.tiny import MACHINE

pytestmark = pytest.mark.usefixtures("torch_as_it_was")


def write_films(data_dir: Path, **changes: Any) -> None:
    """A task that a tiny encoder learns, with one broken row."""
    rows = [f"{number},the film was {word},{label}" for number, (word, label) in enumerate(WORDS * 30)]
    (data_dir / "tasks").mkdir(parents=True, exist_ok=True)
    (data_dir / "tasks/films.csv").write_text("\n".join(["id,text,label", *rows, "x,broken", ""]))
    content = {
        "title": "Films",
        "head": "classes",
        "train": "films.csv",
        "dev": "dev.csv",
        "recipe": {"num_epochs": 6, "learning_rate": 3.0e-3, "max_length": 32},
        "grid": {"batch_size": [16]},
    }
    (data_dir / "tasks/dev.csv").write_text("\n".join(["id,text,label", *rows[:40], ""]))
    (data_dir / "tasks/films.yaml").write_text(yaml.safe_dump({**content, **changes}))


WORDS = [("good", "up"), ("fine", "up"), ("bad", "down"), ("poor", "down")]


def planner_of(data_dir: Path, pretrained: Path, runs_dir: Path, **changes: Any) -> Planner:
    params = FinetuneParams.parse(
        {
            "tasks": ["tasks/films.yaml"],
            "benchmarks": {},
            "grid": {"learning_rate": [1e-9]},
            "machine": MACHINE.model_dump(),
            **changes,
        },
        "params.yaml",
    )
    return Planner(params, find_encoders([], pretrained, data_dir), data_dir, runs_dir, 1)


def plan(data_dir: Path, pretrained: Path, runs_dir: Path, **changes: Any) -> list[PlannedFinetune]:
    groups = planner_of(data_dir, pretrained, runs_dir, **changes).groups(lambda _: None)
    return [one for group in groups for one in group.jobs]


def test_from_the_yaml_file_to_the_leaderboard(tmp_path: Path, pretrained: Path) -> None:
    data_dir, out_dir = tmp_path / "data", tmp_path / "finetune"
    write_films(data_dir)
    course = JobScheduler(planner_of(data_dir, pretrained, tmp_path / "runs", seeds=[1, 2]), tmp_path / "runs", out_dir)
    planned = course.jobs()
    assert [one.job.benchmark for one in planned] == ["films", "films"]
    assert planned[0].job.recipe.learning_rate == 3e-3, "the task's grid and recipe go before those of all tasks"
    for one in planned:
        run_job(one.job)
        course.ended(one, read_state(one.job.result_path))
    assemble(course, out_dir)
    assert describe(course)["benchmarks"] == ["films"]
    metrics = read_json(out_dir / "tiny/films/metrics.json")
    assert metrics["row"]["labels"] == ["down", "up"]
    result = metrics["jobs"][0]
    assert result["scores"]["accuracy"] > 90 and result["majority"]["accuracy"] == 50
    assert (result["num_skipped_rows"], result["dev_files"]) == (1, ["tasks/dev.csv"])
    assert result["skipped_rows"] == [
        "films.csv: line 122: 2 columns where 3 were expected (id, text, label)",
    ]
    board = build_leaderboard(
        out_dir, pretrained, [{"name": "tiny", "kind": "pretrained"}], ["films"], tmp_path / "leaderboard"
    )
    assert board.titles == {"films": "Films"}
    assert "Films" in (tmp_path / "leaderboard/leaderboard.html").read_text()
    assert board.skipped == [{"benchmark": "films", "num_skipped_rows": 1}]


def test_a_change_runs_this_tasks_jobs_again_and_a_title_none(tmp_path: Path, pretrained: Path) -> None:
    data_dir, runs_dir = tmp_path / "data", tmp_path / "runs"
    (data_dir / "glue/RTE").mkdir(parents=True)
    for name in ("train", "dev"):
        row = "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n"
        (data_dir / f"glue/RTE/{name}.tsv").write_text(row)

    def digests(**changes: Any) -> dict[str, str]:
        write_films(data_dir, **changes)
        found = plan(data_dir, pretrained, runs_dir, benchmarks={"rte": None})
        return {one.job.benchmark: one.job.digest for one in found}

    first = digests()
    assert digests() == first and digests(title="Cinema") == first
    for changes in ({"labels": ["up", "down"]}, {"recipe": {"max_length": 16}}, {"metrics": ["macro_f1", "accuracy"]}):
        other = digests(**changes)
        assert other["rte"] == first["rte"] and other["films"] != first["films"]
    write_films(data_dir)
    with (data_dir / "tasks/films.csv").open("a") as file:
        file.write("new,good,up\n")
    found = plan(data_dir, pretrained, runs_dir, benchmarks={"rte": None})
    assert {one.job.digest for one in found} & set(first.values()) == {first["rte"]}


def test_the_digest_of_a_benchmark_of_the_table_has_not_changed(tmp_path: Path, pretrained: Path) -> None:
    """What a job's digest is made of; with it results from before own tasks would be lost."""
    from model.common.files import digest_of

    data_dir = tmp_path / "data"
    names = [f"glue/RTE/{name}.tsv" for name in ("train", "dev")]
    for name in names:
        (data_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (data_dir / name).write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n")
    [one] = plan(data_dir, pretrained, tmp_path / "runs", tasks=[], benchmarks={"rte": None})
    files = ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt")
    content = {
        "benchmark": "rte",
        "data": digest_of([(name, digest_of_file(data_dir / name)) for name in names]),
        "encoder": digest_of([(name, digest_of_file(pretrained / "tiny" / name)) for name in files]),
        "judge_share": "auto",
        "precision": MACHINE.precision,
        "recipe": one.job.recipe.model_dump(),
        "seed": 1,
        "version": 1,
    }
    assert one.job.digest == digest_of(content)


def test_params_name_own_tasks_by_files_with_names_of_their_own(tmp_path: Path, pretrained: Path) -> None:
    write_films(tmp_path)
    for tasks, message in (
        (["films"], r"finetune.tasks: 'films' is not a YAML file below data/, such as tasks/letters.yaml"),
        (["tasks/films.yaml", "more/films.yaml"], r"two files have the same name"),
        (["tasks/none.yaml"], r"none.yaml: no such file; expected the YAML file of a custom task"),
    ):
        with pytest.raises(UserError, match=message):
            plan(tmp_path, pretrained, tmp_path / "runs", tasks=tasks)
    (tmp_path / "tasks/more.yaml").write_bytes((tmp_path / "tasks/films.yaml").read_bytes())
    chain = {"benchmarks": {"more": {"after": "films"}}}
    more = {"films": {"recipe": {"num_epochs": 9}, "grid": {}}}
    [one] = plan(tmp_path, pretrained, tmp_path / "runs", benchmarks=more)
    assert (one.job.recipe.num_epochs, one.job.recipe.max_length) == (9, 32)
    [chained] = plan(tmp_path, pretrained, tmp_path / "runs", tasks=["tasks/films.yaml", "tasks/more.yaml"], **chain)
    assert chained.job.benchmark == "films", "what comes after it is known when it has a result"
    with pytest.raises(UserError, match="did you mean 'num_epochs'"):
        plan(tmp_path, pretrained, tmp_path / "runs", benchmarks={"films": {"recipe": {"num_epoch": 9}}})


def test_a_job_with_the_wrong_row_is_refused(tmp_path: Path, pretrained: Path) -> None:
    write_films(tmp_path)
    [one] = plan(tmp_path, pretrained, tmp_path / "runs")
    document = one.job.model_dump(mode="json")
    for change, message in (
        ({"own": None}, "unknown benchmark 'films'"),
        ({"benchmark": "rte"}, "the row in `own` is that of films, not of rte"),
    ):
        write_json(tmp_path / "JOB.json", {**document, **change})
        with pytest.raises(UserError, match=message):
            read_work(tmp_path / "JOB.json")


def test_predictions_of_an_own_task_are_scored(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).write_bytes((root / name).read_bytes())
    write_films(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "films.tsv").write_text("id\tprediction\n" + "".join(f"{number}\tup\n" for number in range(40)))
    for task in ("tasks/films.yaml", "data/tasks/films.yaml"):
        score.callback(task, tmp_path / "data/tasks/dev.csv", tmp_path / "films.tsv", None, None)
        report = json.loads(capsys.readouterr().out)
        assert (report["task"], report["num_rows"], report["scores"]) == ("films", 40, {"accuracy": 50.0})
    with pytest.raises(UserError, match="did you mean 'sst2'"):
        score.callback("sst-2", tmp_path / "a", tmp_path / "b", None, None)


def test_an_own_task_is_looked_for_in_the_corpus(tmp_path: Path) -> None:
    write_films(tmp_path)
    texts = read_benchmark_texts(["tasks/films.yaml"], tmp_path)
    assert texts.items[0].name == "films/dev/0" and texts.items[0].texts == ("the film was good",)
    assert (texts.files, texts.missing) == (["tasks/dev.csv"], [])


def test_dvc_watches_own_tasks(root: Path) -> None:
    assert "data/tasks" in read_yaml(root / "dvc.yaml")["stages"]["finetune"]["deps"]
