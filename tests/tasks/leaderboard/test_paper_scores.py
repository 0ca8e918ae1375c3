"""The paper's rows."""

from __future__ import annotations

import pytest

from model.benchmarks.table import BENCHMARKS
from tasks.leaderboard.paper_scores import glue_columns, quoted_systems
from tasks.leaderboard.schema import average, means_of

SYSTEMS = {system.name: system for system in quoted_systems(list(BENCHMARKS))}


def value(system: str, benchmark: str, metric: str) -> float:
    number: float = SYSTEMS[system].scores[benchmark][metric].mean
    return number


@pytest.mark.parametrize(
    ("system", "benchmark", "metric", "expected", "split"),
    [
        ("BERT base", "mnli", "accuracy_matched", 84.6, "test"),
        ("BERT large", "mnli", "accuracy_mismatched", 85.9, "test"),
        ("BERT large", "cola", "matthews", 60.5, "test"),
        ("OpenAI GPT", "stsb", "spearman", 80.0, "test"),
        ("BiLSTM+ELMo+Attn", "rte", "accuracy", 56.8, "test"),
        ("Pre-OpenAI SOTA", "qqp", "f1", 66.1, "test"),
        ("BERT base (dev)", "squad1", "exact", 80.8, "dev"),
        ("BERT large + TriviaQA (ensemble)", "squad1", "f1", 93.2, "test"),
        ("BERT large + TriviaQA (dev)", "squad1", "f1", 91.1, "dev"),
        ("R.M. Reader (ensemble) (dev)", "squad1", "exact", 81.2, "dev"),
        ("BERT large", "squad2", "f1", 83.1, "test"),
        ("BERT large (dev)", "squad2", "exact", 78.7, "dev"),
        ("Human", "squad2", "f1", 89.5, "test"),
        ("BERT base (dev)", "swag", "accuracy", 81.6, "dev"),
        ("Human (expert)", "swag", "accuracy", 85.0, "test"),
        ("BERT large", "ner", "f1", 92.8, "test"),
    ],
)
def test_a_figure_of_the_paper(system: str, benchmark: str, metric: str, expected: float, split: str) -> None:
    assert value(system, benchmark, metric) == expected
    assert SYSTEMS[system].split == split
    assert SYSTEMS[system].kind == "quoted"


@pytest.mark.parametrize("system", ["Pre-OpenAI SOTA", "BiLSTM+ELMo+Attn", "OpenAI GPT", "BERT base", "BERT large"])
def test_table_1_averages_to_what_the_paper_prints(system: str) -> None:
    # A slip of a digit in a row shows here: the printed average is over the nine columns, rounded to 0.1.
    assert average(means_of(SYSTEMS[system].scores), glue_columns()) == pytest.approx(SYSTEMS[system].average, abs=0.11)


def test_rows_outside_table_1_have_no_average() -> None:
    assert SYSTEMS["BERT base (dev)"].average is None
    assert SYSTEMS["Human"].average is None


def test_names_are_unique_and_metrics_are_known() -> None:
    systems = quoted_systems(list(BENCHMARKS))
    assert len({system.name for system in systems}) == len(systems)
    for system in systems:
        for benchmark, scores in system.scores.items():
            assert BENCHMARKS[benchmark].headline in scores
            assert all(cell.best == cell.mean and cell.std is None for cell in scores.values())


def test_only_systems_that_score_the_asked_benchmarks_are_quoted() -> None:
    names = [system.name for system in quoted_systems(["swag"])]
    assert "BERT base (dev)" in names
    assert "Pre-OpenAI SOTA" not in names
