"""The leaderboard in a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tasks.leaderboard.board import compose
from tasks.leaderboard.inputs import read_inputs
from tasks.leaderboard.page import table_rows
from tasks.leaderboard.schema import Leaderboard
from tasks.leaderboard.terminal import print_board, render_terminal


@pytest.fixture
def board(metrics, encoders, benchmarks) -> Leaderboard:
    inputs = read_inputs(metrics.finetune, metrics.pretrain, encoders, benchmarks)
    return compose(inputs, encoders, benchmarks)


def printed(board: Leaderboard, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(render_terminal(board, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_it_fits_120_columns_without_a_cut(board) -> None:
    lines = printed(board, 120)
    assert max(map(len, lines)) <= 120
    assert not any("…" in line for line in lines)
    header = next(line for line in lines if line.startswith("system"))
    for short in ("CoLA", "SST2", "STSB", "SQ1.1", "SQ2.0", "SWAG", "NER", "avg", "GLUE"):
        assert short in header.split()


def test_quoted_rows_say_so_and_measured_ones_do_not(board) -> None:
    lines = printed(board, 120)
    (bert,) = [line for line in lines if line.startswith("BERT base ") and "(dev)" not in line]
    assert "quoted" in bert.split()
    assert "79.6" in bert.split()
    (own,) = [line for line in lines if line.startswith("sample-mini")]
    assert "quoted" not in own
    assert f"{board.systems[0].average:.1f}" in own.split()


def test_a_narrow_terminal_gets_a_row_per_benchmark(board) -> None:
    lines = printed(board, 80)
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    assert any(line.startswith("SQuAD v2.0") for line in lines)


def test_without_a_terminal_it_is_plain_text_with_the_lead(
    board, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_board(board)
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "sample-mini leads from-scratch: +" in text
    assert "95 % interval" in text
    cells = [cell for system in board.measured for cell in system.cells.values()]
    num_degenerate, total = (sum(getattr(cell, name) for cell in cells) for name in ("num_degenerate", "num_runs"))
    assert 0 < num_degenerate < total
    assert f"! {num_degenerate} of the {total} runs of the chosen recipes gave one answer" in text
    assert "without them: sample-mini on WNLI 57.0" in text
    assert any(line.startswith("BiLSTM+ELMo+Attn quoted") for line in text.splitlines())


def test_rows_for_a_table_elsewhere_are_texts(board) -> None:
    rows = table_rows(board)
    assert rows[0]["system"] == "sample-mini"
    assert "±" in rows[0]["CoLA"]
    assert {row["kind"] for row in rows} == {"pretrained", "scratch", "quoted"}
    assert all(isinstance(value, str) for row in rows for value in row.values())
