from __future__ import annotations

from pathlib import Path

import pytest

from model.common.errors import UserError
from model.common.metrics_log import MetricsLog, read_metrics


def lines(path: Path) -> list[tuple[str, int]]:
    return [(line["stream"], line["step"]) for line, _ in read_metrics(path)]


def test_a_step_is_never_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = MetricsLog(path)
    for step in (1, 2, 3):
        journal.log(step, {"loss": 1.0})
    journal.log(2, {"heldout": 1.0}, stream="validation")
    journal.close()
    resumed = MetricsLog(path)  # from a checkpoint at step 1
    for step in (2, 3, 4):
        resumed.log(step, {"loss": 9.0})
    resumed.close()
    assert lines(path) == [("train", 1), ("train", 2), ("train", 3), ("validation", 2), ("train", 4)]


def test_a_line_cut_by_a_kill_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = MetricsLog(path)
    journal.log(1, {"loss": 1.0})
    journal.close()
    with path.open("a") as file:
        file.write('{"stream": "train", "step": 2, "ti')
    assert lines(path) == [("train", 1)]
    resumed = MetricsLog(path)
    resumed.log(2, {"loss": 2.0})
    resumed.close()
    assert lines(path) == [("train", 1), ("train", 2)]


def test_reading_goes_on_from_an_offset_and_leaves_out_what_is_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = MetricsLog(path)
    journal.log(1, {"loss": 1.0, "norm": float("inf")})
    [(line, offset)] = list(read_metrics(path))
    assert line["metrics"] == {"loss": 1.0}
    journal.log(2, {"loss": 0.5})
    assert [line["step"] for line, _ in read_metrics(path, offset)] == [2]


def test_a_deleted_log_shows_when_it_is_closed(tmp_path: Path) -> None:
    journal = MetricsLog(tmp_path / "run" / "journal.jsonl")
    journal.log(1, {"loss": 1.0})
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="run: deleted while the job worked"):
        journal.close()
