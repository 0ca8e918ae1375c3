"""`cloze compare A@run B@run`: parameters, then scores, of any recorded runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flows.cli import leaderboard_commands
from model.common.errors import UserError
from model.common.state_files import read_state, write_state
from tasks.leaderboard import history
from tasks.leaderboard.compare_two import compare_sides, encoder_side, find_side
from tasks.leaderboard.settings import difference, settings_of, short_keys
from tasks.project.project import Project
from tests.tasks.leaderboard.test_history import leave, predict

PARAMS: dict[str, Any] = {
    "pretrain": {
        "seed": 1,
        "recipe": {"phases": [{"num_steps": 2000, "batch_size": 64}], "warmup_steps": 300},
        "num_parallel": 1,
        "encoders": [
            {"name": "sample-mini", "shape": {"preset": "mini"}, "recipe": {}, "seed": None},
            {"name": "from-scratch", "shape": {"preset": "mini"}, "recipe": {"phases": []}, "seed": 7},
        ],
    },
    "finetune": {
        "seeds": [1, 2, 3],
        "num_workers": 2,
        "epochs_factor": {"from-scratch": 3},
        "encoders": [],
        "benchmarks": {"sst2": None, "rte": {"recipe": {"num_epochs": 5}}},
        "tasks": [],
    },
}


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.leaderboard.board.draw_plots", lambda *_: [])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(tmp_path, tmp_path)
    monkeypatch.setattr(leaderboard_commands, "project_here", lambda: project)
    return project


def compare(*arguments: str, error: str = "") -> str:
    """Output of the command, as it is without a terminal."""
    done = CliRunner().invoke(leaderboard_commands.compare, arguments)
    assert error in str(done.exception) if error else done.exit_code == 0
    return done.output


@pytest.fixture
def two_runs(project: Project, metrics: Any, encoders: Any, tmp_path: Path) -> list[str]:
    """A run, and a later one with other steps whose encoder is better."""
    runs = []
    for name, num_right, num_steps in (("base", 120, 2000), ("longer", 180, 4000)):
        for task in ("sst2", "rte"):
            content = metrics.read("sample-mini", task)
            for job in content["jobs"]:
                job["digest"] = f"{len(runs)}{job['digest'][1:]}"
                value = num_right / 2 + job["seed"] / 10 * len(runs)
                job |= {"scores": {"accuracy": value}, "headline": {"metric": "accuracy", "value": value}}
            metrics.write("sample-mini", task, content)
        predict(metrics, "sample-mini", "sst2", num_right)
        params = json.loads(json.dumps(PARAMS))
        params["pretrain"]["recipe"]["phases"][0]["num_steps"] = num_steps
        facts = {"name": name, "params": params, "written": f"2026-01-0{len(runs) + 1}T00:00:00+0000"}
        runs.append(leave(project.leaderboards, metrics, encoders, tmp_path / name, ["sst2", "rte"], **facts)["digest"])
    return runs


def test_parameters_come_first_and_only_those_that_differ(two_runs: list[str]) -> None:
    found = compare("sample-mini@longer", "sample-mini@base")
    assert found.index("num_steps") < found.index("sst2")
    assert re.search(r"pretrain\.recipe\.phases\.0\.num_steps +4000 +2000", found)
    assert "batch_size" not in found and "num_workers" not in found and "warmup" not in found
    [line] = [line for line in found.splitlines() if line.startswith("sst2")]
    assert line.split()[2:5] == ["90.0", "60.0", "+30.0"] and line.split()[-1] == "A"
    assert "no predictions on rte on this machine: other dev rows are not covered" in found
    assert compare(f"sample-mini@{two_runs[1][:5]}", f"sample-mini@{two_runs[0][:5]}") == found, "ids name runs, too"


def test_a_run_has_the_benchmarks_of_all_runs_of_the_same_system(
    two_runs: list[str], project: Project, metrics: Any, encoders: Any, tmp_path: Path
) -> None:
    leave(project.leaderboards, metrics, encoders, tmp_path / "third", ["sst2", "rte", "mrpc"], name="more")
    found = compare("sample-mini@longer", "from-scratch@more", "mrpc")
    assert any(line.startswith("mrpc") for line in found.splitlines()), "as the board, which lists it once"


def test_parameters_are_compared_without_a_common_benchmark(
    two_runs: list[str], project: Project, metrics: Any, encoders: Any, tmp_path: Path
) -> None:
    params = PARAMS | {"finetune": {"seeds": [7]}}
    leave(project.leaderboards, metrics, encoders, tmp_path / "other", ["mrpc"], name="other", params=params)
    found = compare("sample-mini@longer", "sample-mini@other", error="have no common benchmark")
    assert re.search(r"finetune\.seeds +\[1, 2, 3\] +\[7\]", found)


def test_the_output_fits_80_columns(two_runs: list[str]) -> None:
    lines = compare("sample-mini@longer", "from-scratch@base").splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


def test_an_encoder_of_the_project_is_compared_with_a_recorded_one(two_runs: list[str], metrics: Any) -> None:
    home = metrics.root.parent / ".cloze" / "leaderboard"
    ours, earlier = (find_side(metrics.finetune, home, name) for name in ("sample-mini", "sample-mini@base"))
    [found], reasons = compare_sides(ours, earlier, ["sst2"])
    assert (found.difference, found.better, reasons) == (30.0, "first", {})
    assert ours.settings["pretrain.recipe.phases.0.num_steps"] == "4000", "of the run with the same jobs"
    assert not encoder_side(metrics.finetune, "sample-mini").settings, "no record tells them"


def test_other_dev_rows_are_not_compared(two_runs: list[str], metrics: Any, encoders: Any, tmp_path: Path) -> None:
    for encoder in encoders:
        content = metrics.read(encoder["name"], "rte")
        for job in content["jobs"]:
            job |= {"dev_digest": "other", "digest": f"9{job['digest'][1:]}"}
        metrics.write(encoder["name"], "rte", content)
    leave(tmp_path / ".cloze" / "leaderboard", metrics, encoders, tmp_path / "third", ["sst2", "rte"], name="third")
    found = compare("sample-mini@third", "sample-mini@base")
    assert "not compared: rte (other dev rows of the same number)" in found
    assert "The parameters of sample-mini@third are not recorded" in found
    assert [line.split()[0] for line in found.splitlines() if "accuracy" in line] == ["sst2"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("sample-mini@nope", "x"), "no run 'nope' is recorded; available: longer-"),
        (("sample-mimi@base", "x"), "no encoder 'sample-mimi'; did you mean 'sample-mini'"),
        (("sample-mini@base", "mini"), "no results of an encoder 'mini'"),
    ],
)
def test_mistakes_are_one_line(two_runs: list[str], metrics: Any, names: tuple[str, str], message: str) -> None:
    home = metrics.root.parent / ".cloze" / "leaderboard"
    with pytest.raises(UserError, match=message):
        for name in names:
            find_side(metrics.finetune, home, name)


def test_the_first_characters_of_two_runs_are_refused(two_runs: list[str], project: Project) -> None:
    for digest in ("aaaa000000000000", "aaaa111111111111"):
        path = project.leaderboards / digest / "record.json"
        record = read_state(project.leaderboards / two_runs[0] / "record.json")
        write_state(path, record | {"digest": digest})
    records = history.read_records(project.leaderboards)
    for text in ("aaaa", "base-aaaa"):
        with pytest.raises(UserError, match=f"'{text}' matches 2 runs: .*; pass the id of one, or more characters"):
            history.find_record(records, text)
    assert history.find_record(records, "aaaa0").digest == "aaaa000000000000"
    assert history.find_record(records, "base-aaaa1111").digest == "aaaa111111111111", "name and id"


def test_settings_of_a_system_are_its_own(two_runs: list[str], project: Project) -> None:
    record = history.find_record(history.read_records(project.leaderboards), "base")
    ours, theirs = (settings_of(record, name) for name in ("sample-mini", "from-scratch"))
    assert difference(ours, theirs) == {
        "pretrain.seed": ("1", "7"),
        "pretrain.recipe.phases.0.num_steps": ("2000", "–"),
        "pretrain.recipe.phases.0.batch_size": ("64", "–"),
        "pretrain.recipe.warmup_steps": ("300", "–"),
        "finetune.epochs_factor": ("1", "3"),
        "pretrain.recipe.phases": ("–", "[]"),
    }
    assert ours["finetune.benchmarks.rte.recipe.num_epochs"] == "5" and "finetune.benchmarks.sst2" not in ours
    assert settings_of(record.model_copy(update={"params": {}}), "sample-mini") == {}


def test_keys_are_shortened_while_they_differ() -> None:
    keys = [
        "pretrain.recipe.phases.0.num_steps",
        "pretrain.recipe.phases.1.num_steps",
        "pretrain.seed",
        "finetune.seed",
    ]
    assert list(short_keys(keys).values()) == [
        "pretrain…0.num_steps",
        "pretrain…1.num_steps",
        "pretrain.seed",
        "finetune.seed",
    ]


def test_everything_is_in_the_json(two_runs: list[str]) -> None:
    found = json.loads(compare("sample-mini@longer", "sample-mini@base", "sst2", "--json"))
    [one] = found["benchmarks"]
    assert one["benchmark"] == "sst2" and one["rows"]["low"] <= one["difference"] <= one["rows"]["high"]
    assert found["parameters"] and all(a != b for a, b in found["parameters"].values())
