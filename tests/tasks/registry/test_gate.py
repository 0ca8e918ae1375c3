"""The gate lets pass what is shown to be no worse, and says of every rule why."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest

from bench.gate import LARGE, NEW, OLD, Scenario, years
from tasks.leaderboard.schema import CellRecord
from tasks.params.root import PromotionSettings
from tasks.registry.gate import Candidate, Verdict, change_since, judge, look_at
from tasks.registry.retrain import RetrainReport

TASKS = ("sst2", "mrpc", "rte", "cola")
SEEDS = [1, 2, 3]
SETTINGS = PromotionSettings()


def cell(values: list[float], **more: Any) -> CellRecord:
    content: dict[str, Any] = {
        "recipe": {},
        "num_recipes": 1,
        "seeds": SEEDS[: len(values)],
        "values": values,
        "runs": [],
        "jobs": [],
        "num_degenerate": 0,
        "all_degenerate": False,
        "best_run": "",
        "num_train_rows": 100,
        "num_dev_rows": 50,
        "num_all_train_rows": None,
        "num_all_dev_rows": None,
        "num_skipped_rows": 0,
        "dev_digest": "d",
    }
    return CellRecord.parse(content | more, "a test")


def candidate(name: str, scores: dict[str, list[float]], **more: Any) -> Candidate:
    cells = {task: cell(values) for task, values in scores.items()}
    headline = dict.fromkeys(cells, "accuracy")
    return Candidate(name=name, digest=f"digest of {name}", cells=cells, headline=headline, **more)


def around(middle: float, spread: float = 0.5) -> dict[str, list[float]]:
    return {task: [middle - spread, middle, middle + spread] for task in TASKS}


def refused(verdict: Verdict) -> dict[str, str]:
    return {rule.name: rule.reason for rule in verdict.rules if not rule.passed}


CHAMPION = candidate("old", around(80.0))


def test_the_first_needs_no_champion() -> None:
    verdict = judge(candidate("new", around(50.0)), None, SETTINGS)
    assert verdict.promoted
    assert "no champion yet" in verdict.reason
    assert not judge(candidate("new", {}), None, SETTINGS).promoted


def test_better_is_promoted_and_worse_refused() -> None:
    better = judge(candidate("new", around(83.0)), CHAMPION, SETTINGS)
    assert better.promoted and better.difference == pytest.approx(3.0)
    worse = judge(candidate("new", around(77.0)), CHAMPION, SETTINGS)
    assert set(refused(worse)) == {"average"}
    assert "-3.00 points over 4 tasks" in worse.reason and "-1.00 is allowed" in worse.reason


def test_what_is_not_shown_does_not_pass() -> None:
    noisy = {task: [70.0, 80.0, 90.0 + number] for number, task in enumerate(TASKS)}  # seeds say nothing
    verdict = judge(candidate("new", dict(noisy)), candidate("old", around(80.0)), SETTINGS)
    assert verdict.difference is not None and verdict.difference > 0
    assert set(refused(verdict)) == {"average"}
    wide = judge(candidate("new", dict(noisy)), CHAMPION, PromotionSettings(margin=30))
    assert wide.promoted


def test_the_margin_is_the_chance_that_is_taken() -> None:
    """A challenger that is worse by just the margin passes in about 1 - confidence of all cases with a single look."""
    settings = PromotionSettings(looks=1)
    noise, passed, tries = random.Random(0), 0, 400
    for _ in range(tries):
        old = {task: [noise.gauss(80, 1) for _ in SEEDS] for task in TASKS}
        new = {task: [noise.gauss(79, 1) for _ in SEEDS] for task in TASKS}
        passed += judge(candidate("new", new), candidate("old", old), settings).promoted
    assert 0.01 < passed / tries < 0.09


def test_one_task_must_not_fall_though_the_average_rises() -> None:
    scores = around(85.0) | {"rte": [70.0, 71.0, 70.5]}
    assert judge(candidate("new", scores), CHAMPION, SETTINGS).promoted
    guarded = PromotionSettings(must_not_fall=("rte", "sst2"))
    verdict = judge(candidate("new", scores), CHAMPION, guarded)
    assert set(refused(verdict)) == {"rte must not fall"}
    unknown = judge(candidate("new", scores), CHAMPION, PromotionSettings(must_not_fall=("qnli",)))
    assert "not compared" in refused(unknown)["qnli must not fall"]


def test_degenerate_tasks_are_refused_but_those_that_reward_nothing_else() -> None:
    cells = {task: cell([80.0, 80.5, 81.0]) for task in ("sst2", "wnli")}
    collapsed = cell([56.3] * 3, all_degenerate=True, num_degenerate=3)
    new = candidate("new", {})
    verdicts = [
        judge(new.model_copy(update={"cells": cells | {task: collapsed}}), None, SETTINGS) for task in ("sst2", "wnli")
    ]
    assert refused(verdicts[0]) == {"no degenerate task": "every run gave one answer to all rows of sst2"}
    assert verdicts[1].promoted
    [accepted] = [rule for rule in verdicts[1].rules if rule.name == "no degenerate task"]
    said = "the answers differ between rows on 1 of 2 tasks; promotion.may_be_degenerate accepts one answer for wnli"
    assert accepted.reason == said


def test_collapsed_seeds_count_and_a_challenger_that_collapses_more_often_is_refused() -> None:
    steady = cell([62.0, 62.4, 62.8, 62.6, 63.2], seeds=[1, 2, 3, 4, 5])
    champion = candidate("old", {}).model_copy(update={"cells": {"rte": steady}, "headline": {"rte": "accuracy"}})
    three_collapsed = cell(
        [66.0, 66.4, 52.7, 52.7, 52.7], seeds=[1, 2, 3, 4, 5], num_degenerate=3, all_degenerate=False, learned_mean=66.2
    )
    new = candidate("new", {}).model_copy(update={"cells": {"rte": three_collapsed}, "headline": {"rte": "accuracy"}})
    verdict = judge(new, champion, SETTINGS)
    assert verdict.difference == pytest.approx(58.1 - 62.6)
    assert refused(verdict)["collapse rate"] == "3 of 5 seeds are degenerate on rte"
    # A champion that collapses as often is no better in this respect.
    fallen = cell([60.0, 60.0, 52.7, 52.7, 52.7], seeds=[1, 2, 3, 4, 5], num_degenerate=3, learned_mean=60.0)
    as_often = champion.model_copy(update={"cells": {"rte": fallen}})
    assert "collapse rate" not in refused(judge(new, as_often, SETTINGS))


def test_a_few_collapses_on_many_tasks_are_significant() -> None:
    one_of_six = {task: cell([80.0] * 6, seeds=[*range(6)], num_degenerate=1, learned_mean=80.0) for task in TASKS}
    champion = candidate("old", {}).model_copy(
        update={
            "cells": {task: cell([80.0] * 6, seeds=[*range(6)]) for task in TASKS},
            "headline": dict.fromkeys(TASKS, "accuracy"),
        }
    )
    new = champion.model_copy(update={"name": "new", "digest": "another", "cells": one_of_six})
    lenient = judge(new, champion, SETTINGS)
    assert "collapse rate" not in refused(lenient), "4 of 24 against 0 of 24 is p = 0.055"
    assert "4 of 24 runs" in refused(judge(new, champion, PromotionSettings(confidence=0.9)))["collapse rate"]


def precise(name: str, middle: float) -> Candidate:
    """Seeds that differ so little that the lower limit is close to the difference."""
    return candidate(name, {task: [middle, middle + 0.02 * number, middle] for number, task in enumerate(TASKS)})


def test_small_losses_do_not_add_up() -> None:
    best = champion = precise("old", 80.0)
    looks, passed, from_latest = [], [], []
    for number in range(1, 4):
        challenger = precise(f"new {number}", 80.0 - 0.4 * number)
        verdict = judge(challenger, best, SETTINGS, looks, champion)
        from_latest.append(judge(challenger, champion, SETTINGS).promoted)
        passed.append(verdict.promoted)
        looks += [verdict.look] if verdict.look else []
        champion = challenger
    assert passed == [True, True, False], "the third has lost 1.2 points since `best`"
    assert from_latest == [True] * 3
    assert "look 3 of 52) no less than -1.2" in verdict.reason


def test_looks_share_the_error_rate() -> None:
    settings = PromotionSettings(looks=10)
    looks = []
    for number in range(10):
        look = look_at(precise(f"new {number}", 80.0), CHAMPION, settings, looks)
        looks.append(look)
        assert (look.number, look.spent) == (number + 1, pytest.approx(0.005 * look.number))
        assert look_at(precise(f"new {number}", 80.0), CHAMPION, settings, looks) == look, "the same pair again"
    assert sum(look.alpha for look in looks) <= 0.05 * (1 + 1e-9)
    assert "left 0" in str(looks[-1])
    beyond = look_at(precise("new 10", 80.0), CHAMPION, settings, looks)
    assert beyond.number == 11 and beyond.alpha == looks[0].alpha and "use new dev rows" in str(beyond)
    assert look_at(precise("new 3", 80.0), precise("another best", 80.0), settings, looks).number == 11


def test_new_dev_rows_are_looked_at_for_the_first_time() -> None:
    first = look_at(precise("new", 80.0), CHAMPION, SETTINGS, [])

    def best(dev_digest: str, tasks: tuple[str, ...]) -> Candidate:
        cells = {task: cell([80.0] * 3, dev_digest=dev_digest if task in tasks else "d") for task in TASKS}
        return CHAMPION.model_copy(update={"cells": cells, "digest": "measured again"})

    assert look_at(precise("newer", 80.0), best("other", TASKS), SETTINGS, [first]).number == 1
    assert look_at(precise("newer", 80.0), best("other", TASKS[:2]), SETTINGS, [first]).number == 2, "half is known"


def test_only_significantly_better_champions_become_best() -> None:
    assert judge(candidate("new", around(83.0)), CHAMPION, SETTINGS).moves_best
    noisy = {task: [79.0, 81.5, 80.0 + number] for number, task in enumerate(TASKS)}
    slightly = judge(candidate("new", noisy), CHAMPION, PromotionSettings(margin=5))
    assert slightly.promoted and slightly.difference is not None and slightly.difference > 0 and not slightly.moves_best
    assert judge(candidate("new", around(80.0)), None, SETTINGS).moves_best, "the first champion"
    elsewhere = judge(candidate("new", {"sst2": [90.0] * 3}), CHAMPION, SETTINGS)
    assert not elsewhere.promoted and elsewhere.moves_best and elsewhere.look is None, "if it is forced"


def test_a_year_of_weekly_gates() -> None:
    """Challengers that are truly worse by the margin are promoted in at most 5 % of the years (7 of 40 years would have
    a probability of 0.3 %). If each is slightly worse than the latest champion, comparing with that one adds up."""
    worse = Scenario("worse", from_best=-SETTINGS.margin, tasks=LARGE)
    assert years(worse, 3, NEW, 40)["years_with_wrong_promotion"] < 7 / 40
    rot = Scenario("rot", from_champion=-0.3, tasks=LARGE)
    assert years(rot, 3, NEW, 10)["loss_of_worst_twentieth"] <= SETTINGS.margin
    assert years(rot, 3, OLD, 5)["mean_loss"] > 2 * SETTINGS.margin


def test_a_card_that_lacks_something_is_refused() -> None:
    verdict = judge(candidate("new", around(90.0), card_faults=("no git commit",)), CHAMPION, SETTINGS)
    assert refused(verdict) == {"card is complete": "no git commit"}


def test_only_like_is_compared_with_like() -> None:
    fewer = judge(candidate("new", {"sst2": [90.0] * 3}), CHAMPION, SETTINGS)
    assert "no score on mrpc" in refused(fewer)["comparable"]
    other = candidate("new", around(90.0))
    cells = dict(other.cells) | {"rte": cell([90.0, 91.0, 92.0], dev_digest="other")}
    verdict = judge(other.model_copy(update={"cells": cells}), CHAMPION, SETTINGS)
    assert "rte has other dev rows" in refused(verdict)["comparable"]
    assert refused(judge(CHAMPION, CHAMPION, PromotionSettings(margin=10))) == {"new": "it is the champion itself"}


def test_one_seed_is_judged_by_rows_or_not_at_all() -> None:
    def records(num_right: int) -> list[list[dict[str, Any]]]:
        return [[{"id": str(n), "label": "1", "prediction": "1" if n < num_right else "0"} for n in range(200)]]

    old, new = candidate("old", {"sst2": [60.0]}), candidate("new", {"sst2": [95.0]})
    assert "two seeds" in refused(judge(new, old, SETTINGS))["average"]
    better, worse = (
        one.model_copy(update={"predictions": {"sst2": records(num_right)}})
        for one, num_right in ((new, 190), (old, 120))
    )
    assert judge(better, worse, SETTINGS).promoted
    assert not judge(worse, better, SETTINGS).promoted


def test_the_verdict_is_told() -> None:
    verdict = judge(candidate("new", around(77.0)), CHAMPION, PromotionSettings(must_not_fall=("sst2",)))
    record = verdict.record()
    assert record["promoted"] is False and len(record["rules"]) == 7 and record["look"]["number"] == 1
    assert set(record["tasks"]) == set(TASKS)
    page = RetrainReport("refused", verdict.reason, verdict=verdict).markdown()
    assert "- Look 1 of 52 on these dev rows: error rate 0.00096, spent 0.00096 of 0.05, left 0.049" in page
    assert "**refused**" in page and "| sst2 must not fall | REFUSED |" in page and "| rte | -3.00 |" in page
    assert judge(candidate("new", around(77.0)), CHAMPION, PromotionSettings(must_not_fall=("sst2",))) == verdict


def test_the_cumulative_change_is_reported() -> None:
    change = change_since("new (version 3)", "best, old (version 1)", precise("new", 80.5), CHAMPION, SETTINGS)
    assert change.difference is not None and change.low is not None and change.high is not None
    assert change.low < change.difference < change.high
    assert str(change).startswith("change of new (version 3) since best, old (version 1): +0.5")
    elsewhere = change_since("new", "first champion", candidate("new", {}), CHAMPION, SETTINGS)
    assert "not compared (the challenger has no score on sst2" in str(elsewhere)


def test_an_event_fits_into_a_tag() -> None:
    """PostgreSQL limits a tag of a registered model to 5,000 characters."""
    tasks = [f"benchmark-{number}" for number in range(13)]
    settings = PromotionSettings(must_not_fall=tuple(tasks[:3]))
    noise = random.Random(0)
    old, new = (candidate(name, {task: [noise.gauss(80, 1) for _ in SEEDS] for task in tasks}) for name in ("a", "b"))
    change = change_since("a name (version 12 of cloze-encoder)", "first champion, a name", new, old, settings)
    verdict = dataclasses.replace(judge(new, old, settings), changes=(change, change))
    assert len(json.dumps({"reason": verdict.reason, "verdict": verdict.record()})) < 4500
