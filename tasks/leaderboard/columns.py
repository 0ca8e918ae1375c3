"""The columns of the leaderboard: how benchmarks and metrics are called on a page and in a terminal."""

from __future__ import annotations

from dataclasses import dataclass

from model.benchmarks.table import BENCHMARKS, Benchmark


@dataclass(frozen=True)
class Column:
    """A benchmark as a column."""

    title: str
    short: str
    """At most five letters, for a terminal."""
    headline: str
    """The metric that speaks for the benchmark; "" where only results can tell."""


# Table 1's average: nine columns, MNLI-m and MNLI-mm counted separately, WNLI left out.
GLUE_AVERAGE: tuple[tuple[str, str], ...] = (
    ("mnli", "accuracy_matched"),
    ("mnli", "accuracy_mismatched"),
    ("qqp", "f1"),
    ("qnli", "accuracy"),
    ("sst2", "accuracy"),
    ("cola", "matthews"),
    ("stsb", "spearman"),
    ("mrpc", "f1"),
    ("rte", "accuracy"),
)

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


def column_of(benchmark: str, own: Benchmark | None = None) -> Column:
    """The column of `benchmark`, an own task with the row `own` maybe; one that nothing is known of is titled by its
    name."""
    row = own or BENCHMARKS.get(benchmark)
    title = row.title if row else benchmark
    short = _SHORT.get(benchmark, title.replace("-", ""))[:5]
    return Column(title, short, row.headline if row else "")


def metric_title(metric: str) -> str:
    """How a metric is called on the page."""
    return _METRIC_TITLES.get(metric, metric.replace("_", " "))
