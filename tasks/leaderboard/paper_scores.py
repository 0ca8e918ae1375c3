"""Scores of the BERT paper (Tables 1 to 4, NER of Table 7), and its tables with our systems added.

Source: Devlin, Chang, Lee, Toutanova, arXiv:1810.04805v2. A system that the paper scores on both splits is two systems,
because scores of different splits are not comparable: the plain name is the test split, "(dev)" the development split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks.leaderboard import formatting
from tasks.leaderboard.schema import MeasuredSystem, QuotedSystem, ScoreSummary

Split = Literal["test", "dev"]


@dataclass(frozen=True)
class Quote:
    """One system's scores on one benchmark, on one split, from one table of the paper."""

    system: str
    split: Split
    benchmark: str
    scores: dict[str, float]
    table: int
    num_runs: int | None = None  # reported for Table 7 only


_GLUE = (  # title, benchmark, metrics of a column
    ("MNLI-(m/mm)", "mnli", ("accuracy_matched", "accuracy_mismatched")),
    ("QQP", "qqp", ("f1",)),
    ("QNLI", "qnli", ("accuracy",)),
    ("SST-2", "sst2", ("accuracy",)),
    ("CoLA", "cola", ("matthews",)),
    ("STS-B", "stsb", ("spearman",)),
    ("MRPC", "mrpc", ("f1",)),
    ("RTE", "rte", ("accuracy",)),
)

# Table 1, the GLUE server's test split: MNLI-m, MNLI-mm, QQP, QNLI, SST-2, CoLA, STS-B, MRPC, RTE, and the
# average, which leaves WNLI out.
TABLE_1: dict[str, tuple[float, ...]] = {
    "Pre-OpenAI SOTA": (80.6, 80.1, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7, 74.0),
    "BiLSTM+ELMo+Attn": (76.4, 76.1, 64.8, 79.8, 90.4, 36.0, 73.3, 84.9, 56.8, 71.0),
    "OpenAI GPT": (82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0, 75.1),
    "BERT base": (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 79.6),
    "BERT large": (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1, 82.1),
}

# Tables 2 and 3, SQuAD: (exact match, F1) on dev and on test.
_Pair = tuple[float | None, float | None]
_NONE: _Pair = (None, None)
TABLE_2: dict[str, tuple[_Pair, _Pair]] = {
    "Human": (_NONE, (82.3, 91.2)),
    "nlnet (ensemble)": (_NONE, (86.0, 91.7)),
    "QANet (ensemble)": (_NONE, (84.5, 90.5)),
    "BiDAF+ELMo": ((None, 85.6), (None, 85.8)),
    "R.M. Reader (ensemble)": ((81.2, 87.9), (82.3, 88.5)),
    "BERT base": ((80.8, 88.5), _NONE),
    "BERT large": ((84.1, 90.9), _NONE),
    "BERT large (ensemble)": ((85.8, 91.8), _NONE),
    "BERT large + TriviaQA": ((84.2, 91.1), (85.1, 91.8)),
    "BERT large + TriviaQA (ensemble)": ((86.2, 92.2), (87.4, 93.2)),
}
TABLE_3: dict[str, tuple[_Pair, _Pair]] = {
    "Human": ((86.3, 89.0), (86.9, 89.5)),
    "MIR-MRC": (_NONE, (74.8, 78.0)),
    "nlnet": (_NONE, (74.2, 77.1)),
    "unet (ensemble)": (_NONE, (71.4, 74.9)),
    "SLQA+": (_NONE, (71.4, 74.4)),
    "BERT large": ((78.7, 81.9), (80.0, 83.1)),
}

# Table 4, SWAG accuracy, and Table 7, NER F1 (mean of 5 restarts for BERT): dev, test.
TABLE_4: dict[str, _Pair] = {
    "ESIM+GloVe": (51.9, 52.7),
    "ESIM+ELMo": (59.1, 59.2),
    "OpenAI GPT": (None, 78.0),
    "BERT base": (81.6, None),
    "BERT large": (86.6, 86.3),
    "Human (expert)": (None, 85.0),
    "Human (5 annotations)": (None, 88.0),
}
_TABLE_7: dict[str, _Pair] = {
    "ELMo": (95.7, 92.2),
    "CVT": (None, 92.6),
    "CSE": (None, 93.1),
    "BERT base": (96.4, 92.4),
    "BERT large": (96.6, 92.8),
}

# Systems that are shown by default; the others are folded.
_PROMINENT = frozenset(TABLE_1)


def _quotes() -> list[Quote]:
    quotes: list[Quote] = []
    for system, row in TABLE_1.items():
        mnli = {
            "accuracy_matched": row[0],
            "accuracy_mismatched": row[1],
            "accuracy": round((row[0] + row[1]) / 2, 2),  # not in the table: our headline is the mean of the two
        }
        quotes.append(Quote(system, "test", "mnli", mnli, 1))
        quotes += [
            Quote(system, "test", benchmark, {metric: value}, 1)
            for (_, benchmark, (metric, *_)), value in zip(_GLUE[1:], row[2:9], strict=True)
        ]
    splits: tuple[Split, Split] = ("dev", "test")
    for table, benchmark, squad in ((2, "squad1", TABLE_2), (3, "squad2", TABLE_3)):
        for system, pairs in squad.items():
            for split, (exact, f1) in zip(splits, pairs, strict=True):
                scores = {metric: value for metric, value in (("exact", exact), ("f1", f1)) if value is not None}
                if scores:
                    quotes.append(Quote(system, split, benchmark, scores, table))
    for table, benchmark, metric, single in ((4, "swag", "accuracy", TABLE_4), (7, "ner", "f1", _TABLE_7)):
        for system, values in single.items():
            runs = 5 if table == 7 and system.startswith("BERT") else None
            quotes += [
                Quote(system, split, benchmark, {metric: value}, table, runs)
                for split, value in zip(splits, values, strict=True)
                if value is not None
            ]
    return quotes


def quoted_systems(benchmarks: Sequence[str]) -> list[QuotedSystem]:
    """The paper's systems that have a score on at least one of `benchmarks`.

    `average` is that of Table 1 (nine columns, without WNLI) if the paper reports one, else None. A score of the paper
    is one number: it serves as mean, median and best, and has no deviation.
    """
    systems: dict[tuple[str, str], QuotedSystem] = {}
    for quote in _quotes():
        if quote.benchmark not in benchmarks:
            continue
        system = systems.setdefault((quote.system, quote.split), _empty(quote.system, quote.split))
        system.scores[quote.benchmark] = {
            metric: ScoreSummary(mean=value, std=None, median=value, best=value, num_runs=quote.num_runs)
            for metric, value in quote.scores.items()
        }
        system.source[quote.benchmark] = f"Table {quote.table}"
    return sorted(systems.values(), key=lambda system: (not system.prominent, system.split == "dev"))


def _empty(name: str, split: Split) -> QuotedSystem:
    on_table_1 = split == "test" and name in TABLE_1
    average = TABLE_1[name][9] if on_table_1 else None
    return QuotedSystem(
        name=name if split == "test" else f"{name} (dev)",
        paper_name=name,
        split=split,
        average=average,
        average_of="Table 1: nine columns, WNLI left out" if on_table_1 else None,
        glue_average=average,
        prominent=name in _PROMINENT,
        source={},
        scores={},
    )


def paper_tables(systems: Sequence[MeasuredSystem]) -> list[dict[str, Any]]:
    """Tables 1 to 4 with the measured `systems`, each with number, title, columns, note and rows.

    A row has name, quoted, split and cells. A system without a score in a table is left out of it.
    """
    return [_glue(systems), *(_squad(systems, number) for number in (2, 3)), _swag(systems)]


def _glue(systems: Sequence[MeasuredSystem]) -> dict[str, Any]:
    rows = []
    for name, values in TABLE_1.items():
        printed = [f"{values[0]:.1f}/{values[1]:.1f}", *(formatting.score(value) for value in values[2:])]
        rows.append(_row(name, "test", printed, quoted=True))
    for system in systems:
        cells = [_joined(system, task, metrics, "/") for _, task, metrics in _GLUE]
        rows.append(_row(system.name, system.split, [*cells, formatting.score(system.glue_average)]))
    columns = [*(title for title, _, _ in _GLUE), "Average"]
    return _table(1, "GLUE", columns, rows, "F1 for QQP and MRPC, Spearman for STS-B, Matthews for CoLA; without WNLI.")


def _squad(systems: Sequence[MeasuredSystem], number: int) -> dict[str, Any]:
    title, task, table = {2: ("SQuAD v1.1", "squad1", TABLE_2), 3: ("SQuAD v2.0", "squad2", TABLE_3)}[number]
    rows = [
        _row(name, "", [formatting.score(value) for pair in pairs for value in pair], quoted=True)
        for name, pairs in table.items()
    ]
    rows += [
        _row(system.name, "", _of_split(system, [_joined(system, task, (metric,)) for metric in ("exact", "f1")]))
        for system in systems
    ]
    return _table(number, title, ["Dev EM", "Dev F1", "Test EM", "Test F1"], rows)


def _swag(systems: Sequence[MeasuredSystem]) -> dict[str, Any]:
    rows = [_row(name, "", [formatting.score(value) for value in pair], quoted=True) for name, pair in TABLE_4.items()]
    rows += [_row(system.name, "", _of_split(system, [_joined(system, "swag", ("accuracy",))])) for system in systems]
    return _table(4, "SWAG", ["Dev", "Test"], rows)


def _of_split(system: MeasuredSystem, cells: list[str]) -> list[str]:
    """Place the cells of a split in a table that has both splits."""
    nothing = [formatting.NOTHING] * len(cells)
    return [*cells, *nothing] if system.split == "dev" else [*nothing, *cells]


def _joined(system: MeasuredSystem, task: str, metrics: Sequence[str], sign: str = "") -> str:
    """Means of several metrics in one table cell; a dash if all are missing."""
    scores = [system.score(task, metric) for metric in metrics]
    if not any(scores):
        return formatting.NOTHING
    partial = formatting.PARTIAL if formatting.is_partial(system.cells[task]) else ""
    return sign.join(formatting.score(score.mean if score else None) for score in scores) + partial


def _row(name: str, split: str, cells: list[str], *, quoted: bool = False) -> dict[str, Any]:
    return {"name": name, "split": split, "cells": cells, "quoted": quoted}


def _table(number: int, title: str, columns: list[str], rows: list[dict[str, Any]], note: str = "") -> dict[str, Any]:
    scored = [row for row in rows if row["quoted"] or any(cell != formatting.NOTHING for cell in row["cells"])]
    return {"number": number, "title": title, "columns": columns, "rows": scored, "note": note}
