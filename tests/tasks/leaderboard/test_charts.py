"""Geometry and thinning of the charts."""

from __future__ import annotations

import itertools
import math

import pytest

from tasks.leaderboard import formatting
from tasks.leaderboard.board import thin
from tasks.leaderboard.charts import BarChart, Line, LineChart, ScoreBar, bar_plot, line_plot, mean_line, ticks
from tasks.project.progress import scientific


@pytest.mark.parametrize(
    ("low", "high"), [(0, 7.3), (0.12, 0.19), (50, 100), (-20, 100), (3, 3), (56.3, 56.3 + 1e-14), (0, 1_000_000)]
)
def test_ticks_are_round_even_and_cover_the_range(low: float, high: float) -> None:
    values = ticks(low, high)
    assert values[0] <= low
    assert values[-1] >= high
    assert 2 <= len(values) <= 8
    steps = {round(after - before, 9) for before, after in itertools.pairwise(values)}
    assert len(steps) == 1


def test_thinning_takes_means_of_stretches_and_keeps_the_last_step() -> None:
    rows = [{"step": step, "loss": float(step)} for step in range(1, 101)]
    thinned = thin(rows, 10)
    assert [row["step"] for row in thinned] == list(range(10, 101, 10))
    assert thinned[0]["loss"] == pytest.approx(5.5)


def test_thinning_leaves_out_what_is_no_number() -> None:
    assert thin([{"step": 1, "loss": math.nan}, {"step": 2, "loss": 4.0}], 1) == [{"step": 2, "loss": 4.0}]
    assert thin([{"step": 1, "loss": math.inf}], 1) == [{"step": 1}]


def test_a_short_curve_stays_as_it_is() -> None:
    rows = [{"step": 5, "loss": 0.5}]
    assert thin(rows, 40) == rows


def test_a_plot_spans_its_box_and_grows_upwards() -> None:
    plot = line_plot(LineChart("t", [Line("p0", [(0, 0.0), (100, 10.0)])]))
    assert plot is not None
    assert plot["paths"] == [("p0 thick", "M0 100L100 0")]


def test_a_single_point_is_drawn_as_a_dot() -> None:
    plot = line_plot(LineChart("t", [Line("p0", [(10, 5.0)])]))
    assert plot is not None
    assert plot["paths"][0][0] == "p0 dots"


def test_no_points_no_plot() -> None:
    assert line_plot(LineChart("t", [Line("p0", [])])) is None


def test_the_mean_line_is_over_steps_that_all_seeds_have() -> None:
    assert mean_line([[(1, 2.0), (2, 4.0)], [(1, 4.0)]]) == [(1, 3.0)]


def test_a_negative_score_grows_to_the_left_of_zero() -> None:
    def bar(value: float) -> ScoreBar:
        return ScoreBar("e", "scratch", "dev", "x0", value, 0.0, "")

    rows = bar_plot(BarChart("", "t", "", [bar(-10), bar(50)], None))["rows"]
    zero = rows[1]["left"]
    assert rows[0]["left"] + rows[0]["width"] == pytest.approx(zero, abs=0.02)
    assert rows[0]["text"] == "−10.0"


def test_numbers_as_people_write_them() -> None:
    assert scientific(5e-5) == "5e-5"
    assert scientific(0.00025) == "2.5e-4"
    assert formatting.count(42_600_000_000) == "42.6B"
    assert formatting.signed(-0.44) == "−0.4"
    assert formatting.score(None) == "–"
    assert (
        formatting.recipe({"learning_rate": 3e-5, "batch_size": 16, "num_epochs": 2})
        == "rate 3e-5 · batch 16 · 2 epochs"
    )
