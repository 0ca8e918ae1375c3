"""Progress on a terminal of 80 and 120 columns, without a terminal, and with NO_COLOR."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.project import progress
from tasks.project.progress import Bar, amount, bars, duration, working
from tests.terminal import COLOR, ESCAPE, on_terminal

TRAINING = ("step 900/2,000", "loss 4.12", "12.3k tokens/s")
JOBS = [f"pretrained/benchmark-{number}/lr=5e-4/seed=1  epoch 2/3  loss 0.512  accuracy 57.8" for number in range(3)]
PROGRAM = f"""
import time
from tasks.project.progress import bars, echo
with bars() as add_bar:
    loading = add_bar("scratch", "loading")
    bar = add_bar("pretrained", "loading")
    time.sleep(0.6)
    for step in range(1, 12):
        bar.update(step, 20, "  ".join({TRAINING!r}), {JOBS!r})
        time.sleep(0.25)
    echo("a line between")
    echo("[5/6] finetune: " + "deps: data/wikipedia modified; " * 6)
    time.sleep(0.5)
"""
BARS = (sys.executable, "-c", PROGRAM)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("columns", [80, 120])
def test_bars_on_a_terminal(root: Path, columns: int) -> None:
    written = on_terminal(BARS, root, columns)
    assert COLOR.search(written), "the bar is colored"
    lines = [line.rstrip() for line in ESCAPE.sub("", written).replace("\r", "\n").split("\n")]
    assert max(map(len, lines)) < columns, "a full line would wrap on some terminals"
    assert "a line between" in lines
    begin = lines.index("a line between") + 1
    said = [line for line in lines[begin:] if "deps:" in line]
    assert len(said) > 1 and all(line.startswith("    ") for line in said[1:]), "broken between words, and indented"
    assert " ".join(line.strip() for line in said).count("deps: data/wikipedia modified;") == 6
    drawn = [line for line in lines if line.startswith("  pretrained")]
    assert not any("0 %" in line.split("loading")[0] for line in lines if "loading" in line)
    assert any("loading" in line and "━━━" in line for line in drawn), "a moving bar"
    trained = [line for line in drawn if "step" in line]
    assert all(part in trained[-1] for part in (*TRAINING, "55 %", " left", "━", "─"))
    assert any(line.strip().startswith("pretrained/benchmark-2/lr=5e-4/seed=1  epoch 2/3") for line in lines)


def test_no_color(root: Path) -> None:
    written = on_terminal(BARS, root, NO_COLOR="1")
    assert not COLOR.search(written)
    assert re.search("━+─+ +55 %", ESCAPE.sub("", written)), "the parts of the bar differ without color"


def test_a_dumb_terminal_gets_plain_lines(root: Path) -> None:
    written = on_terminal(BARS, root, TERM="dumb")
    assert "\x1b" not in written and "a line between" in written


def test_forced_color_does_not_draw_bars_without_a_terminal(root: Path) -> None:
    given = {**os.environ, "FORCE_COLOR": "1"}
    done = subprocess.run(BARS, cwd=root, env=given, capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stderr and "a line between" in done.stderr


@pytest.mark.parametrize(
    ("verbosity", "shown"),
    [("", ["note", "warning"]), ("quiet", ["warning"]), ("verbose", ["note", "warning", "detail"])],
)
def test_verbosity(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verbosity: str, shown: list[str]
) -> None:
    monkeypatch.setenv(progress.VERBOSITY_VARIABLE, verbosity)
    monkeypatch.setattr(progress, "line_interval", lambda _: 0.0)
    progress.show("result")
    progress.echo("note")
    progress.warn("warning")
    progress.detail("detail")
    written = capsys.readouterr()
    assert written.out == "result\n"
    assert written.err.splitlines() == shown
    with working("training"):
        time.sleep(3 * progress._TICK_SECONDS)
    assert ("training" in capsys.readouterr().err) == (verbosity != "quiet")


def test_without_a_terminal_a_run_is_never_silent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    assert progress.LINE_EVERY_SECONDS + 2 * progress._TICK_SECONDS < 5
    monkeypatch.setattr(progress, "LINE_EVERY_SECONDS", 0.6)
    with working("starting the server"):
        time.sleep(1.6)
    with bars() as add_bar:
        bar = add_bar("pretrained", "loading")
        bar.update(9, 20, "  ".join(TRAINING), JOBS)
        with working("something inside"):
            time.sleep(1.2)
        bar.close()
        time.sleep(0.8)
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= sum(line.startswith("  starting the server  (") for line in lines) <= 3
    assert any(line.startswith(f"  pretrained  45 %  {'  '.join(TRAINING)}  (") for line in lines)
    assert f"    {JOBS[2]}" in lines
    assert "  something inside" in "\n".join(lines)
    assert "\x1b" not in "".join(lines) and max(map(len, lines)) <= 80


def test_the_time_left_follows_the_present_rate(clock: list[float]) -> None:
    bar = Bar("train", "loading")
    clock[0] += 40  # of loading, which does not count
    for step in range(1, 11):
        bar.update(step, 100)
        clock[0] += 2
    assert bar.lines(80) == ["  train  10 %  3:00 left"]
    for step in range(20, 61, 10):  # five times as fast
        for _ in range(60):
            clock[0] += 1
            bar.update(step, 100)
    assert bar.lines(80)[0].startswith("  train  60 %  ")
    bar.update(100, 100, "evaluating")
    assert "left" not in bar.lines(80)[0] and "100 %  evaluating" in bar.lines(80)[0]


def test_many_jobs_and_long_names_fit(clock: list[float]) -> None:
    bar = Bar("finetune")
    bar.update(1, 3, "1/3 new (0 cached)", [f"{'a-long-encoder-name' * 4}/{number}" for number in range(30)])
    for width in (80, 120):
        lines = bar.lines(width, with_bar=True)
        assert all(len(line) <= width for line in lines)
        assert len(lines) == 10 and lines[-1] == "    … and 22 more"
        assert all(line.endswith("…") for line in lines[1:9] if len(line) == width)


def test_the_log_gets_a_line_at_a_moderate_rate(clock: list[float]) -> None:
    logged: list[str] = []
    bar = Bar("pretrained", "loading", log=logged.append)
    bar.log_when_due()
    assert not logged, "loading is no progress"
    for step in range(1, 241):
        bar.update(step, 1000, f"step {step}/1,000")
        bar.log_when_due()
        clock[0] += 0.25
    assert len(logged) == 2 and logged[0].startswith("pretrained")
    assert "step 121/1,000" in logged[1] and " left" in logged[1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(8.4, "8 s"), (59.6, "1:00 min"), (125, "2:05 min"), (4800, "1:20 h"), (273_600, "3 d 4 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_amounts() -> None:
    assert [amount(number) for number in (950.4, 12_345, 234_567, 1_234_567)] == ["950", "12.3k", "235k", "1.2M"]


def test_long_work_has_fewer_lines() -> None:
    assert [progress.line_interval(seconds) for seconds in (0, 600, 3600, 86_400)] == [4.0, 4.0, 24.0, 60.0]
