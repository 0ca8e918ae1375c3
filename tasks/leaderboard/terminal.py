"""The leaderboard in a terminal: a row per system if the terminal is wide enough, else a row per benchmark.

The systems of all runs are one table in any case: if even a row per benchmark is too wide, it has only their averages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from tasks.leaderboard import formatting
from tasks.leaderboard.comparisons import shared_averages
from tasks.leaderboard.page import MARKS, best_mean, coverage_note
from tasks.leaderboard.schema import (
    BoardModel,
    CombinedBoard,
    CombinedSystem,
    GapInterval,
    Leaderboard,
    MeasuredSystem,
    QuotedSystem,
)
from tasks.leaderboard.settings import short_keys
from tasks.project.progress import console as terminal_console
from tasks.project.progress import shortened

_NARROWEST = 12  # columns per system, below which names and scores break
_VERDICTS = {**{verdict: verdict for verdict in MARKS}, "untested": "untested", "none": "not compared"}
_VERDICTS["level"] = "not significantly different"


def print_board(board: BoardModel, console: Console | None = None) -> None:
    """Print the leaderboard, the gap to scratch, the comparisons with the reference, and the recorded runs.

    Output that is not a terminal gets plain text of the necessary width.
    """
    console = console or terminal_console(120)
    console.print(render_terminal(board, console.width))
    lines = summary_lines(board)
    if isinstance(board, CombinedBoard):
        lines += [shortened(line, console.width) for line in _run_lines(board, console.width)]
    for line in lines:
        console.print(line, highlight=False, markup=False)


def render_terminal(board: BoardModel, width: int) -> Table | Group:
    """Build the table for a terminal of `width` columns. Quoted rows are dim and marked "quoted"."""
    is_combined = isinstance(board, CombinedBoard)
    wide = (44 if is_combined else 51) + sum(max(5, len(formatting.short_title(task))) for task in board.tasks)
    if width >= wide:
        return _by_system(board)
    parts = _by_benchmark(board, width)
    return _averages(board) if is_combined and len(parts.renderables) > 1 else parts


def _run_lines(board: CombinedBoard, width: int) -> list[str]:
    """List what the systems differ in, if that takes a line for each, and the recorded runs."""
    lines = []
    short = short_keys(key for values in board.settings.values() for key in values)
    for name, values in board.settings.items():
        shown = ", ".join(f"{short[key]} {value}" for key, value in values.items() if value)
        if any(board.settings.values()):
            lines.append(f"{name} differs in: {shown or 'parameters were not recorded'}")
    if any(len(line) > width for line in lines):
        how = "A@RUN B@RUN" if len(board.records) > 1 else "A B"
        lines = [f"The systems differ in {len(short)} parameters: see the page, or `cloze compare {how}`."]
    for run in board.records:
        when = run.written[:16].replace("T", " ")
        lines.append(f"run {run.title}  {when}  {run.workspace or 'the project'}: {', '.join(run.systems)}")
        if run.repeats:
            lines.append(f"  with the same results: {', '.join(one.title for one in run.repeats)}")
    names = {run.digest: run.id for run in board.records}
    for system in board.measured:
        if isinstance(system, CombinedSystem) and len(system.runs) > 1:
            lines.append(f"{system.name} unites the runs {', '.join(names[digest] for digest in system.runs)}")
    return lines


def summary_lines(board: BoardModel) -> list[str]:
    lines, estimates = list[str](), shared_averages(board.measured, board.headline)
    for gap in board.gaps:
        if gap.all.mean is None:
            continue
        leads = "leads" if gap.all.mean >= 0 else "is behind"
        line = f"{gap.pretrained} {leads} {gap.scratch}: {formatting.signed(gap.all.mean)} points"
        line += f"{_interval(gap.all)}, ahead on {gap.all.num_ahead} of {gap.all.num_benchmarks}"
        if 0 < gap.large.num_benchmarks < gap.all.num_benchmarks:
            line += f"; on the {gap.large.num_benchmarks} with {gap.large.min_train_rows:,} training rows or more "
            line += f"{formatting.signed(gap.large.mean)}{_interval(gap.large)}"
        lines.append(line)
    for system in board.measured:
        gaps = [f"{board.titles[task]} {formatting.gap(cell)}" for task, cell in system.cells.items() if cell.selection]
        if gaps:
            lines.append(f"{system.name}, selection rows minus reported rows (95 % over rows): {', '.join(gaps)}")
    if any(system.average is None and system.name in estimates for system in board.measured):
        lines.append("≈ before an average: estimated, because the system lacks benchmarks")
    if board.comparisons:
        marks = ", ".join(f"{MARKS[verdict]} {words}" for verdict, words in _VERDICTS.items() if verdict in MARKS)
        lines.append(f"number of benchmarks, compared with the reference {board.reference} ({marks}):")
    for name, records in board.comparisons.items():
        verdicts = [record.verdict for record in records.values()]
        found = [
            f"{MARKS.get(verdict, words)} {verdicts.count(verdict)}"
            for verdict, words in _VERDICTS.items()
            if verdict in verdicts
        ]
        reasons = list(dict.fromkeys(record.reason for record in records.values() if record.reason))
        why = f" ({'; '.join(reasons[:2])}{'; …' if len(reasons) > 2 else ''})" if reasons else ""
        lines.append(f"  {name}: {', '.join(found)}{why}")
    if board.comparisons:
        lines.append(coverage_note(board))
    cells = [cell for system in board.measured for cell in system.cells.values()]
    if num_degenerate := sum(cell.num_degenerate for cell in cells):
        lines.append(
            f"! {num_degenerate} of the {sum(cell.num_runs for cell in cells)} runs of the chosen recipes gave one "
            "answer for every row; these degenerate runs count in the means"
        )
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
    table = _system_table(board)
    for title in ("avg", "GLUE", *(formatting.short_title(task) for task in board.tasks)):
        table.add_column(title, justify="right", no_wrap=True)
    estimates = shared_averages(board.measured, board.headline)
    for system in board.measured:
        cells = [_cell(board, system, task) for task in board.tasks]
        table.add_row(*_head(board, system, estimates), *cells)
    if board.majority:
        average = formatting.score(board.baselines["majority"].average)
        kind = [] if isinstance(board, CombinedBoard) else ["baseline"]
        table.add_row("majority answer", *kind, average, "", *(_majority(board, task) for task in board.tasks))
    if board.quoted:
        table.add_section()
    for quoted in board.quoted:
        if quoted.prominent:
            glue = formatting.score(quoted.glue_average) if quoted.glue_average is not None else ""
            scores = [_quoted_cell(board, quoted, task) for task in board.tasks]
            kind = [] if isinstance(board, CombinedBoard) else ["quoted"]
            table.add_row(quoted.name, *kind, "", glue, *scores, style="dim")
    return table


def _system_table(board: BoardModel) -> Table:
    """An empty table with a row per system; the systems of all runs have longer names and need no kind."""
    scores = [score for system in board.measured for row in system.scores.values() for score in row.values()]
    has_seeds = any(score.std is not None for score in scores)
    table = Table(
        box=SIMPLE_HEAD,
        padding=0,
        show_edge=False,
        title="measured on dev"
        + (", mean and deviation over seeds" if has_seeds else "")
        + ("; quoted from the paper, on test unless (dev)" if board.quoted else ""),
        title_justify="left",
        title_style="dim",
    )
    table.add_column("system", max_width=27, overflow="fold")
    if not isinstance(board, CombinedBoard):
        table.add_column("kind", no_wrap=True)
    return table


def _head(board: BoardModel, system: MeasuredSystem, estimates: Mapping[str, float]) -> list[Text | str]:
    """Return the first cells of a system's row: name, kind if the table has it, average and GLUE."""
    kind = [] if isinstance(board, CombinedBoard) else [system.kind]
    name = Text(system.name, "bold" if system.kind == "pretrained" else "")
    return [name, *kind, _average(system, estimates), formatting.score(system.glue_average)]


def _average(system: MeasuredSystem, estimates: Mapping[str, float]) -> str:
    """Format the average; ≈ marks the estimate for a system that lacks benchmarks."""
    if system.average is None and system.name in estimates:
        return f"≈{formatting.score(estimates[system.name])}"
    return formatting.score(system.average)


def _averages(board: BoardModel) -> Table:
    table = _system_table(board)
    for title in ("average", "GLUE", "benchmarks"):
        table.add_column(f" {title}", justify="right", no_wrap=True)
    estimates = shared_averages(board.measured, board.headline)
    for system in board.measured:
        table.add_row(*_head(board, system, estimates), f"{len(system.scores)} of {len(board.tasks)}")
    if board.majority:
        table.add_row("majority answer", formatting.score(board.baselines["majority"].average), "", "")
    table.caption = "The page has the score of every benchmark; so does a wider terminal."
    table.caption_justify = "left"
    return table


def _by_benchmark(board: BoardModel, width: int) -> Group:
    """Build narrow tables with benchmarks as rows: measured systems, as many as fit, the majority label and BERT
    base."""
    quoted = [system for system in board.quoted if system.prominent and system.paper_name == "BERT base"]
    names = [board.titles[task].removeprefix("CoNLL-2003 ") for task in board.tasks]
    left = width - min(max(map(len, names)), 20) - 10 - 11 * len(quoted)
    size = max(1, left // _NARROWEST)
    systems, estimates = board.measured, shared_averages(board.measured, board.headline)
    starts = range(0, max(len(systems), 1), size)
    return Group(*(_part(board, systems[at : at + size], quoted, names, estimates) for at in starts))


def _part(
    board: BoardModel,
    systems: Sequence[MeasuredSystem],
    quoted: Sequence[QuotedSystem],
    names: Sequence[str],
    estimates: Mapping[str, float],
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
        *(Text(_average(system, estimates), "bold") for system in systems),
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
    return formatting.score(board.majority.get(task))


def _quoted_cell(board: BoardModel, system: QuotedSystem, task: str) -> str:
    score = system.score(task, board.headline[task])
    return formatting.score(score.mean) if score else ""
