"""Records of finished leaderboards, and the board across them."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.cli import leaderboard_commands
from model.common.errors import UserError
from model.common.state_files import write_state
from tasks.leaderboard import history
from tasks.leaderboard.board import build_leaderboard
from tasks.leaderboard.board_files import is_outdated, write_board
from tasks.leaderboard.inputs import Inputs
from tasks.leaderboard.page import render_combined
from tasks.leaderboard.schema import CombinedBoard
from tasks.leaderboard.terminal import print_board
from tasks.project.project import Project
from tasks.project.stage_versions import write_versions
from tests.tasks.leaderboard.test_page import read

TASKS = ["sst2", "mrpc", "rte"]


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.leaderboard.board.draw_plots", lambda *_: [])


def leave(
    home: Path, metrics: Any, encoders: Any, out: Path, tasks: list[str] | None = None, **facts: Any
) -> dict[str, Any]:
    """Build a leaderboard and leave its record."""
    board = build_leaderboard(metrics.finetune, metrics.pretrain, encoders, tasks or TASKS, out)
    costs = history.costs(out / "runs", board.measured)
    record = history.record_of(board, costs, {"written": "2026-01-01T00:00:00+0000", **facts})
    history.keep(home, record, (out / history.PAGE).read_text(), Inputs(metrics.finetune))
    return record.content()


def combined(home: Path, reference: str = "") -> dict[str, Any]:
    return history.combined_board(history.read_records(home), home, reference).content()


def measured(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [system for system in board["systems"] if system["kind"] != "quoted"]


def predict(metrics: Any, encoder: str, benchmark: str, num_right: int) -> None:
    """Predictions of every job: the first `num_right` of 200 rows right."""
    for job in metrics.read(encoder, benchmark)["jobs"]:
        path = metrics.path(encoder, benchmark).parent / "jobs" / job["digest"] / "predictions.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {"id": str(row), "label": "1", "prediction": "1" if row < num_right else "0", "logits": [0.0, 1.0]}
            for row in range(200)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_equal_runs_are_recorded_once_and_equal_systems_stand_once(metrics, encoders, tmp_path) -> None:
    home = tmp_path / "home"
    first = leave(home, metrics, encoders, tmp_path / "one")
    leave(home, metrics, encoders, tmp_path / "two", written="2026-01-02T00:00:00+0000")
    assert len(history.read_records(home)) == 1
    leave(home, metrics, encoders[:1], tmp_path / "three", written="2026-01-03T00:00:00+0000")
    records = history.read_records(home)
    assert [record.written[:10] for record in records] == ["2026-01-03", "2026-01-02"]
    board = combined(home)
    assert [system["name"] for system in measured(board)] == ["sample-mini", "from-scratch"]
    assert measured(board)[0]["runs"] == [records[0].digest, first["digest"]]


def test_a_run_with_the_same_results_is_found_by_its_own_name(metrics, encoders, tmp_path, monkeypatch) -> None:
    project = Project(tmp_path, tmp_path)
    home = project.leaderboards
    leave(home, metrics, encoders, tmp_path / "one", name="first", pipeline="1" * 16, workspace="a")
    leave(home, metrics, encoders, tmp_path / "two", name="second", pipeline="2" * 16, params={"tokens": {"seed": 1}})
    board = build_leaderboard(metrics.finetune, metrics.pretrain, encoders, TASKS, tmp_path / "three")
    third = {"name": "third", "pipeline": "3" * 16, "written": "2026-01-03T00:00:00+0000", "workspace": "c"}
    monkeypatch.setattr(history, "pipeline_key", lambda _: third["pipeline"])
    monkeypatch.setattr(history, "present_run", lambda _: third)
    assert [history.note_repeat(project, board) for _ in range(2)] == ["second-22222222"] * 2
    records = history.read_records(home)
    names = ("first-11111111", "1111", "second", "2222", "third", "third-33333333", "33333333")
    found = [history.find_record(records, name) for name in names]
    assert len(records) == 1 and {one.digest for one in found} == {records[0].digest}
    # Each run has its own provenance and parameters.
    assert [one.workspace for one in found] == ["a", "a", "", "", "c", "c", "c"]
    assert [bool(one.params) for one in found] == [False, False, True, True, False, False, False]
    [summary] = history.combined_board(records, home).records
    assert [one.title for one in summary.repeats] == ["first-11111111", "third-33333333"]
    with pytest.raises(UserError, match="no run 'fourth' is recorded"):
        history.find_record(records, "fourth")


def test_systems_of_one_name_are_told_apart_and_compared(metrics, encoders, tmp_path) -> None:
    home = tmp_path / "home"
    one = leave(home, metrics, encoders[:1], tmp_path / "one")
    for task in TASKS:
        content = metrics.read("sample-mini", task)
        for job in content["jobs"]:
            loss = 19.9 + job["seed"] / 10
            job["digest"] = job["digest"][::-1]
            job["scores"] = {name: value - loss for name, value in job["scores"].items()}
            job["headline"]["value"] -= loss
        metrics.write("sample-mini", task, content)
    two = leave(home, metrics, encoders[:1], tmp_path / "two", written="2026-01-02T00:00:00+0000")
    board = combined(home)
    names = [f"sample-mini@{record['digest'][:8]}" for record in (one, two)]
    assert [system["name"] for system in measured(board)] == names, "the better one first"
    assert board["reference"] == names[0]
    record = board["comparisons"][names[1]]["sst2"]
    assert (record["difference"], record["verdict"]) == (-20.0, "behind")
    assert combined(home, names[1])["comparisons"][names[0]]["sst2"]["verdict"] == "ahead"
    assert combined(home, "sample-mini")["reference"] == names[0], "the best of those that are called so"


def test_predictions_are_kept_so_that_rows_compare_across_runs(metrics, encoders, tmp_path) -> None:
    home = tmp_path / "home"
    for encoder, num_right in (("sample-mini", 180), ("from-scratch", 120)):
        predict(metrics, encoder, "sst2", num_right)
    for number, encoder in enumerate(encoders):
        leave(home, metrics, [encoder], tmp_path / str(number))
    shutil.rmtree(metrics.finetune)
    board = combined(home)
    record = board["comparisons"]["from-scratch"]
    assert record["sst2"]["row_p"] < 0.01 and record["mrpc"]["row_p"] is None
    assert len(list((home / "predictions").iterdir())) == 2
    rows = history.read_predictions(home, CombinedBoard.parse(board, "board").measured[0], "sst2")
    assert rows is not None and len(rows) == 3
    assert rows[0][0] == {"id": "0", "label": "1", "prediction": "1"}, "logits are not kept"


def test_other_dev_rows_are_not_compared_and_the_page_says_why(metrics, encoders, tmp_path) -> None:
    home = tmp_path / "home"
    leave(home, metrics, encoders[:1], tmp_path / "one")
    content = metrics.read("from-scratch", "sst2")
    for job in content["jobs"]:
        job["num_dev_rows"] = 100
    metrics.write("from-scratch", "sst2", content)
    leave(home, metrics, encoders[1:], tmp_path / "two")
    board = combined(home)
    assert board["comparisons"]["from-scratch"]["sst2"]["reason"] == "other dev rows: 100 against 300"
    assert board["comparisons"]["from-scratch"]["mrpc"]["reason"] == ""
    page = render_combined(CombinedBoard.parse(board, "board"), [])
    assert "not compared: other dev rows: 100 against 300" in page


def test_an_average_is_over_all_benchmarks_of_all_runs(metrics, encoders, tmp_path) -> None:
    home = tmp_path / "home"
    leave(home, metrics, encoders[:1], tmp_path / "one")
    leave(home, metrics, encoders[1:], tmp_path / "two", ["sst2", "ner"])
    board = combined(home)
    assert board["tasks"] == ["sst2", "mrpc", "rte", "ner"]
    assert [system["average"] for system in measured(board)] == [None, None]
    assert board["comparisons"]["from-scratch"]["ner"]["reason"] == "sample-mini has no score"


def test_a_system_with_few_benchmarks_comes_after_the_others(metrics, encoders, tmp_path) -> None:
    home = tmp_path / "home"
    leave(home, metrics, encoders[1:], tmp_path / "one")
    leave(home, metrics, encoders[:1], tmp_path / "two", ["sst2"])
    first, last = measured(combined(home))
    assert (first["name"], last["name"]) == ("from-scratch", "sample-mini")
    assert last["scores"]["sst2"]["accuracy"]["mean"] > first["scores"]["sst2"]["accuracy"]["mean"]
    leave(home, metrics, encoders[:1], tmp_path / "three", ["sst2", "mrpc"], written="2026-01-02T00:00:00+0000")
    assert measured(combined(home))[0]["name"] == "sample-mini", "with two of three, the estimate counts"


def test_the_page_is_whole_and_links_to_each_run(metrics, encoders, tmp_path) -> None:
    home = tmp_path / "home"
    record = leave(home, metrics, encoders, tmp_path / "one", git_commit="abc123", workspace=".cloze/workspaces/w")
    reader = read(render_combined(CombinedBoard.parse(combined(home), "board"), [record["digest"]]))
    assert reader.open == []
    links = [attributes["href"] for tag, attributes in reader.elements if tag == "a" and "href" in attributes]
    (link,) = [link for link in links if not (link or "").startswith("#")]
    assert (home / str(link)).is_file()
    assert not any(name in {"src", "srcset"} for _, attributes in reader.elements for name in attributes)


def test_costs_are_summed_over_all_jobs_of_all_recipes(metrics, encoders, tmp_path) -> None:
    digests = [job["digest"] for job in metrics.read("sample-mini", "rte")["jobs"]]
    for number, digest in enumerate(digests):
        folder = tmp_path / "one" / "runs" / "finetune" / f"sample-mini-rte-{digest}"
        folder.mkdir(parents=True)
        timing = {"seconds": 10.0, "cpu_seconds": 9.0, "peak_memory_bytes": 100 + number}
        timing |= {"energy_joules": 5.0} if number else {}
        (folder / "timing.json").write_text(json.dumps(timing))
    record = leave(tmp_path / "home", metrics, encoders, tmp_path / "one")
    cost = record["cost"]["sample-mini"]
    assert cost["tasks"]["rte"] == {
        "num_jobs": 6,
        "num_timed": 6,
        "seconds": 60.0,
        "cpu_seconds": 54.0,
        "peak_memory_bytes": 105,
    }, "no energy: one job does not tell it"
    assert cost["total"] == {
        "num_jobs": 18,
        "num_timed": 6,
        **{k: v for k, v in cost["tasks"]["rte"].items() if "num" not in k},
    }
    assert record["cost"]["from-scratch"]["total"] == {"num_jobs": 18, "num_timed": 0}
    board = combined(tmp_path / "home")
    page = render_combined(CombinedBoard.parse(board, "board"), [])
    assert '<option value="seconds">' in page and '<option value="energy">' not in page
    assert board["records"][0]["seconds"] == 60.0


@pytest.mark.parametrize("damage", [lambda text: text[:200], lambda text: text.replace("scratch", "scratsh", 1)])
def test_a_damaged_record_is_set_aside(metrics, encoders, tmp_path, damage, capsys) -> None:
    record = leave(tmp_path / "home", metrics, encoders, tmp_path / "one")
    path = tmp_path / "home" / record["digest"] / "record.json"
    path.write_text(damage(path.read_text()))
    assert history.read_records(tmp_path / "home") == []
    assert path.with_name("record.json.damaged").exists() and not path.exists()
    [line] = capsys.readouterr().err.splitlines()
    assert "record.json" in line and "kept as record.json.damaged" in line


@pytest.mark.parametrize(
    ("values", "message"), [({"format": 9}, "format 9, this version of Cloze reads 1"), ({"systems": 3}, "systems")]
)
def test_a_record_of_another_version_is_named(metrics, encoders, tmp_path, values, message) -> None:
    record = leave(tmp_path / "home", metrics, encoders, tmp_path / "one")
    write_state(tmp_path / "home" / record["digest"] / "record.json", record | values)
    with pytest.raises(UserError, match=rf"record\.json.*{message}") as caught:
        history.read_records(tmp_path / "home")
    assert "\n" not in str(caught.value)


@pytest.fixture
def project(tmp_path: Path, root: Path) -> Project:
    (tmp_path / "project").mkdir()
    shutil.copyfile(root / "params.yaml", tmp_path / "project" / "params.yaml")
    return Project(tmp_path / "project", tmp_path / "project")


@pytest.fixture
def board(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`cloze board` in the project."""
    monkeypatch.setattr(leaderboard_commands, "project_here", lambda: project)
    defaults = {"reference": "", "forgotten": (), "from_mlflow": False, "as_json": False}
    return lambda **options: leaderboard_commands.board.callback(**{**defaults, **options})


def test_the_command_writes_the_page_and_prints_the_reference(
    project, metrics, encoders, tmp_path, capsys, board
) -> None:
    with pytest.raises(UserError, match="no run is recorded yet"):
        board()
    one = leave(project.leaderboards, metrics, encoders, tmp_path / "one")
    page = project.leaderboards / "board.html"
    board()
    said = capsys.readouterr().out
    assert "compared with the reference sample-mini" in said and "  from-scratch: ▼ " in said
    assert f'href="{one["digest"]}/leaderboard.html"' in page.read_text()
    board(reference="from-scratch", as_json=True)
    written = json.loads(page.with_suffix(".json").read_text())
    assert written["reference"] == "from-scratch"
    assert json.loads(capsys.readouterr().out) == {**written, "page": str(page)}


def test_a_record_can_be_dropped(project, metrics, encoders, tmp_path, board) -> None:
    predict(metrics, "sample-mini", "sst2", 180)
    predict(metrics, "from-scratch", "sst2", 120)
    home = project.leaderboards
    records = [leave(home, metrics, [encoder], tmp_path / encoder["name"]) for encoder in encoders]
    with pytest.raises(UserError, match="no run 'zz' is recorded; available: "):
        board(forgotten=["zz"])
    assert len(list((home / "predictions").iterdir())) == 2
    board(forgotten=[records[0]["digest"][:6]])
    assert [record.digest for record in history.read_records(home)] == [records[1]["digest"]]
    assert len(list((home / "predictions").iterdir())) == 1


@pytest.mark.slow  # MLflow makes its tables
def test_runs_of_other_machines_are_taken_from_mlflow(project, metrics, encoders, tmp_path, monkeypatch) -> None:
    from tasks.tracking import tracking

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_versions(project.root)
    record = leave(tmp_path / "elsewhere", metrics, encoders, tmp_path / "one")
    path = tmp_path / "elsewhere" / record["digest"] / "record.json"
    with tracking.session(project, {}, "data1") as tracker:
        tracker.note(artifacts=[(path, "leaderboard")])
    assert history.take_remote_records(project.tracking_uri, project.leaderboards) == 1
    assert history.take_remote_records(project.tracking_uri, project.leaderboards) == 0
    board = combined(project.leaderboards)
    assert [system["name"] for system in measured(board)] == ["sample-mini", "from-scratch"]
    page = render_combined(CombinedBoard.parse(board, "board"), [])
    assert 'href="' + record["digest"] not in page, "its page stayed where it was made"


def test_a_benchmark_that_is_added_makes_no_second_system(metrics, encoders, tmp_path) -> None:
    home = tmp_path / "home"
    first = leave(home, metrics, encoders, tmp_path / "one", ["sst2", "mrpc"])
    second = leave(home, metrics, encoders, tmp_path / "two", written="2026-01-02T00:00:00+0000")
    third = leave(home, metrics, encoders, tmp_path / "three", ["mrpc", "ner"], written="2026-01-03T00:00:00+0000")
    board = combined(home)
    assert [system["name"] for system in measured(board)] == ["sample-mini", "from-scratch"]
    for system in measured(board):
        assert set(system["scores"]) == set(system["cells"]) == {"sst2", "mrpc", "rte", "ner"}
        assert system["runs"] == [third["digest"], second["digest"], first["digest"]]
        means = [system["scores"][task][metric]["mean"] for task, metric in board["headline"].items()]
        assert system["average"] == pytest.approx(sum(means) / 4, abs=1e-3)
    assert board["comparisons"]["from-scratch"]["ner"]["reason"] == ""


def test_other_jobs_on_one_benchmark_are_another_system(metrics, encoders, tmp_path) -> None:
    home = tmp_path / "home"
    leave(home, metrics, encoders[:1], tmp_path / "one")
    content = metrics.read("sample-mini", "rte")
    for job in content["jobs"]:
        job["digest"] = job["digest"][::-1]
    metrics.write("sample-mini", "rte", content)
    leave(home, metrics, encoders[:1], tmp_path / "two", written="2026-01-02T00:00:00+0000")
    assert len({system["name"] for system in measured(combined(home))}) == 2


@pytest.mark.parametrize(("seeds", "num_systems"), [([1], 1), ([1, 2], 2)])
def test_equal_encoders_without_a_common_benchmark(metrics, encoders, tmp_path, seeds, num_systems) -> None:
    """They are one system if their pre-training jobs and their parameters are the same."""
    home, params = tmp_path / "home", {"finetune": {"seeds": [1]}}
    leave(home, metrics, encoders[:1], tmp_path / "one", ["sst2"], params=params, data="a" * 32)
    # The second benchmark is a new file in data/.
    later = {"params": {"finetune": {"seeds": seeds}}, "data": "b" * 32, "written": "2026-01-02T00:00:00+0000"}
    leave(home, metrics, encoders[:1], tmp_path / "two", ["rte"], **later)
    assert len(measured(combined(home))) == num_systems


def test_the_board_shows_the_parameters_in_which_systems_differ(metrics, encoders, tmp_path) -> None:
    home = tmp_path / "home"
    encoders_params = [
        {"name": "sample-mini", "shape": {"preset": "mini"}, "recipe": {"warmup_steps": 9}},
        {"name": "from-scratch", "shape": {"preset": "mini"}, "recipe": {"phases": []}},
    ]
    params = {"pretrain": {"recipe": {"warmup_steps": 3}, "encoders": encoders_params}, "finetune": {"num_workers": 3}}
    leave(home, metrics, encoders, tmp_path / "one", params=params)
    board = combined(home)
    assert board["settings"] == {
        "sample-mini": {"pretrain.recipe.warmup_steps": "9"},
        "from-scratch": {"pretrain.recipe.phases": "[]"},
    }
    page = render_combined(CombinedBoard.parse(board, "board"), [])
    assert "Differs in" in page and "pretrain…warmup_steps" in page
    lines = terminal_lines(board)
    assert "from-scratch differs in: pretrain…phases []" in lines


@pytest.mark.parametrize("width", [50, 80])
def test_many_systems_fit_a_narrow_terminal(metrics, encoders, tmp_path, width) -> None:
    home = tmp_path / "home"
    for number in range(7):
        for task in TASKS:
            content = metrics.read("sample-mini", task)
            for job in content["jobs"]:
                job["digest"] = f"{number}{job['digest'][1:]}"
            metrics.write("sample-mini", task, content)
        leave(home, metrics, encoders[:1], tmp_path / str(number), written=f"2026-01-0{number + 1}T00:00:00+0000")
    board = combined(home)
    lines = terminal_lines(board, width)
    assert max(map(len, lines)) <= width
    for system in measured(board):
        row = next(line for line in lines if line.startswith(f"{system['name']} "))
        assert row.split()[1] == f"{system['average']:.1f}", "every width has one row per system"
    [header] = [line for line in lines if line.startswith("system")]
    assert ("RTE" in header) == (width == 80), "scores of benchmarks only where they fit"


def terminal_lines(board: dict[str, Any], width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, no_color=True, color_system=None)
    print_board(CombinedBoard.parse(board, "board"), console)
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[\d*m", "", console.file.getvalue()).splitlines()


def test_the_cost_of_pre_training_is_in_the_record(metrics, encoders, tmp_path) -> None:
    digest = json.loads((metrics.pretrain / "sample-mini" / "metrics.json").read_text())["digest"]
    folder = tmp_path / "one" / "runs" / "pretrain" / f"sample-mini-{digest}"
    folder.mkdir(parents=True)
    (folder / "timing.json").write_text(json.dumps({"seconds": 42.0}))
    record = leave(tmp_path / "home", metrics, encoders, tmp_path / "one")
    assert record["cost"]["sample-mini"]["pretraining"] == {"num_jobs": 1, "num_timed": 1, "seconds": 42.0}
    assert record["cost"]["from-scratch"]["pretraining"] == {"num_jobs": 1, "num_timed": 0}


def test_the_board_is_outdated_after_each_recorded_run(metrics, encoders, tmp_path) -> None:
    home = tmp_path / "home"
    assert not is_outdated(home)
    with pytest.raises(UserError, match="no run is recorded yet"):
        write_board(home)
    digest = leave(home, metrics, encoders, tmp_path / "out")["digest"]
    assert is_outdated(home)
    assert [one.digest for one in write_board(home).records] == [digest]
    assert f'href="{digest}/leaderboard.html"' in (home / "board.html").read_text()
    assert (home / "board.csv").exists() and not is_outdated(home)
    tomorrow = time.time() + 86400
    os.utime(home / "board.html", (tomorrow, tomorrow))
    assert is_outdated(home), "the clock was set back"
