"""Work spread over processes with results in the order of the items, so that outputs depend on no one's speed."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process
from typing import TypeVar

from model.errors import Paused, UserError
from model.lifeline import die_with_parent
from tasks import stop

Item = TypeVar("Item")
Result = TypeVar("Result")
FEWEST_ITEMS = 4  # fewer are done here: starting processes takes about a second


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], num_workers: int, items_ahead: int = 2
) -> Iterator[Result]:
    """`function` of every item, in their order, computed by `num_workers` processes that end with this one.

    At most `num_workers * (1 + items_ahead)` items are held at a time, so a stream of any length takes constant
    memory. `function` is a module's function; items and results travel between processes.

    Raises:
        Paused: the run was asked to stop.
        UserError: a worker was killed, most likely for want of memory.
    """
    stream = iter(items)
    first: deque[Item] = deque()
    for item in stream:
        first.append(item)
        if len(first) == FEWEST_ITEMS:
            break
    if num_workers <= 1 or len(first) < FEWEST_ITEMS:
        for item in _joined(first, stream):
            _check_stop()
            yield function(item)
        return
    # Spawned, not forked: this process may have threads (Prefect's), and a fork of their locks can hang.
    executor = ProcessPoolExecutor(num_workers, mp_context=get_context("spawn"), initializer=_start_worker)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in _joined(first, stream):
            waiting.append(executor.submit(function, item))
            if len(waiting) >= num_workers * (1 + items_ahead):
                _check_stop()
                yield waiting.popleft().result()
        while waiting:
            _check_stop()
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed, most likely for want of memory; give fewer workers or more memory"
        ) from None
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _joined(first: deque[Item], rest: Iterator[Item]) -> Iterator[Item]:
    while first:
        yield first.popleft()
    yield from rest


def _check_stop() -> None:
    if stop.requested.is_set():
        raise Paused("stopped; nothing of this stage is kept")


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the whole group; the parent decides
    die_with_parent()
    parent = parent_process()
    assert parent is not None, "a worker has a parent"
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True, name="parent").start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])  # ready when the parent has ended in any way, on every system
    os._exit(1)
