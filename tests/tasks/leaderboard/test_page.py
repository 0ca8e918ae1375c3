"""leaderboard.html: whole, escaped, and without the network."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import re
from typing import Any

import pytest

from tasks.leaderboard import history
from tasks.leaderboard.board import compose
from tasks.leaderboard.charts import styles_of
from tasks.leaderboard.csv_table import csv_table
from tasks.leaderboard.inputs import read_inputs
from tasks.leaderboard.page import render_page
from tasks.leaderboard.schema import Leaderboard, SystemCost, SystemErrors
from tasks.leaderboard.terminal import summary_lines

VOID = {"meta", "link", "br", "input", "img", "hr"}
SELF_CLOSED = {"path", "rect", "line", "circle"}


class Reader(html.parser.HTMLParser):
    """Collects elements and checks that they nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: Any) -> None:
        assert tag in SELF_CLOSED | VOID, tag
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


@pytest.fixture
def board(metrics, encoders, benchmarks) -> Leaderboard:
    inputs = read_inputs(metrics.finetune, metrics.pretrain, encoders, benchmarks)
    return compose(inputs, encoders, benchmarks)


def test_the_page_is_well_formed_and_asks_no_network(board) -> None:
    page = render_page(board)
    reader = read(page)
    assert reader.open == []
    for tag, attributes in reader.elements:
        assert tag not in {"link", "img", "iframe", "object"}
        for name, value in attributes.items():
            assert name not in {"src", "srcset", "action"}
            if name == "href":
                assert (value or "").startswith("#")
    assert "//" not in re.sub(r"^\s*//.*$", "", page, flags=re.MULTILINE)
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_every_system_and_benchmark_has_its_place(board, benchmarks) -> None:
    page = render_page(board)
    reader = read(page[page.index('<table class="scores"') : page.index("</table>") + len("</table>")])
    rows = [
        attributes["data-value"] for tag, attributes in reader.elements if tag == "th" and "data-value" in attributes
    ]
    assert [row for row in rows if row] == [system.name for system in board.systems]
    cells = [
        attributes for tag, attributes in reader.elements if tag == "td" and {"title", "data-task"} <= attributes.keys()
    ]
    scored = sum(1 for system in board.systems for task in benchmarks if task in system.scores)
    assert len(cells) == scored


def test_the_best_measured_mean_of_each_column_is_marked_and_no_quoted_one(board, benchmarks) -> None:
    reader = read(render_page(board))
    best = [
        attributes for tag, attributes in reader.elements if tag == "td" and "best" in (attributes.get("class") or "")
    ]
    assert len(best) == len(benchmarks) + 2
    assert all("quoted from" not in (attributes.get("title") or "") for attributes in best)


def test_texts_from_outside_are_escaped(metrics, encoders, benchmarks) -> None:
    inputs = read_inputs(metrics.finetune, metrics.pretrain, encoders, benchmarks)
    bad = '"><script>alert(1)</script>'
    board = compose(inputs, encoders, benchmarks, [f"a note {bad}"]).content()
    board["systems"][0]["name"] = bad
    for part in ("pretrain", "finetune"):
        board["curves"][part][bad] = board["curves"][part].pop("sample-mini")
    for lead in [board["lead"], *board["leads"]]:
        lead["pretrained"] = bad
    board["titles"]["cola"] = bad
    for run in board["flagged"]:
        run["encoder"] = bad
    board["reference"], board["comparisons"] = "from-scratch", {bad: board["comparisons"]["from-scratch"]}
    row = {"id": bad, "part": bad, "value": 1.0, "texts": [[bad, bad]], "prediction": bad, "label": bad}
    told = {"system": bad, "seed": 1, "score": 1.0, "ranked_by": "confidence", "num_rows": 2, "num_wrong": 1}
    board["errors"] = {"cola": [{**told, "rows": [row]}]}
    one = {"name": bad, "num_rows": 1, "num_predicted": 1, "precision": 1.0, "recall": 1.0, "f1": 1.0}
    board["classes"] = {"cola": [{"system": bad, "seed": 1, "num_rows": 1, "classes": [one], "confusion": [[1]]}]}
    board["controls"] = {"cola": bad, "nsp_accuracy": bad}
    reader = read(render_page(Leaderboard.parse(board, "board")))
    assert sum(tag == "script" for tag, _ in reader.elements) == 1


def test_quoted_rows_carry_their_split_and_the_word(board) -> None:
    page = render_page(board)
    row = page[page.index('data-value="BERT base (dev)"') :][:400]
    assert '<span class="chip">dev</span>' in row
    assert "quoted" in row


def test_the_lead_and_its_interval_are_on_the_page(board) -> None:
    page = render_page(board)
    assert board.gap is not None
    gap = board.gap.all
    assert f"+{gap.mean:.1f}" in page
    assert f"+{gap.low:.1f} to +{gap.high:.1f}" in page


def test_kinds_of_encoders_have_different_colors(board) -> None:
    kinds = ["pretrained", "scratch", "pretrained", "quoted", "scratch"]
    systems = [
        {"name": str(number), "kind": kind, "split": "dev", "average": None, "glue_average": None, "scores": {}}
        | ({"paper_name": "", "average_of": None, "prominent": True, "source": {}} if kind == "quoted" else {})
        | ({} if kind == "quoted" else {"digest": "", "cells": {}})
        for number, kind in enumerate(kinds)
    ]
    changed = Leaderboard.parse(board.content() | {"systems": systems}, "board")
    assert styles_of(changed) == {"0": "p0", "1": "x0", "2": "p1", "3": "quote", "4": "x1"}


def test_cells_carry_what_they_can_show_and_be_sorted_by(board) -> None:
    page = render_page(board)
    cells = [attributes for tag, attributes in read(page).elements if tag == "td" and "data-difference" in attributes]
    assert len(cells) == len(board.tasks), "all of from-scratch's, none of the reference's"
    record = board.comparisons["from-scratch"]["sst2"]
    (cell,) = [one for one in cells if one["data-task"] == "sst2"]
    assert float(cell["data-difference"] or "") == record.difference < 0
    assert float(cell["data-median"] or "") == board.systems[1].scores["sst2"]["accuracy"].median
    assert "median" in (cell["title"] or "") and "versus sample-mini" in (cell["title"] or "")
    modes = [attributes["value"] for tag, attributes in read(page).elements if tag == "option"]
    assert modes == ["mean", "median", "best", "runs", "difference", "p", "rows"], "no costs in a run's own page"


def test_every_column_can_be_sorted_and_every_benchmark_and_system_filtered(board) -> None:
    page = render_page(board)
    head = page[page.index("<thead>") : page.index("</thead>")]
    assert head.count("<button") == len(board.tasks) + 3
    picks = [attributes for tag, attributes in read(page).elements if "data-pick" in attributes]
    assert [pick["value"] for pick in picks if pick["data-pick"] == "task"] == board.tasks
    assert [pick["value"] for pick in picks if pick["data-pick"] == "system"] == ["sample-mini", "from-scratch"]


def test_error_examples_stand_with_their_texts_and_the_rank(board) -> None:
    row = {"id": "7", "part": "", "value": 0.987, "texts": [["sentence", "Colourless <ideas>"]]}
    told = {"system": "sample-mini", "seed": 1, "score": 61.0, "ranked_by": "confidence", "num_rows": 10}
    rows = [{**row, "prediction": "1", "label": "0"}]
    board.errors["cola"] = [SystemErrors.parse({**told, "num_wrong": 1, "rows": rows}, "errors")]
    page = render_page(board)
    assert "1 of 10 dev rows wrong" in page and "the most confident first" in page
    assert "Colourless &lt;ideas&gt;" in page and "confidence 0.99" in page


def test_part_of_the_data_is_marked(board) -> None:
    assert 'aria-label="partial data"' not in render_page(board)
    content = board.content()
    content["systems"][0]["cells"]["cola"]["num_all_train_rows"] = 9999
    page = render_page(Leaderboard.parse(content, "board"))
    assert page.count('aria-label="partial data"') == 1
    assert "2,400 of 9,999 training rows" in page


@pytest.fixture
def with_predictions(metrics, encoders) -> None:
    """Predictions and errors of every SST-2 job: of 4 rows, the pre-trained encoder has 3 right, the other 2."""
    for encoder, answers in zip(encoders, ("0111", "1111")):
        for job in metrics.read(encoder["name"], "sst2")["jobs"]:
            folder = metrics.path(encoder["name"], "sst2").parent / "jobs" / job["digest"]
            folder.mkdir(parents=True)
            rows = [
                {"id": str(number), "label": label, "prediction": prediction, "logits": [0.0, 1.0]}
                for number, (label, prediction) in enumerate(zip("0011", answers))
            ]
            (folder / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            wrong = [
                {"id": row["id"], "value": 0.7, "texts": [["sentence", f"a film {row['id']}"]], **row}
                for row in rows
                if row["label"] != row["prediction"]
            ]
            found = {"ranked_by": "confidence", "num_rows": 4, "num_wrong": len(wrong), "rows": wrong}
            (folder / "errors.json").write_text(json.dumps(found))


def test_classes_and_errors_are_those_of_every_encoder_by_name(with_predictions, metrics, encoders, benchmarks) -> None:
    board = compose(read_inputs(metrics.finetune, metrics.pretrain, encoders, benchmarks), encoders, benchmarks)
    assert list(board.classes) == ["sst2"]
    ours, theirs = board.classes["sst2"]
    assert (ours.system, ours.num_rows, ours.confusion) == ("sample-mini", 4, [[1, 1], [0, 2]])
    assert [(one.name, one.num_rows, one.precision, one.recall, one.f1) for one in ours.classes] == [
        ("negative", 2, 100.0, 50.0, 66.6667),
        ("positive", 2, 66.6667, 100.0, 80.0),
    ]
    assert theirs.confusion == [[0, 2], [0, 2]] and theirs.classes[0].f1 == 0
    assert [(one.system, one.num_wrong) for one in board.errors["sst2"]] == [("sample-mini", 1), ("from-scratch", 2)]
    assert {(row.prediction, row.label) for one in board.errors["sst2"] for row in one.rows} == {
        ("positive", "negative")
    }
    reader = read(render_page(board))
    assert reader.open == []
    switched = [attributes["data-of"] for _, attributes in reader.elements if "data-of" in attributes]
    assert switched == ["sample-mini", "from-scratch"] * 2
    assert (
        sum("switch" in (attributes.get("class") or "") for tag, attributes in reader.elements if tag == "select") == 2
    )
    assert sum(attributes.get("type") == "search" for tag, attributes in reader.elements if tag == "input") == 1


def test_a_large_confusion_matrix_is_left_out(with_predictions, metrics, encoders, benchmarks, monkeypatch) -> None:
    monkeypatch.setattr("tasks.leaderboard.board.MAX_CONFUSION_CLASSES", 1)
    board = compose(read_inputs(metrics.finetune, metrics.pretrain, encoders, benchmarks), encoders, benchmarks)
    report = board.classes["sst2"][0]
    assert report.confusion is None and len(report.classes) == 2
    assert read(render_page(board)).open == []


def test_synthetic_data_quotes_nothing_and_explains_where_no_gain_is_expected(metrics, encoders, benchmarks) -> None:
    inputs = read_inputs(metrics.finetune, metrics.pretrain, encoders, benchmarks)
    controls = {"squad2": "Too few rows.", "nsp_accuracy": "Too short.", "other": "Not on this board."}
    board = compose(inputs, encoders, benchmarks, paper_scores=False, controls=controls)
    page = render_page(board)
    assert read(page).open == []
    text = page[page.index("<body>") : page.index("<script>")]
    assert "quoted" not in text.lower() and "BERT" not in text and 'href="#paper"' not in text
    assert "SQuAD v2.0: no gain is expected.</strong> Too few rows." in page and "Too short." in page
    assert "Not on this board" not in page
    assert "SQuAD v2.0: no gain is expected. Too few rows." in summary_lines(board)
    assert "BERT" in render_page(compose(inputs, encoders, benchmarks))


def test_the_copy_of_a_run_tells_when_and_how_it_ran_and_what_it_cost(board) -> None:
    plain = render_page(board)
    assert "Parameters of this run" not in plain and 'id="cost"' not in plain
    cost = {
        system.name: SystemCost(
            total={"seconds": seconds, "num_jobs": 2, "num_timed": 2},
            tasks={},
            pretraining={"seconds": 30.0, "num_jobs": 1, "num_timed": 1},
        )
        for system, seconds in zip(board.measured, (90.0, 30.0))
    }
    facts = {
        "name": "first <try>",
        "written": "2026-11-23T09:54:06+0000",
        "git_commit": "6390cbc490956031665d931f74c151e37257b4a9",
        "stage_seconds": {"pretrain": 60.0, "finetune": 120.0},
        "params": {"finetune": {"seeds": [1, 2]}},
    }
    page = render_page(board, history.record_of(board, cost, facts))
    assert read(page).open == []
    for part in ("first &lt;try&gt;", "2026-11-23 09:54", "6390cbc4", "3.0 min", "finetune:\n  seeds:\n  - 1"):
        assert part in page
    assert re.search(r"sample-mini: \d+\.\d in 2\.0 min", page)
    assert '<option value="seconds">' in page


def test_the_table_is_also_csv(board) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table(board))))
    measured = [row for row in rows if row["kind"] != "quoted"]
    assert len(measured) == sum(len(scores) for one in board.measured for scores in one.scores.values())
    [row] = [one for one in measured if (one["system"], one["benchmark"]) == ("from-scratch", "sst2")]
    score, found = board.measured[1].scores["sst2"]["accuracy"], board.comparisons["from-scratch"]["sst2"]
    assert (float(row["mean"]), float(row["std"]), row["seeds"]) == (score.mean, score.std, "0 1 2")
    assert (row["reference"], float(row["difference"]), row["verdict"]) == (
        "sample-mini",
        found.difference,
        found.verdict,
    )
    assert {one["source"] for one in rows if one["kind"] == "quoted"} >= {"BERT paper, Table 1"}


def test_a_leaderboard_of_an_earlier_format_is_read(board) -> None:
    content = board.content()
    content["champion"] = content.pop("reference")
    found = {
        "system": "sample-mini",
        "seed": 1,
        "score": 61.0,
        "ranked_by": "confidence",
        "num_rows": 2,
        "num_wrong": 0,
    }
    content["errors"] = {"cola": {**found, "rows": []}, "sst2": None}
    del content["classes"], content["controls"]
    earlier = Leaderboard.parse(content, "leaderboard.json")
    assert earlier.reference == "sample-mini"
    assert [one.system for one in earlier.errors["cola"]] == ["sample-mini"] and earlier.errors["sst2"] == []
