"""Scripts, formulas and links in texts of data and parameters, on every page that Cloze writes, in a real browser."""

from __future__ import annotations

import csv
import io
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from flows import links
from tasks.corpus.data_card import render_card, summary_lines
from tasks.leaderboard import history
from tasks.leaderboard.board import compose
from tasks.leaderboard.csv_table import csv_table
from tasks.leaderboard.inputs import read_inputs
from tasks.leaderboard.page import render_combined, render_page
from tasks.leaderboard.schema import Leaderboard
from tasks.project.project import Project
from tasks.registry.drift import Drift
from tasks.registry.gate import Rule, Verdict
from tasks.registry.model_card import CardFacts, render
from tasks.registry.retrain import RetrainReport
from tasks.servers import start_page
from tasks.servers.server_plan import ServerSettings
from tests.browser import CHROMIUM, Tab, chromium
from tests.tasks.leaderboard.conftest import BENCHMARKS, ENCODERS, make_metrics

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

SCRIPT = "<script>window.planted = 1; document.title = 'planted'</script>"
RUNS = """({planted: window.planted ?? 0, title: document.title, text: document.body.textContent,
    handlers: [...document.querySelectorAll("*")].filter((one) => [...one.attributes].some(
        (attribute) => attribute.name.startsWith("on") || /^\\s*javascript:/i.test(attribute.value))).length,
    outside: document.querySelectorAll("img, iframe, object, embed, link, form, base, [src]").length})"""


@pytest.fixture(scope="module")
def requests() -> Iterator[tuple[int, list[str]]]:
    """The port of a server, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], asked
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def planted(requests: tuple[int, list[str]]) -> str:
    """A text that runs, requests, computes or hides something wherever it is not escaped."""
    there = f"http://127.0.0.1:{requests[0]}"
    return (
        f"=cmd()|A0\"'>{SCRIPT}<img src='{there}/html' onerror=window.planted=1> {{{{7*7}}}} \u202edesrever\u2066 "
        f"[click](javascript:window.planted=1) ![image]({there}/markdown) <javascript:window.planted=1> `code` --> ]]>"
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as tab:
        yield tab


@pytest.fixture(scope="module")
def board(planted: str, tmp_path_factory: pytest.TempPathFactory) -> Leaderboard:
    """A leaderboard with the text in every field that data or parameters control."""
    metrics = make_metrics(tmp_path_factory.mktemp("board"), ENCODERS)
    inputs = read_inputs(metrics.finetune, metrics.pretrain, ENCODERS, list(BENCHMARKS))
    content = compose(inputs, ENCODERS, BENCHMARKS, [f"a note {planted}"]).content()
    first = content["systems"][0]["name"]
    content["systems"][0]["name"] = planted
    for part in ("pretrain", "finetune"):
        content["curves"][part][planted] = content["curves"][part].pop(first)
    for lead in [content["lead"], *content["leads"]]:
        lead["pretrained"] = planted
    content["titles"]["cola"] = planted
    for run in content["flagged"]:
        run["encoder"] = planted
    content["reference"], content["comparisons"] = planted, {planted: content["comparisons"]["from-scratch"]}
    row = {"id": planted, "part": planted, "value": 1.0, "prediction": planted, "label": planted}
    errors = {"system": planted, "seed": 1, "score": 1.0, "ranked_by": planted, "num_rows": 2, "num_wrong": 1}
    content["errors"] = {"cola": [{**errors, "rows": [{**row, "texts": [[planted, planted]]}]}]}
    one = {"name": planted, "num_rows": 1, "num_predicted": 1, "precision": 1.0, "recall": 1.0, "f1": 1.0}
    content["classes"] = {"cola": [{"system": planted, "seed": 1, "num_rows": 1, "classes": [one], "confusion": [[1]]}]}
    content["controls"] = {"cola": planted, "nsp_accuracy": planted}
    return Leaderboard.parse(content, "board")


def card(planted: str) -> dict[str, Any]:
    """The content of a corpus card."""
    example = {"id": planted, "title": planted, "text": planted, "note": planted}
    texts = dict.fromkeys(("name", "kind", "language", "license", "origin"), planted)
    part = {"items": 1, "items_found": 1, "short_found": 0, "passages": 0, "passages_found": 0, "documents": 1}
    return {
        "version": 1,
        "documents": 1,
        "sentences": 1,
        "words": 10,
        "sources": [{**texts, "documents": 1, "sentences": 1, "words": 10, "files": 1, "bytes": 1, "weight": 1.0}],
        "words_per_document": [{"from": 0, "to": None, "count": 1}],
        "words_per_sentence": [{"from": 0, "to": None, "count": 1}],
        "drops": {planted: {"count": 1, "examples": [example]}},
        "shared_sentences": [{"documents": 2, "text": planted}],
        "contamination": {"action": "keep", "parts": {f"{planted}/dev": part}, "missing": [planted]},
        "settings": {
            "shuffle_words": False,
            "gates": {"max_documents_with_sentence": 0},
            "contamination": {"run_words": 8, "min_words": 5},
        },
    }


def report(planted: str) -> RetrainReport:
    drift = Drift((1, 2), 0.1, 0.1, 0.1, (0.1, 0.2), (1.0, 1.1), 0.1, [(planted, 1)])
    tasks = {planted: {"difference": 1.0, "low": 0.5, "high": 1.5}}
    verdict = Verdict(planted, planted, 1.0, 0.5, (Rule(planted, False, planted),), tasks)
    texts = {"version": planted, "why": (planted,), "ran": (planted,), "kept": planted}
    return RetrainReport("refused", planted, **texts, verdict=verdict, drift=drift, when=planted)


def start(planted: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    run = {"id": planted, "name": planted, "state_name": planted, "start_time": "", "flow": planted}
    server = {"name": planted, "state": planted, "since": "", "address": f"http://127.0.0.1/{planted}"}
    outcome = {"when": "2026-01-01T00:00:00+0000", "outcome": planted, "reason": planted, "url": f"/retrain/{planted}"}
    for name, found in (
        ("_flow_runs", [run | {"expected_start_time": ""}]),
        ("_reports", [outcome]),
        ("_champion", {"title": planted, "url": f"http://127.0.0.1/{planted}"}),
        ("server_states", [server]),
        ("mlflow_experiment", {}),
        ("_pages", [{"title": planted, "url": f"/{planted}", "text": planted, "when": None}]),
    ):
        monkeypatch.setattr(start_page, name, lambda *_, found=found, **__: found)
    root = folder / planted.replace("/", "")[:80]
    return start_page.render(Project(root, root), ServerSettings())


def markdown_pages(planted: str, board: Leaderboard, folder: Path) -> dict[str, str]:
    """Everything that MLflow, Prefect and the hub render, without a policy, by a renderer that allows HTML."""
    record = history.record_of(board, {}, {"name": planted, "git_commit": planted})
    system = record.systems[0]
    sources = card(planted)
    texts = {"encoder": planted, "license": planted, "recipe": {planted: planted}, "outputs": {planted: planted}}
    facts = CardFacts(
        **texts, kind="pretrained", corpus=sources, system=system, record=record, digests={planted: planted}
    )
    start_of = {"from": planted, "initialized": [planted]}
    facts.__dict__["pretraining"] = {"start": start_of, "heldout_sources": {}, "num_steps": 1, "num_tokens_seen": 1}
    project = Project(folder, folder)
    rows = [{"system": planted, planted: "1.0"}]
    return {
        "model card": render(facts).split("---\n", 2)[-1],
        "retraining": report(planted).markdown(),
        "run": links.description(project, [planted], [planted], [1]),
        "job": links.job_description(project, planted),
        "links": links._in_a_line({planted: "javascript:window.planted=1", "b": f"http://a/) {planted}"}),
        "table": links.markdown_table(rows),
        "corpus": summary_lines(sources, f"http://127.0.0.1:1/{planted}"),
    }


@needs_chromium
def test_nothing_planted_runs_or_is_requested(
    requests: tuple[int, list[str]],
    planted: str,
    board: Leaderboard,
    browser: Tab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = history.record_of(board, {}, {"name": planted, "params": {planted: planted}, "workspace": planted})
    combined = history.combined_board([record], tmp_path)
    pages = {
        "leaderboard": render_page(board, record),
        "board": render_combined(combined, {record.digest}),
        "corpus card": render_card(card(planted)),
        "retraining page": report(planted).html(),
        "start page": start(planted, tmp_path, monkeypatch),
    }
    renderer = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    markdown = markdown_pages(planted, board, tmp_path)
    without_policy = {name: re.sub(r"<meta http-equiv=.Content-Sec[^>]*>", "", page) for name, page in pages.items()}
    without_policy |= {name: f"<title>page</title><body>{renderer.render(text)}" for name, text in markdown.items()}
    without_policy["start page"] = without_policy["start page"].replace('http-equiv="refresh"', "")
    for name, page in (pages | {f"{name} without policy": page for name, page in without_policy.items()}).items():
        found = shown(browser, tmp_path, page)
        assert (found["planted"], found["handlers"], found["outside"]) == (0, 0, 0), name
        assert found["title"] != "planted", name
        if not name.startswith("links"):
            assert "<script>window.planted = 1" in found["text"] and "{{7*7}}" in found["text"], name
            assert "\\u202edesrever" in found["text"], name
        assert not set(found["text"]) & set("\u202e\u2066"), name
    assert requests[1] == [], "an escaped text requests nothing"

    for name, page in pages.items():  # what is not escaped does not run either
        found = shown(browser, tmp_path, page.replace("<main", f"{planted}<main", 1))
        assert found["planted"] == 0 and found["title"] != "planted", name
    assert requests[1] == [], "the policy forbids requests"
    found = shown(browser, tmp_path, f"<body>{planted}")
    assert found["planted"] == 1 and requests[1], "the attack works on a page without escapes and policy"


def shown(browser: Tab, folder: Path, page: str) -> dict[str, Any]:
    (folder / "page.html").write_text(page, encoding="utf-8")
    browser.open("about:blank#")
    browser.open((folder / "page.html").as_uri())
    found: dict[str, Any] = browser.js(f"new Promise((then) => setTimeout(() => then({RUNS}), 200))")
    return found


@needs_chromium
def test_the_script_of_the_leaderboard_runs(board: Leaderboard, browser: Tab, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(render_page(board), encoding="utf-8")
    browser.open((tmp_path / "page.html").as_uri())
    browser.js("""document.querySelector('[data-none="task"]').click()""")
    assert browser.js("document.querySelector('#average small').textContent") == "0 shown"


def test_no_cell_is_a_formula(board: Leaderboard) -> None:
    cells = [cell for row in csv.reader(io.StringIO(csv_table(board))) for cell in row]
    numbers = [cell for cell in cells if re.fullmatch(r"-?[\d.]+(e-?\d+)?", cell)]
    assert any(cell.startswith("-") for cell in numbers), "numbers stay numbers"
    assert any(cell.startswith("'=cmd()") for cell in cells)
    assert not [cell for cell in cells if cell not in numbers and cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert not {"\u202e", "\u2066"} & set("".join(cells))
