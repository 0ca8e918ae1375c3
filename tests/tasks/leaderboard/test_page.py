"""leaderboard.html: whole, escaped, and without the network."""

from __future__ import annotations

import html.parser
import re
from typing import Any

import pytest

from tasks.leaderboard.board import compose
from tasks.leaderboard.charts import styles_of
from tasks.leaderboard.inputs import read_inputs
from tasks.leaderboard.page import render_page
from tasks.leaderboard.schema import Leaderboard, SystemErrors

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
    board["champion"], board["comparisons"] = "from-scratch", {bad: board["comparisons"]["from-scratch"]}
    row = {"id": bad, "part": bad, "value": 1.0, "texts": [[bad, bad]], "prediction": bad, "label": bad}
    told = {"system": bad, "seed": 1, "score": 1.0, "ranked_by": "confidence", "num_rows": 2, "num_wrong": 1}
    board["errors"] = {"cola": {**told, "rows": [row]}}
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
    board.errors["cola"] = SystemErrors.parse({**told, "num_wrong": 1, "rows": rows}, "errors")
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
