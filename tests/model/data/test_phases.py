"""Phase schedules: phases, their samples, rates, restarts and budgets of time."""

from __future__ import annotations

import itertools

import pytest

from model.common.errors import UserError
from model.config.pretraining import PretrainRecipe
from model.data.phases import PhaseSchedule


def phase(length: int, batch: int, steps: int, **more: object) -> dict[str, object]:
    return {"sequence_length": length, "batch_size": batch, "num_steps": steps, "learning_rate": 1.0, **more}


def schedule(*phases: dict[str, object], warmup_steps: int = 0, **changes: object) -> PhaseSchedule:
    return PhaseSchedule(
        PretrainRecipe.parse({"phases": list(phases), "warmup_steps": warmup_steps, **changes}, "test")
    )


def test_a_growing_batch_goes_on_in_the_same_text() -> None:
    one = schedule(phase(32, 4, 3), phase(32, 8, 2), phase(64, 2, 2))
    places = [one.position(step) for step in range(7)]
    assert [place.first_sample for place in places] == [0, 4, 8, 12, 20, 0, 2]
    assert [place.phase for place in places] == [0, 0, 0, 1, 1, 2, 2]
    assert [place.first_phase for place in places] == [0, 0, 0, 0, 0, 2, 2]
    assert one.samples_before(2) == 3 * 4 + 2 * 8


def test_tokens_give_steps() -> None:
    row = phase(32, 4, 0) | {"num_tokens": 1_000}
    del row["num_steps"]
    assert schedule(row).num_steps == 8  # 7.8 batches of 128
    with pytest.raises(UserError, match="num_steps"):
        schedule({name: value for name, value in row.items() if name != "num_tokens"})


def test_a_restart_begins_a_schedule() -> None:
    one = schedule(phase(32, 4, 10), phase(64, 4, 10, restart=True), warmup_steps=2)
    rates = [one.learning_rate(step, 0.0) for step in range(20)]
    assert rates[:3] == [0.5, 1.0, 1.0] and rates[10:] == rates[:10] and rates[9] == pytest.approx(1 / 8)
    assert [step for step in range(20) if one.restarts(step)] == [10]
    with pytest.raises(UserError, match="must be less than num_steps 3"):
        schedule(phase(32, 4, 10), phase(64, 4, 3, restart=True), warmup_steps=3)


def test_without_restart_one_schedule_spans_all_phases() -> None:
    one = schedule(phase(32, 4, 10), phase(64, 4, 10))
    assert one.learning_rate(10, 0.0) == pytest.approx(0.5) and not any(one.restarts(step) for step in range(20))


def test_a_budget_ends_each_phase_at_its_share_of_the_time() -> None:
    # Nine tenths of the tokens at length 32: that phase has 90 of the 100 seconds, at 3 seconds a step 30 steps.
    one = schedule(phase(32, 4, 900), phase(64, 2, 100), warmup_steps=2, finish_within_seconds=100.0)
    taken, rates, step = [], [], 0
    while step < one.num_steps:
        taken.append(one.position(step).phase)
        rates.append(one.learning_rate(step, 3.0 * step))
        step += 1
        one.fit(step, 3.0 * step)
    assert taken == [0] * 30 + [1] * 4 and one.lengths == [30, 4]
    assert rates[:2] == [0.5, 1.0] and rates[-1] == pytest.approx(0.01, abs=0.002)  # at 99 of 100 seconds
    assert all(after <= before for before, after in itertools.pairwise(rates[1:]))
    assert one.position(30).first_sample == 0 and one.samples_before(1) == 120


def test_a_budget_that_is_not_needed_changes_nothing() -> None:
    fitted, planned = (schedule(phase(32, 4, 10), **changes) for changes in ({"finish_within_seconds": 1e6}, {}))
    fitted.fit(5, 10.0)
    assert fitted.lengths == planned.lengths
    assert fitted.learning_rate(5, 10.0) == planned.learning_rate(5, 10.0)


def test_a_budget_and_a_restart_are_refused_together() -> None:
    with pytest.raises(UserError, match="finish_within_seconds"):
        schedule(phase(32, 4, 10), phase(64, 4, 10, restart=True), finish_within_seconds=5.0)
