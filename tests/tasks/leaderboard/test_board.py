"""The leaderboard as a whole: what is written, what is refused, what stays equal."""

from __future__ import annotations

import json
import math
import random
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from model.common.errors import UserError
from model.common.files import read_json, write_json
from model.common.run_dir import RunDir
from tasks.leaderboard.board import build_leaderboard
from tasks.leaderboard.compare_two import compare_sides, encoder_side
from tasks.leaderboard.terminal import summary_lines
from tests.tasks.leaderboard.conftest import make_metrics


def build(metrics: Any, encoders: Any, benchmarks: Any, out: Path, **options: Any) -> dict[str, Any]:
    return build_leaderboard(metrics.finetune, metrics.pretrain, encoders, benchmarks, out, **options).content()


def test_everything_is_written_in_the_promised_form(metrics, encoders, benchmarks, tmp_path) -> None:
    board = build(metrics, encoders, benchmarks, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "leaderboard.json").read_text()) == board
    assert board["tasks"] == benchmarks
    own = [system for system in board["systems"] if system["kind"] != "quoted"]
    assert [(system["name"], system["kind"]) for system in own] == [
        ("sample-mini", "pretrained"),
        ("from-scratch", "scratch"),
    ]
    for system in own:
        headlines = []
        for task in benchmarks:
            for cell in system["scores"][task].values():
                assert set(cell) == {"mean", "std", "median", "best", "num_runs"}
                assert -100 <= cell["mean"] <= cell["best"] <= 100
            headlines.append(system["scores"][task][board["headline"][task]]["mean"])
        assert system["average"] == pytest.approx(sum(headlines) / 13, abs=1e-3)
    assert {system["kind"] for system in board["systems"]} == {"pretrained", "scratch", "quoted"}
    assert all(system["split"] == "dev" for system in own)
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    for_dvc = {"metrics.json", "scores.csv", "pretraining/sample-mini.csv"}
    assert names == for_dvc | {f"leaderboard.{kind}" for kind in ("csv", "html", "json")} | {
        f"plots/{name}.png" for name in ("scores", "pretraining")
    }
    metrics = read_json(tmp_path / "out" / "metrics.json")
    assert {name: row.pop("average") for name, row in metrics.items()} == {one["name"]: one["average"] for one in own}
    rows = (tmp_path / "out" / "scores.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 13 and rows[1].split(",")[1:3] == [own[0]["name"], benchmarks[0]]
    curve = (tmp_path / "out" / "pretraining" / "sample-mini.csv").read_text()
    assert curve.startswith("step,") and len(curve.splitlines()) > 2


def test_rows_for_selection_are_compared_with_the_reported_rows(metrics, encoders, benchmarks, tmp_path) -> None:
    rows = [{"id": str(row), "prediction": "0", "label": "01"[row < 75]} for row in range(300)]
    rows += [{"id": f"s{row}", "prediction": "0", "label": "01"[row > 90], "selection": True} for row in range(100)]
    for encoder in encoders:
        content = metrics.read(encoder["name"], "sst2")
        for job in content["jobs"]:
            job |= {"num_selection_rows": 100, "selection_scores": {"accuracy": 90.0 + job["seed"]}}
            job |= {"headline": {"metric": "accuracy", "value": 75.0}, "scores": {"accuracy": 75.0}}
            path = RunDir(metrics.path(encoder["name"], "sst2").parent / "jobs" / job["digest"]).predictions
            path.parent.mkdir(parents=True)
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        metrics.write(encoder["name"], "sst2", content)
    board = build_leaderboard(metrics.finetune, metrics.pretrain, encoders, benchmarks, tmp_path / "out")
    cell = board.systems[0].cells["sst2"]
    assert cell.selection is not None
    assert (cell.selection.mean, cell.selection.difference) == (91.0, 16.0)
    assert cell.selection.low is not None and cell.selection.high is not None
    error = 100 * (0.91 * 0.09 / 100 + 0.75 * 0.25 / 300) ** 0.5  # of two independent shares
    assert (cell.selection.high - cell.selection.low) / 2 == pytest.approx(1.96 * error, rel=0.15)
    page = (tmp_path / "out" / "leaderboard.html").read_text()
    assert "reported on 300 dev rows, recipe selected on 100 others" in page
    assert "recipe selected and reported on the same 200 dev rows" in page, "MRPC has no rows for selection"
    assert "Selected and reported on the same rows, so the scores are somewhat too high: CoLA, MRPC" in page
    assert any("SST-2 +16.0 (" in line for line in summary_lines(board))


def test_pretrainings_of_a_system_are_one_row_whose_comparisons_cover_their_seeds(benchmarks, tmp_path) -> None:
    names = {"base": "pretrained", "wide": "external"}
    encoders = [
        {"name": f"{system}-seed{seed}", "kind": kind, "system": system, "seed": seed}
        for system, kind in names.items()
        for seed in (1, 2, 3)
    ]
    metrics = make_metrics(tmp_path / "build", encoders)
    generator = random.Random(1)
    for encoder in encoders:
        content = metrics.read(encoder["name"], "sst2")
        for job in content["jobs"]:
            path = RunDir(metrics.path(encoder["name"], "sst2").parent / "jobs" / job["digest"]).predictions
            path.parent.mkdir(parents=True)
            rows = [{"id": str(row), "prediction": "01"[generator.random() < 0.8], "label": "1"} for row in range(300)]
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            score = sum(row["prediction"] == "1" for row in rows) / 3
            job |= {"scores": {"accuracy": score}, "headline": {"metric": "accuracy", "value": score}}
        metrics.write(encoder["name"], "sst2", content)
    write_json(metrics.finetune / "plan.json", {"encoders": encoders, "benchmarks": benchmarks})
    board = build_leaderboard(metrics.finetune, metrics.pretrain, encoders, benchmarks, tmp_path / "out")
    assert [system.name for system in board.measured] == ["base", "wide"]
    base = board.measured[0]
    assert [one.name for one in board.systems[0].pretrainings] == ["base-seed1", "base-seed2", "base-seed3"]
    assert board.systems[0].pretrainings[1].cells["cola"].values == base.cells["cola"].values[3:6]
    cell = base.cells["cola"]
    assert cell.pretrain_seeds == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert (cell.num_runs, cell.num_pretrainings) == (9, 3)
    members = [statistics.fmean(cell.values[place : place + 3]) for place in (0, 3, 6)]
    assert base.scores["cola"]["matthews"].std == pytest.approx(statistics.stdev(members), abs=1e-3)
    [record] = [found["sst2"] for found in board.comparisons.values()]
    assert record.low is not None and record.pretrain_low is not None and record.pretrain_high is not None
    first, second = (encoder_side(metrics.finetune, name) for name in ("base", "wide"))
    [found], _ = compare_sides(first, second, ["sst2"])
    assert found.pretraining is not None and found.pretraining.paired
    assert "3 pre-trainings with 3 seeds" in (tmp_path / "out" / "leaderboard.html").read_text()
    assert "The intervals and tests also cover the pre-training seed (Multi-Bootstrap)." in summary_lines(board)
    single = build_leaderboard(metrics.finetune, metrics.pretrain, encoders[2:4], benchmarks, tmp_path / "single")
    assert any("Only one pre-training of" in line for line in summary_lines(single))


def test_lead_baseline_flags_and_skipped_rows(metrics, encoders, benchmarks, tmp_path) -> None:
    board = build(metrics, encoders, benchmarks, tmp_path / "out")
    lead = board["lead"]
    assert (lead["pretrained"], lead["scratch"]) == ("sample-mini", "from-scratch")
    ours, theirs = (system["average"] for system in board["systems"][:2])
    assert lead["all"]["mean"] == pytest.approx(ours - theirs, abs=1e-3)
    assert lead["all"]["low"] < lead["all"]["mean"] < lead["all"]["high"]
    assert set(lead["large"]["tasks"]) == set(benchmarks) - {"rte", "wnli"}
    assert board["baselines"]["majority"]["scores"]["mnli"]["accuracy"] == 34.5
    assert board["skipped"] == [{"benchmark": "qqp", "num_skipped_rows": 3}]
    assert {run["benchmark"] for run in board["flagged"]} == {"wnli"}
    assert board["runs"] == {"total": 13 * 2 * 6, "degenerate": 8}
    scratch = board["systems"][1]["cells"]["wnli"]
    assert scratch["all_degenerate"]
    assert scratch["num_degenerate"] == 3


def test_equal_inputs_give_equal_bytes(metrics, encoders, benchmarks, tmp_path) -> None:
    for name in ("one", "other"):
        build(metrics, encoders, benchmarks, tmp_path / name)
    # Jobs end in any order.
    content = metrics.read("sample-mini", "cola")
    metrics.write("sample-mini", "cola", {**content, "jobs": content["jobs"][::-1]})
    build(metrics, encoders, benchmarks, tmp_path / "reordered")
    for path in (tmp_path / "one").rglob("*.*"):
        name = path.relative_to(tmp_path / "one")
        assert (tmp_path / "other" / name).read_bytes() == path.read_bytes(), name
        assert (tmp_path / "reordered" / name).read_bytes() == path.read_bytes(), name


def test_missing_metrics_are_refused_by_name_and_nothing_is_written(metrics, encoders, benchmarks, tmp_path) -> None:
    metrics.path("from-scratch", "rte").unlink()
    with pytest.raises(UserError, match=r"from-scratch/rte/metrics\.json.*--allow-missing") as caught:
        build(metrics, encoders, benchmarks, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_allowed_gaps_take_the_average_away_and_are_told(metrics, encoders, benchmarks, tmp_path) -> None:
    metrics.path("from-scratch", "rte").unlink()
    content = metrics.read("from-scratch", "wnli")
    metrics.write("from-scratch", "wnli", {**content, "jobs": []})
    board = build(metrics, encoders, benchmarks, tmp_path / "out", allow_missing=True)
    complete, gappy = board["systems"][:2]
    assert complete["average"] is not None
    assert gappy["average"] is None
    assert gappy["glue_average"] is None
    assert [entry["benchmark"] for entry in board["missing"]] == ["rte", "wnli"]
    assert board["lead"]["all"]["num_benchmarks"] == 11
    page = (tmp_path / "out" / "leaderboard.html").read_text()
    assert "from-scratch on RTE; from-scratch on WNLI" in page


def test_missing_pretraining_metrics_are_refused(metrics, encoders, benchmarks, tmp_path) -> None:
    (metrics.pretrain / "sample-mini" / "metrics.json").unlink()
    with pytest.raises(UserError, match=r"sample-mini/metrics\.json"):
        build(metrics, encoders, benchmarks, tmp_path / "out")
    board = build(metrics, encoders, benchmarks, tmp_path / "out", allow_missing=True)
    assert board["missing"][0] == {"encoder": "sample-mini", "benchmark": "", "file": "sample-mini/metrics.json"}


def test_a_reference_may_be_named_and_a_wrong_name_is_refused(metrics, encoders, benchmarks, tmp_path) -> None:
    board = build(metrics, encoders, benchmarks, tmp_path / "out")
    assert board["reference"] == "sample-mini"
    assert set(board["comparisons"]) == {"from-scratch"}
    board = build(metrics, encoders, benchmarks, tmp_path / "out", reference="from-scratch")
    assert board["reference"] == "from-scratch"
    assert board["comparisons"]["sample-mini"]["sst2"]["verdict"] == "ahead"
    with pytest.raises(UserError, match=r"no system 'sample-mine'; did you mean 'sample-mini'\?"):
        build(metrics, encoders, benchmarks, tmp_path / "none", reference="sample-mine")
    assert not (tmp_path / "none").exists()


def test_an_ensemble_a_chain_and_given_up_recipes_are_told(metrics, encoders, benchmarks, tmp_path) -> None:
    content = metrics.read("sample-mini", "rte")
    chosen = [job for job in content["jobs"] if job["recipe"]["learning_rate"] == 3e-4]
    given_up = {**chosen[0], "digest": "0" * 16}
    ensemble = {"digest": "e", "seeds": [job["seed"] for job in chosen], "scores": {"accuracy": 71.25}}
    metrics.write("sample-mini", "rte", {**content, "ensemble": ensemble, "after": ["mnli"], "pruned": [given_up]})
    board = build(metrics, encoders, benchmarks, tmp_path / "out")
    cell = board["systems"][0]["cells"]["rte"]
    assert (cell["ensemble"], cell["after"], cell["num_pruned"]) == ({"accuracy": 71.25}, ["mnli"], 1)
    assert len(cell["jobs"]) == 7
    page = (tmp_path / "out" / "leaderboard.html").read_text()
    assert '<option value="ensemble">' in page and 'data-ensemble="71.25"' in page and "after mnli" in page
    metrics.write("sample-mini", "rte", {**content, "ensemble": {**ensemble, "seeds": [7]}})
    board = build(metrics, encoders, benchmarks, tmp_path / "out")
    assert board["systems"][0]["cells"]["rte"]["ensemble"] is None, "it is of other runs than the cell shows"


def test_rows_that_were_skipped_or_are_odd_are_named(metrics, encoders, benchmarks, tmp_path) -> None:
    content = metrics.read("sample-mini", "qqp")
    for job in content["jobs"]:
        job |= {"skipped_rows": ["row 7: 5 columns <of> 6"], "remarks": ["empty texts: 2 (row 3, row 9)"]}
    metrics.write("sample-mini", "qqp", content)
    board = build(metrics, encoders, benchmarks, tmp_path / "out")
    assert list(board["remarks"]) == ["qqp"]
    page = (tmp_path / "out" / "leaderboard.html").read_text()
    assert "row 7: 5 columns &lt;of&gt; 6" in page and "empty texts: 2 (row 3, row 9)" in page


def test_an_external_encoder_needs_no_pretraining_of_ours(metrics, encoders, benchmarks, tmp_path) -> None:
    (metrics.pretrain / "sample-mini" / "metrics.json").unlink()
    external = [{**encoders[0], "kind": "external"}, encoders[1]]
    for benchmark in benchmarks:
        metrics.write("sample-mini", benchmark, {**metrics.read("sample-mini", benchmark), "kind": "external"})
    board = build(metrics, external, benchmarks, tmp_path / "out")
    assert board["missing"] == []
    assert board["leads"][0]["pretrained"] == "sample-mini"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda job: job.update(encoder="other"), "is of other on cola"),
        (lambda job: job.update(num_dev_rows=7), "number of dev rows"),
        (lambda job: job.update(headline={"metric": "f1", "value": 3.0}), "no score for its headline metric 'f1'"),
        (lambda job: job["scores"].update(matthews=math.nan), "finite"),
        (lambda job: job.pop("recipe"), "recipe"),
    ],
)
def test_damaged_metrics_are_refused(metrics, encoders, benchmarks, tmp_path, change, message) -> None:
    content = metrics.read("sample-mini", "cola")
    change(content["jobs"][1])
    metrics.write("sample-mini", "cola", content)
    with pytest.raises(UserError, match=message):
        build(metrics, encoders, benchmarks, tmp_path / "out", allow_missing=True)


def test_a_file_that_is_cut_off_is_named(metrics, encoders, benchmarks, tmp_path) -> None:
    path = metrics.path("sample-mini", "cola")
    path.write_text(path.read_text()[:100])
    with pytest.raises(UserError, match=r"sample-mini/cola/metrics\.json: not JSON"):
        build(metrics, encoders, benchmarks, tmp_path / "out")


def test_one_encoder_alone_has_no_lead(metrics, encoders, benchmarks, tmp_path) -> None:
    board = build(metrics, encoders[:1], benchmarks, tmp_path / "out")
    assert board["lead"] is None
    assert "What pre-training adds" not in (tmp_path / "out" / "leaderboard.html").read_text()


def test_an_encoder_from_scratch_alone_has_no_pretraining_picture(metrics, encoders, benchmarks, tmp_path) -> None:
    build(metrics, encoders[1:], benchmarks, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out" / "plots").iterdir()] == ["scores.png"]


def test_sentence_order_is_shown_where_it_was_learnt(metrics, encoders, benchmarks, tmp_path) -> None:
    path = metrics.pretrain / "sample-mini" / "metrics.json"
    path.write_text(path.read_text().replace("nsp_", "sop_"))
    build(metrics, encoders, benchmarks, tmp_path / "out")
    page = (tmp_path / "out" / "leaderboard.html").read_text()
    assert "Sentence order: accuracy" in page and "· sentence order 9" in page
    assert "Next sentence: accuracy" not in page


def test_a_diverged_loss_does_not_break_the_curves(metrics, encoders, benchmarks, tmp_path) -> None:
    content = metrics.read("sample-mini", "cola")
    for row in content["jobs"][3]["curve"][10:]:
        row["loss"] = math.nan
    metrics.write("sample-mini", "cola", content)
    build(metrics, encoders, benchmarks, tmp_path / "out")
    assert "NaN" not in (tmp_path / "out" / "leaderboard.json").read_text()
    paths = re.findall(r' d="([^"]*)"', (tmp_path / "out" / "leaderboard.html").read_text())
    assert len(paths) > 100
    assert not any("nan" in path for path in paths)


def test_every_seed_counts_and_the_mean_of_those_that_learned_is_shown(metrics, encoders, benchmarks, tmp_path) -> None:
    board = build(metrics, encoders, benchmarks, tmp_path / "out")
    cell = board["systems"][0]["cells"]["wnli"]
    assert (cell["seeds"], cell["num_degenerate"]) == ([0, 1, 2], 1)
    learned = [value for seed, value in zip(cell["seeds"], cell["values"]) if seed != 1]
    assert cell["learned_mean"] == pytest.approx(sum(learned) / 2, abs=1e-3)
    score = board["systems"][0]["scores"]["wnli"]["accuracy"]
    assert score["mean"] == pytest.approx(sum(cell["values"]) / 3, abs=1e-3)
    assert f"{cell['learned_mean']:.1f} without ⚑" in (tmp_path / "out" / "leaderboard.html").read_text()
