"""leaderboard.html: whole, escaped, and without the network."""

from __future__ import annotations

import html.parser
import re
from typing import Any

import pytest

from tasks.leaderboard.board import compose
from tasks.leaderboard.inputs import read_inputs
from tasks.leaderboard.page import render_page, styles_of

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
def board(metrics, encoders, benchmarks) -> dict[str, Any]:
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
    reader = read(render_page(board))
    rows = [
        attributes["data-value"] for tag, attributes in reader.elements if tag == "th" and "data-value" in attributes
    ]
    assert [row for row in rows if row] == [system["name"] for system in board["systems"]]
    cells = [attributes for tag, attributes in reader.elements if tag == "td" and "title" in attributes]
    scored = sum(1 for system in board["systems"] for task in benchmarks if task in system["scores"])
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
    board = compose(inputs, encoders, benchmarks, [f"a note {bad}"])
    board["systems"][0]["name"] = bad
    for part in ("pretrain", "finetune"):
        board["curves"][part][bad] = board["curves"][part].pop("sample-mini")
    for lead in board["leads"]:
        lead["pretrained"] = bad
    board["titles"]["cola"] = bad
    for run in board["flagged"]:
        run["encoder"] = bad
    reader = read(render_page(board))
    assert sum(tag == "script" for tag, _ in reader.elements) == 1


def test_quoted_rows_carry_their_split_and_the_word(board) -> None:
    page = render_page(board)
    row = page[page.index('data-value="BERT base (dev)"') :][:400]
    assert '<span class="chip">dev</span>' in row
    assert "quoted" in row


def test_the_lead_and_its_interval_are_on_the_page(board) -> None:
    page = render_page(board)
    lead = board["lead"]["all"]
    assert f"+{lead['mean']:.1f}" in page
    assert f"+{lead['low']:.1f} to +{lead['high']:.1f}" in page


def test_kinds_of_encoders_have_colours_of_their_own() -> None:
    kinds = ["pretrained", "scratch", "pretrained", "quoted", "scratch"]
    board = {"systems": [{"name": str(number), "kind": kind} for number, kind in enumerate(kinds)]}
    assert styles_of(board) == {"0": "p0", "1": "x0", "2": "p1", "3": "quote", "4": "x1"}
