"""Format scores, costs and recipes, and the titles of benchmarks and metrics, for pages and terminals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from model.benchmarks.table import BENCHMARKS
from tasks.leaderboard.schema import CellRecord
from tasks.project.progress import scientific

NOTHING = "–"
PARTIAL = "◔"
"""Mark of a score that was trained or measured on part of the data."""
_SHORT = {"squad1": "SQ1.1", "squad2": "SQ2.0", "ner": "NER"}
_METRIC_TITLES = {
    "matthews": "Matthews",
    "accuracy_matched": "accuracy, matched",
    "accuracy_mismatched": "accuracy, mismatched",
    "f1": "F1",
    "exact": "exact match",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "macro_f1": "macro F1",
}
_SETTINGS = {
    "batch_size": "batch {}",
    "num_epochs": "{} epochs",
    "max_length": "length {}",
    "max_train_rows": "at most {:,} rows",
}
_ALL_ROWS = "all rows"


def short_title(benchmark: str) -> str:
    row = BENCHMARKS.get(benchmark)
    return _SHORT.get(benchmark, row.title.replace("-", "")[:5] if row else benchmark[:8])


def metric_title(metric: str) -> str:
    return _METRIC_TITLES.get(metric, metric.replace("_", " "))


def score(value: float | None) -> str:
    """Format a score with one decimal, as the paper does."""
    return NOTHING if value is None else f"{value:.1f}".replace("-", "−")


def signed(value: float | None) -> str:
    """Format a difference in points, always with its sign."""
    return NOTHING if value is None else f"{value:+.1f}".replace("-", "−")


def deviation(value: float | None) -> str:
    """Format a standard deviation; "" for a single run."""
    return "" if value is None else f"±{value:.1f}"


def learned(cell: CellRecord) -> str:
    """Label the mean of the runs that are not degenerate, if the cell has both kinds."""
    return "" if cell.learned_mean is None else f"{score(cell.learned_mean)} without ⚑"


def percent(fraction: float | None) -> str:
    return NOTHING if fraction is None else f"{100 * fraction:.1f} %"


def count(value: float) -> str:
    """Abbreviate a large number: 1,500 → 1.5k, 42,600,000,000 → 42.6B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def recipe(values: Mapping[str, Any]) -> str:
    """Format the settings in which recipes differ, in one line."""
    parts = []
    if "learning_rate" in values:
        parts.append(f"rate {scientific(values['learning_rate'])}")
    for key, written in _SETTINGS.items():
        if values.get(key) is not None:
            parts.append(written.format(values[key]))
    adapt = values.get("adapt") or {}
    way = adapt.get("kind", "full")
    if way != "full":
        rank = f" of rank {adapt['rank']}" if "rank" in adapt else ""
        parts.append({"lora": "LoRA", "features": "frozen features"}.get(way, way) + rank)
    return " · ".join(parts)


def is_partial(cell: CellRecord) -> bool:
    return coverage(cell) != _ALL_ROWS


def coverage(cell: CellRecord) -> str:
    """Describe the part of the data that was used; "all rows" if nothing was cut."""
    parts = []
    for name, seen, whole, limit in (
        ("training", cell.num_train_rows, cell.num_all_train_rows, cell.recipe.get("max_train_rows")),
        (
            "dev",
            cell.num_dev_rows + cell.num_selection_rows,
            cell.num_all_dev_rows,
            cell.recipe.get("max_dev_rows"),
        ),
    ):
        if whole is not None and seen < whole:
            parts.append(f"{seen:,} of {whole:,} {name} rows")
        elif whole is None and limit is not None:
            parts.append(f"{seen:,} {name} rows at most")
    return ", ".join(parts) or _ALL_ROWS


def selection(cell: CellRecord) -> str:
    """Describe the dev rows that the score was reported on, and what was selected on which rows."""
    rows = f"reported on {cell.num_dev_rows:,} dev rows"
    if not cell.selected:
        return f"{rows}, nothing was selected on dev"
    what = join_words(cell.selected)
    if cell.num_selection_rows:
        return f"{rows}, {what} selected on {cell.num_selection_rows:,} others"
    return f"{what} selected and reported on the same {cell.num_dev_rows:,} dev rows"


def join_words(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1]


def selects_on_reported(cell: CellRecord) -> bool:
    """Check whether the score is of the rows that selected the recipe, the epoch or the threshold."""
    return bool(cell.selected) and not cell.num_selection_rows


def gap(cell: CellRecord) -> str:
    """Format the score on the rows for selection minus the reported score, with its 95 % interval over rows."""
    if cell.selection is None:
        return NOTHING
    return f"{signed(cell.selection.difference)} {gap_interval(cell)}".strip()


def gap_interval(cell: CellRecord) -> str:
    found = cell.selection
    if found is None:
        return "same rows" if selects_on_reported(cell) else ""
    return "" if found.low is None else f"({interval(found.low, found.high)})"


def interval(low: float | None, high: float | None) -> str:
    return f"{signed(low)} to {signed(high)}"


def seeds(cells: Iterable[CellRecord]) -> str:
    """Format the number of seeds of a system's cells: "5 seeds", "3 to 5 seeds" or "3 pre-trainings with 5 seeds"."""
    cells = list(cells)
    counts = {cell.num_runs // cell.num_pretrainings for cell in cells} or {0}
    least, most = min(counts), max(counts)
    text = f"{most if least == most else f'{least} to {most}'} seed{'s' if most != 1 else ''}"
    num_pretrainings = max((cell.num_pretrainings for cell in cells), default=1)
    return f"{num_pretrainings} pre-trainings with {text}" if num_pretrainings > 1 else text


def p_value(p: float | None) -> str:
    """Format a p-value, which is never 0."""
    return NOTHING if p is None else "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"


def seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    size, unit = time_unit(value)
    return f"{value / size:.1f} {unit}"


def time_unit(seconds: float) -> tuple[int, str]:
    """Choose the unit for a duration: its length in seconds, and its symbol."""
    return (1, "s") if seconds < 60 else (60, "min") if seconds < 3600 else (3600, "h")


def energy(joules: float | None) -> str:
    if joules is None:
        return NOTHING
    hours = joules / 3600
    size, unit = next((one for one in ((1e6, "MWh"), (1e3, "kWh")) if hours >= 0.9995 * one[0]), (1, "Wh"))
    return f"{hours / size:.3g} {unit}"


def memory(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
