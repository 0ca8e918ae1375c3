"""Results in order, few items in flight, faults and stops passed on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.common.errors import Paused, UserError
from tasks.project import signals
from tasks.project.parallel import ordered_map


@pytest.fixture(autouse=True)
def _workers_find_this_module(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.syspath_prepend(str(root))


def slow_square(number: int) -> int:
    time.sleep(0.05 if number % 3 == 0 else 0)
    return number * number


def refuse_seven(number: int) -> int:
    if number == 7:
        raise UserError("row 7: not that one")
    return number


def die_at_seven(number: int) -> int:
    if number == 7:
        os._exit(9)
    return number


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_come_in_order(num_workers: int) -> None:
    assert list(ordered_map(slow_square, range(30), num_workers)) == [number * number for number in range(30)]
    assert list(ordered_map(slow_square, range(2), num_workers)) == [0, 1]
    assert list(ordered_map(slow_square, [], num_workers)) == []


def test_items_are_read_no_further_ahead_than_said() -> None:
    read = 0

    def items() -> Iterator[int]:
        nonlocal read
        for number in range(100):
            read += 1
            yield number

    for done, _ in enumerate(ordered_map(slow_square, items(), num_workers=2, items_ahead=2), start=1):
        assert read <= done + 2 * 3


@pytest.mark.parametrize("num_workers", [1, 2])
def test_faults_are_passed_on(num_workers: int) -> None:
    with pytest.raises(UserError, match="row 7"):
        list(ordered_map(refuse_seven, range(20), num_workers))


def test_a_killed_worker_is_named() -> None:
    with pytest.raises(UserError, match="a worker process was killed"):
        list(ordered_map(die_at_seven, range(20), 2))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_stop_is_heeded(num_workers: int) -> None:
    results = ordered_map(slow_square, range(1000), num_workers)
    try:
        assert next(results) == 0
        signals.requested.set()
        with pytest.raises(Paused):
            list(results)
    finally:
        signals.requested.clear()
