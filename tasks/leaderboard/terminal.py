"""The leaderboard in a terminal: as wide as 120 columns with a row per system, narrower with a row per benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.leaderboard import formatting
from tasks.leaderboard.columns import column_of
from tasks.leaderboard.table import MARKS, best_mean

WIDE = 116  # columns that thirteen benchmarks need
_NAME_WIDTH = 27
_VERDICTS = {
    "ahead": "ahead",
    "behind": "behind",
    "perhaps ahead": "perhaps ahead",
    "perhaps behind": "perhaps behind",
    "level": "not told apart",
    "untested": "untested",
    "none": "not compared",
}


def print_board(board: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the leaderboard, its lead and how the others stand against the champion.

    Where there is no terminal it is plain text as wide as it needs to be.
    """
    console = _wide(console)
    console.print(render_terminal(board, console.width))
    for line in summary_lines(board):
        console.print(line, highlight=False, markup=False)


def print_across(board: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the board over all recorded runs, and the runs."""
    print_board(board, console)
    console = _wide(console)
    for run in board["records"]:
        where = run["workspace"] or "the project"
        line = f"run {run['digest'][:6]}  {run['written'][:16].replace('T', ' ')}  {where}: {', '.join(run['systems'])}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _wide(console: Console | None) -> Console:
    """The console; where there is no terminal, one that is wide enough for the whole table."""
    console = console or Console()
    return console if console.is_terminal else Console(file=console.file, width=max(console.width, 120))


def render_terminal(board: Mapping[str, Any], width: int = 120) -> Table:
    """The table for a terminal of `width` columns. Quoted rows are dim and say "quoted"."""
    return _by_system(board) if width >= WIDE else _by_benchmark(board)


def summary_lines(board: Mapping[str, Any]) -> list[str]:
    """What a reader wants to know first, in plain sentences."""
    lines = []
    for lead in board["leads"]:
        whole, large = lead["all"], lead["large"]
        line = f"{lead['pretrained']} leads {lead['scratch']} by {formatting.signed(whole['mean'])} points"
        line += f"{_interval(whole)}, ahead on {whole['num_ahead']} of {whole['num_benchmarks']}"
        if 0 < large["num_benchmarks"] < whole["num_benchmarks"]:
            line += f"; on the {large['num_benchmarks']} with {large['min_train_rows']:,} training rows or more "
            line += f"{formatting.signed(large['mean'])}{_interval(large)}"
        lines.append(line)
    lines += _champion_lines(board)
    runs = board["runs"]
    if runs["degenerate"]:
        lines.append(f"{runs['degenerate']} of {runs['total']} runs are degenerate (one answer for every row)")
    if board["missing"]:
        gaps = [f"{entry['encoder']}/{entry['benchmark'] or 'pre-training'}" for entry in board["missing"]]
        lines.append(f"missing: {', '.join(gaps)}")
    return lines


def _champion_lines(board: Mapping[str, Any]) -> list[str]:
    """How the others stand against the champion, by the tests that docs/leaderboard.md tells of."""
    lines = []
    for name, records in board["comparisons"].items():
        verdicts = [record["verdict"] for record in records.values()]
        told = [
            f"{MARKS.get(verdict, '')} {words} on {verdicts.count(verdict)}".strip()
            for verdict, words in _VERDICTS.items()
            if verdict in verdicts
        ]
        lines.append(f"{name} against the champion {board['champion']}: {', '.join(told)}")
        reasons = dict.fromkeys(record["reason"] for record in records.values() if record["reason"])
        if reasons:
            lines.append(f"  not compared: {'; '.join(list(reasons)[:3])}{' …' if len(reasons) > 3 else ''}")
    return lines


def _interval(record: Mapping[str, Any]) -> str:
    if record["low"] is None:
        return ""
    return f" (95 % interval {formatting.signed(record['low'])} to {formatting.signed(record['high'])})"


def _by_system(board: Mapping[str, Any]) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        padding=0,
        show_edge=False,
        title="measured on dev, mean and deviation over seeds; quoted from the paper, on test unless (dev)",
        title_justify="left",
        title_style="dim",
    )
    table.add_column("system", max_width=_NAME_WIDTH, overflow="fold")
    table.add_column("kind", no_wrap=True)
    table.add_column("avg", justify="right", no_wrap=True)
    table.add_column("GLUE", justify="right", no_wrap=True)
    for task in board["tasks"]:
        table.add_column(column_of(task).short, justify="right", no_wrap=True)
    for system in _measured(board):
        style = "bold" if system["kind"] == "pretrained" else ""
        cells = [_cell(board, system, task) for task in board["tasks"]]
        averages = [formatting.score(system[key]) for key in ("average", "glue_average")]
        table.add_row(Text(system["name"], style), system["kind"], *averages, *cells)
    majority = _majority(board)
    if majority:
        average = formatting.score(board["baselines"]["majority"]["average"])
        table.add_row("majority answer", "baseline", average, "", *(majority.get(task, "") for task in board["tasks"]))
    table.add_section()
    for system in _quoted(board):
        quoted = [_quoted_cell(board, system, task) for task in board["tasks"]]
        glue = formatting.score(system["glue_average"]) if system["glue_average"] is not None else ""
        table.add_row(system["name"], "quoted", "", glue, *quoted, style="dim")
    return table


def _by_benchmark(board: Mapping[str, Any]) -> Table:
    """Benchmarks as rows, for a narrow terminal: measured systems, the majority answer and BERT base."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("dev", no_wrap=True)
    for system in _measured(board):
        table.add_column(system["name"], justify="right", overflow="fold")
    table.add_column("majority", justify="right")
    quoted = [system for system in _quoted(board) if system["paper_name"] == "BERT base"]
    for system in quoted:
        table.add_column(f"quoted: {system['paper_name']}, {system['split']}", justify="right", style="dim")
    majority = _majority(board)
    for task in board["tasks"]:
        table.add_row(
            board["titles"][task].removeprefix("CoNLL-2003 "),
            *(_cell(board, system, task, one_line=True) for system in _measured(board)),
            majority.get(task, ""),
            *(_quoted_cell(board, system, task) for system in quoted),
        )
    table.add_section()
    table.add_row(
        "average",
        *(Text(formatting.score(system["average"]), "bold") for system in _measured(board)),
        formatting.score(board["baselines"]["majority"]["average"]),
        *("" for _ in quoted),
    )
    return table


def _measured(board: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [system for system in board["systems"] if system["kind"] != "quoted"]


def _quoted(board: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The paper's main rows; the page has them all."""
    return [system for system in board["systems"] if system["kind"] == "quoted" and system["prominent"]]


def _majority(board: Mapping[str, Any]) -> dict[str, str]:
    scores = board["baselines"]["majority"]["scores"]
    return {
        task: formatting.score(scores[task][metric])
        for task, metric in board["headline"].items()
        if metric in scores.get(task, {})
    }


def _cell(board: Mapping[str, Any], system: Mapping[str, Any], task: str, *, one_line: bool = False) -> Text:
    """Mean and deviation. The best measured mean is bold; "!" marks degenerate runs, ◔ part of the data, ▲ ▼ a system
    that is ahead of the champion or behind it, △ ▽ one that perhaps is."""
    metric = board["headline"][task]
    cell = system["scores"].get(task, {}).get(metric)
    if cell is None:
        return Text("missing" if one_line else "–", "red")
    record = system["cells"][task]
    comparison = board["comparisons"].get(system["name"], {}).get(task, {})
    best = cell["mean"] == best_mean(board, task, metric) and not comparison.get("reason")
    text = Text(formatting.score(cell["mean"]), "bold" if best else "")
    if record["num_degenerate"]:
        text.append("!", "red")
    marks = formatting.PARTIAL if formatting.is_partial(record) else ""
    if comparison.get("verdict") != "level":
        marks += MARKS.get(comparison.get("verdict", ""), "")
    small = f"{formatting.deviation(cell['std'])}{marks}"
    if small:
        text.append((" " if one_line else "\n") + small, "not bold dim")
    return text


def _quoted_cell(board: Mapping[str, Any], system: Mapping[str, Any], task: str) -> str:
    cell = system["scores"].get(task, {}).get(board["headline"][task])
    return "" if cell is None else formatting.score(cell["mean"])


def table_rows(board: Mapping[str, Any]) -> list[dict[str, str]]:
    """The board as rows of texts, for a table elsewhere (Prefect's table artifact)."""
    rows = []
    for system in [*_measured(board), *_quoted(board)]:
        row = {"system": system["name"], "kind": system["kind"], "split": system["split"]}
        row["average"] = formatting.score(system["average"]) if system["kind"] != "quoted" else ""
        row["GLUE as Table 1"] = formatting.score(system["glue_average"])
        for task, metric in board["headline"].items():
            cell = system["scores"].get(task, {}).get(metric)
            text = (
                "" if cell is None else f"{formatting.score(cell['mean'])} {formatting.deviation(cell['std'])}".strip()
            )
            row[board["titles"][task]] = text
        rows.append(row)
    return rows
