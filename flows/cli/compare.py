"""`cloze compare`: two encoders, benchmark by benchmark, with intervals and corrected p-values."""

from __future__ import annotations

import json
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tasks.leaderboard.pairwise import compare_encoders
from tasks.project.project import Project
from tasks.stats.compare import LEVEL


def print_comparison(project: Project, first: str, second: str, benchmarks: list[str], as_json: bool) -> None:
    """Compare two encoders of the published fine-tuning and print a table, or JSON."""
    found = compare_encoders(project.build / "finetune", first, second, benchmarks)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, 120))
    console.print(_table(found, first, second))
    for line in _lines(found, first, second):
        console.print(line, highlight=False, markup=False)


def _table(found: list[dict[str, Any]], first: str, second: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1))
    table.add_column("benchmark", no_wrap=True)
    table.add_column("metric", no_wrap=True)
    for name in (first, second):
        table.add_column(name, justify="right", overflow="fold")
    for name in ("a − b", "95 %, rows", "95 %, seeds", "p", "p (Holm)"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("better", no_wrap=True)
    for one in found:
        seeds = one["seeds"]
        table.add_row(
            one["benchmark"],
            one["metric"],
            f"{one['first']:.2f}",
            f"{one['second']:.2f}",
            f"{one['difference']:+.2f}",
            _interval(one["rows"]),
            _interval(seeds) if seeds else "one seed",
            _p(one["p"]),
            _p(one["p_corrected"]),
            {"first": first, "second": second, None: "–"}[one["better"]],
        )
    return table


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.0005 else "<0.001"


def _interval(record: dict[str, Any]) -> str:
    return f"{record['low']:+.1f} to {record['high']:+.1f}"


def _lines(found: list[dict[str, Any]], first: str, second: str) -> list[str]:
    ahead = {name: sum(one["better"] == side for one in found) for side, name in (("first", first), ("second", second))}
    said = ", ".join(f"{name} on {count}" for name, count in ahead.items())
    lines = [f"better at {LEVEL:.0%}, over rows and seeds, corrected for {len(found)} benchmarks: {said}"]
    single = [one["benchmark"] for one in found if one["seeds"] is None]
    if single:
        where = "all benchmarks" if len(single) == len(found) else ", ".join(single)
        lines.append(f"one seed on {where}: nothing is known there of the spread of other trainings")
    return lines
