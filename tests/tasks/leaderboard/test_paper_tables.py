"""Tables 1 to 4 with our rows."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.leaderboard.board import compose
from tasks.leaderboard.inputs import read_inputs
from tasks.leaderboard.paper_scores import paper_tables
from tasks.leaderboard.schema import MeasuredSystem


@pytest.fixture
def measured(metrics, encoders, benchmarks) -> list[MeasuredSystem]:
    board = compose(read_inputs(metrics.finetune, metrics.pretrain, encoders, benchmarks), encoders, benchmarks)
    return list(board.measured)


def row(table: dict[str, Any], name: str) -> list[str]:
    (found,) = [one["cells"] for one in table["rows"] if one["name"] == name]
    return found


def test_the_papers_figures_stand_in_its_columns(measured) -> None:
    glue, squad1, squad2, swag = paper_tables(measured)
    assert glue["columns"][0] == "MNLI-(m/mm)" and glue["columns"][-1] == "Average"
    assert row(glue, "BERT base") == ["84.6/83.4", "71.2", "90.5", "93.5", "52.1", "85.8", "88.9", "66.4", "79.6"]
    assert row(squad1, "BERT large + TriviaQA") == ["84.2", "91.1", "85.1", "91.8"]
    assert row(squad2, "BERT large") == ["78.7", "81.9", "80.0", "83.1"]
    assert row(swag, "BERT large") == ["86.6", "86.3"]


def test_ours_stand_among_them_on_their_split(measured) -> None:
    glue, squad1, _, swag = paper_tables(measured)
    scores = measured[0].scores
    ours = row(glue, "sample-mini")
    assert ours[0] == "/".join(f"{scores['mnli'][f'accuracy_{part}'].mean:.1f}" for part in ("matched", "mismatched"))
    assert ours[-1] == f"{measured[0].glue_average:.1f}"
    assert row(squad1, "sample-mini")[:2] == [f"{scores['squad1'][metric].mean:.1f}" for metric in ("exact", "f1")]
    assert row(squad1, "sample-mini")[2:] == ["–", "–"], "nothing is measured on test"
    assert row(swag, "sample-mini")[1] == "–"


def test_part_of_the_data_is_marked_and_what_has_no_score_is_left_out(measured) -> None:
    measured[0].cells["swag"].recipe["max_train_rows"] = 100
    for task in ("squad1", "swag"):
        del measured[1].scores[task]
    _, squad1, _, swag = paper_tables(measured)
    assert row(swag, "sample-mini")[0].endswith("◔")
    assert "from-scratch" not in [one["name"] for one in (*squad1["rows"], *swag["rows"])]
