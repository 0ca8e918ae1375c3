"""The leaderboard in a terminal: a row per system if the terminal is wide enough, else a row per benchmark."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from tasks.leaderboard import formatting
from tasks.leaderboard.page import MARKS, best_mean, coverage_note
from tasks.leaderboard.schema import (
    BoardModel,
    CombinedBoard,
    GapInterval,
    Leaderboard,
    MeasuredSystem,
    QuotedSystem,
)
from tasks.leaderboard.settings import short_keys

_NARROWEST = 12  # columns per system, below which names and scores break
_VERDICTS = {**{verdict: verdict for verdict in MARKS}, "untested": "untested", "none": "not compared"}
_VERDICTS["level"] = "not significantly different"


def print_board(board: BoardModel, console: Console | None = None) -> None:
    """Print the leaderboard, the gap to scratch, the comparisons with the reference, and the recorded runs.

    Output that is not a terminal gets plain text of the necessary width.
    """
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, 120))
    console.print(render_terminal(board, console.width))
    lines = [*summary_lines(board), *(_run_lines(board) if isinstance(board, CombinedBoard) else [])]
    for line in lines:
        console.print(line, highlight=False, markup=False)


def render_terminal(board: BoardModel, width: int) -> Table | Group:
    """Build the table for a terminal of `width` columns. Quoted rows are dim and marked "quoted"."""
    wide = 51 + 5 * len(board.tasks)
    return _by_system(board) if width >= wide else _by_benchmark(board, width)


def _run_lines(board: CombinedBoard) -> list[str]:
    lines = []
    short = short_keys(key for values in board.settings.values() for key in values)
    for name, values in board.settings.items():
        shown = ", ".join(f"{short[key]} {value}" for key, value in values.items())
        if any(board.settings.values()):
            lines.append(f"{name} differs in: {shown or 'parameters were not recorded'}")
    for run in board.records:
        when = run.written[:16].replace("T", " ")
        lines.append(f"run {run.title}  {when}  {run.workspace or 'the project'}: {', '.join(run.systems)}")
    return lines


def summary_lines(board: BoardModel) -> list[str]:
    lines = []
    for gap in board.gaps:
        line = f"{gap.pretrained} leads {gap.scratch} by {formatting.signed(gap.all.mean)} points"
        line += f"{_interval(gap.all)}, ahead on {gap.all.num_ahead} of {gap.all.num_benchmarks}"
        if 0 < gap.large.num_benchmarks < gap.all.num_benchmarks:
            line += f"; on the {gap.large.num_benchmarks} with {gap.large.min_train_rows:,} training rows or more "
            line += f"{formatting.signed(gap.large.mean)}{_interval(gap.large)}"
        lines.append(line)
    for system in board.measured:
        gaps = [f"{board.titles[task]} {formatting.gap(cell)}" for task, cell in system.cells.items() if cell.selection]
        if gaps:
            lines.append(f"{system.name}, selection rows minus reported rows (95 % over rows): {', '.join(gaps)}")
    for name, records in board.comparisons.items():
        verdicts = [record.verdict for record in records.values()]
        found = [
            f"{MARKS.get(verdict, '')} {words} on {verdicts.count(verdict)}".strip()
            for verdict, words in _VERDICTS.items()
            if verdict in verdicts
        ]
        lines.append(f"{name} versus the reference {board.reference}: {', '.join(found)}")
        reasons = list(dict.fromkeys(record.reason for record in records.values() if record.reason))
        if reasons:
            lines.append(f"  not compared: {'; '.join(reasons[:3])}{' …' if len(reasons) > 3 else ''}")
    if board.comparisons:
        lines.append(coverage_note(board))
    if board.runs["degenerate"]:
        counts = f"{board.runs['degenerate']} of {board.runs['total']}"
        lines.append(f"{counts} runs are degenerate (one answer for every row); they count in the means")
        without = [
            f"{system.name} on {board.titles[task]} {formatting.score(cell.learned_mean)}"
            for system in board.measured
            for task, cell in system.cells.items()
            if cell.learned_mean is not None
        ]
        if without:
            lines.append(f"  means without them: {', '.join(without)}")
    for task, reason in board.controls.items() if isinstance(board, Leaderboard) else ():
        if task in board.titles:
            lines.append(f"{board.titles[task]}: no gain is expected. {reason}")
    if board.missing:
        missing = [f"{entry['encoder']}/{entry['benchmark'] or 'pre-training'}" for entry in board.missing]
        lines.append(f"missing: {', '.join(missing)}")
    return lines


def _interval(gap: GapInterval) -> str:
    if gap.low is None:
        return ""
    return f" (95 % interval {formatting.interval(gap.low, gap.high)})"


def _by_system(board: BoardModel) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        padding=0,
        show_edge=False,
        title="measured on dev, mean and deviation over seeds"
        + ("; quoted from the paper, on test unless (dev)" if board.quoted else ""),
        title_justify="left",
        title_style="dim",
    )
    table.add_column("system", max_width=27, overflow="fold")
    table.add_column("kind", no_wrap=True)
    for title in ("avg", "GLUE", *(formatting.short_title(task) for task in board.tasks)):
        table.add_column(title, justify="right", no_wrap=True)
    for system in board.measured:
        style = "bold" if system.kind == "pretrained" else ""
        cells = [_cell(board, system, task) for task in board.tasks]
        averages = [formatting.score(value) for value in (system.average, system.glue_average)]
        table.add_row(Text(system.name, style), system.kind, *averages, *cells)
    if board.majority:
        average = formatting.score(board.baselines["majority"].average)
        table.add_row("majority answer", "baseline", average, "", *(_majority(board, task) for task in board.tasks))
    if board.quoted:
        table.add_section()
    for quoted in board.quoted:
        if quoted.prominent:
            glue = formatting.score(quoted.glue_average) if quoted.glue_average is not None else ""
            scores = [_quoted_cell(board, quoted, task) for task in board.tasks]
            table.add_row(quoted.name, "quoted", "", glue, *scores, style="dim")
    return table


def _by_benchmark(board: BoardModel, width: int) -> Group:
    """Build narrow tables with benchmarks as rows: measured systems, as many as fit, the majority label and BERT
    base."""
    quoted = [system for system in board.quoted if system.prominent and system.paper_name == "BERT base"]
    names = [board.titles[task].removeprefix("CoNLL-2003 ") for task in board.tasks]
    left = width - min(max(map(len, names)), 20) - 10 - 11 * len(quoted)
    size = max(1, left // _NARROWEST)
    systems = board.measured
    return Group(*(_part(board, systems[at : at + size], quoted, names) for at in range(0, max(len(systems), 1), size)))


def _part(
    board: BoardModel, systems: Sequence[MeasuredSystem], quoted: Sequence[QuotedSystem], names: Sequence[str]
) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("dev", max_width=20, overflow="fold")
    for system in systems:
        table.add_column(system.name, justify="right", overflow="fold", min_width=_NARROWEST - 1)
    table.add_column("majority", justify="right", no_wrap=True)
    for one in quoted:
        table.add_column(f"quoted: {one.paper_name}, {one.split}", justify="right", style="dim")
    for task, name in zip(board.tasks, names):
        table.add_row(
            name,
            *(_cell(board, system, task, one_line=True) for system in systems),
            _majority(board, task),
            *(_quoted_cell(board, system, task) for system in quoted),
        )
    table.add_section()
    table.add_row(
        "average",
        *(Text(formatting.score(system.average), "bold") for system in systems),
        formatting.score(board.baselines["majority"].average),
        *("" for _ in quoted),
    )
    return table


def _cell(board: BoardModel, system: MeasuredSystem, task: str, *, one_line: bool = False) -> Text:
    """Format mean and deviation. The best measured mean is bold; "!" marks degenerate runs, ◔ part of the data, ▲ ▼
    systems ahead of the reference or behind it, △ ▽ those that perhaps are."""
    metric = board.headline[task]
    score = system.score(task, metric)
    if score is None:
        return Text("missing" if one_line else "–", "red")
    cell = system.cells[task]
    comparison = board.comparisons.get(system.name, {}).get(task)
    best = score.mean == best_mean(board, task, metric) and not (comparison and comparison.reason)
    text = Text(formatting.score(score.mean), "bold" if best else "")
    if cell.num_degenerate:
        text.append("!", "red")
    marks = formatting.PARTIAL if formatting.is_partial(cell) else ""
    if comparison and comparison.verdict != "level":
        marks += MARKS.get(comparison.verdict, "")
    small = f"{formatting.deviation(score.std)}{marks}"
    if small:
        text.append((" " if one_line else "\n") + small, "not bold dim")
    return text


def _majority(board: BoardModel, task: str) -> str:
    return formatting.score(board.majority[task]) if task in board.majority else ""


def _quoted_cell(board: BoardModel, system: QuotedSystem, task: str) -> str:
    score = system.score(task, board.headline[task])
    return formatting.score(score.mean) if score else ""
