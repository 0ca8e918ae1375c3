"""Two systems compared on one benchmark and on many: both kinds of tests, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from model.benchmarks.table import Benchmark
from tasks.stats.counts import Records, measure_of
from tasks.stats.resampling import NUM_RESAMPLES, paired_bootstrap, randomisation_test
from tasks.stats.seeds import holm, seed_test

LEVEL = 0.05


@dataclass(frozen=True)
class Run:
    """One fine-tuning of a system: its seed, its score of the metric in question, and its predictions.jsonl."""

    seed: int
    score: float
    records: Records


def compare_runs(
    row: Benchmark,
    metric: str,
    first: Sequence[Run],
    second: Sequence[Run],
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Is one system better than the other on a benchmark? Differences are first minus second, in points.

    `rows` is the interval over dev rows and a p-value (by randomisation; by the bootstrap where the systems have
    different numbers of runs), `seeds` the t-test over seeds, None where there is one. `p` is the greater of the two
    p-values: a claim has to hold on other rows and for other seeds.

    Raises:
        UserError: the runs were not judged on the same rows.
    """
    first, second = (sorted(runs, key=lambda run: run.seed) for runs in (first, second))
    measure = measure_of(row, metric, [run.records for run in first], [run.records for run in second])
    rows = paired_bootstrap(measure, num_resamples, seed)
    rows["test"] = "bootstrap"
    if measure.exchangeable:
        rows |= {"test": "randomisation", "p": randomisation_test(measure, num_resamples, seed)}
    seeds = seed_test({run.seed: run.score for run in first}, {run.seed: run.score for run in second})
    means = measure.whole()
    return {
        "benchmark": row.name,
        "metric": metric,
        "first": means[0],
        "second": means[1],
        "num_runs": [len(first), len(second)],
        "difference": rows.pop("difference"),
        "rows": rows,
        "seeds": seeds,
        "p": max(rows["p"], seeds["p"] if seeds else 0.0),
    }


def judge(comparisons: Sequence[dict[str, Any]], level: float = LEVEL) -> list[dict[str, Any]]:
    """The comparisons with `p_corrected`, Holm's over all of them, and `better`: first, second or None."""
    corrected = holm([comparison["p"] for comparison in comparisons])
    return [
        {**comparison, "p_corrected": p, "better": _better(comparison["difference"]) if p < level else None}
        for comparison, p in zip(comparisons, corrected)
    ]


def _better(difference: float) -> str:
    return "first" if difference > 0 else "second"
