"""The script of leaderboard.html in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.leaderboard.board import compose
from tasks.leaderboard.inputs import read_inputs
from tasks.leaderboard.page import render_page
from tasks.leaderboard.schema import SystemErrors
from tests.browser import CHROMIUM, Tab, chromium
from tests.tasks.leaderboard.conftest import BENCHMARKS, ENCODERS, make_metrics

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a page with two systems, thirteen benchmarks, and error examples of both."""
    folder = tmp_path_factory.mktemp("page")
    metrics = make_metrics(folder / "build", ENCODERS)
    board = compose(read_inputs(metrics.finetune, metrics.pretrain, ENCODERS, list(BENCHMARKS)), ENCODERS, BENCHMARKS)
    told = {"seed": 1, "score": 61.0, "ranked_by": "confidence", "num_rows": 10, "num_wrong": 2}
    board.errors["cola"] = [
        SystemErrors.parse({**told, "system": encoder["name"], "rows": [row(words) for words in texts]}, "errors")
        for encoder, texts in zip(ENCODERS, (("green ideas", "red herrings"), ("blue moons", "green fields")))
    ]
    (folder / "leaderboard.html").write_text(render_page(board))
    return (folder / "leaderboard.html").as_uri()


def row(words: str) -> dict[str, object]:
    return {"id": words, "part": "", "value": 0.9, "texts": [["sentence", words]], "prediction": "1", "label": "0"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as tab:
        yield tab


SYSTEMS = """[...document.querySelectorAll("table.scores tr[data-system]")]"""
MEANS = f"""{SYSTEMS}.map((row) => [row.dataset.system,
    row.querySelector("td.mean-of-shown").textContent.trim()])"""


def test_a_filter_changes_the_averages_and_the_address(page: str, browser: Tab) -> None:
    browser.open(page)
    before = dict(browser.js(MEANS))
    browser.js("""document.querySelector('[data-none="task"]').click()""")
    for name in ("sst2", "rte"):
        browser.js(f"""document.querySelector('[data-pick="task"][value="{name}"]').click()""")
    tasks = browser.js(
        SYSTEMS
        + """.map((row) => [row.dataset.system,
        ...["sst2", "rte"].map((task) => Number(row.querySelector(`[data-task="${task}"]`).dataset.mean))])"""
    )
    expected = {name: f"{(first + second) / 2:.1f}" for name, first, second in tasks}
    assert dict(browser.js(MEANS)) == expected != before
    assert browser.js("document.querySelector('#average small').textContent") == "2 shown"
    assert browser.js("new URLSearchParams(location.search).get('tasks')") == "sst2,rte"

    address = browser.js("location.href")
    browser.open("about:blank#")
    browser.open(address)
    assert dict(browser.js(MEANS)) == expected
    browser.js("""document.querySelector('[data-all="task"]').click()""")
    assert dict(browser.js(MEANS)) == before
    assert browser.js("location.search") == ""


def test_a_column_sorts_the_systems(page: str, browser: Tab) -> None:
    browser.open(page)
    order = f"{SYSTEMS}.map((row) => row.dataset.system)"
    button = """document.querySelector("table.scores thead th button").click()"""
    browser.js(button)
    ascending = browser.js(order)
    browser.js(button)
    assert browser.js(order) == ascending[::-1] and len(ascending) == 2
    assert sorted(ascending) == ascending


def test_errors_are_searched_for_one_encoder_at_a_time(page: str, browser: Tab) -> None:
    visible = """[...document.querySelectorAll("details.errors li")].filter((row) => row.checkVisibility())
        .map((row) => row.textContent).filter((text) => text.includes("green")).length"""
    browser.open(page)
    browser.js("search.value = 'green'; search.dispatchEvent(new Event('input'))")
    assert browser.js("document.getElementById('found').textContent") == "1 example"
    assert browser.js(visible) == 1
    browser.js("switches[0].value = 'from-scratch'; switches[0].dispatchEvent(new Event('change'))")
    assert browser.js("document.getElementById('found').textContent") == "1 example"
    shown = """[...document.querySelectorAll("details.errors:not([hidden]) li:not([hidden])")]
        .map((row) => row.textContent).join()"""
    assert "green fields" in browser.js(shown) and "green ideas" not in browser.js(shown)


@pytest.mark.parametrize("width", [1400, 390])
def test_no_part_is_wider_than_the_window(page: str, browser: Tab, width: int) -> None:
    browser.open(page, width)
    assert browser.js("document.documentElement.scrollWidth") <= width
