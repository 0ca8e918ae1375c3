"""Work spread over processes with results in the order of the items, so that outputs depend on no one's speed."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, connection, get_context, parent_process
from typing import TypeVar

from model.common.errors import Paused, UserError
from model.common.process_guard import die_with_parent
from tasks.project import signals

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
            check_stop()
            yield function(item)
        return
    # Spawned, not forked: this process may have threads (Prefect's), and a fork of their locks can hang.
    executor = ProcessPoolExecutor(num_workers, mp_context=get_context("spawn"), initializer=_start_worker)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in _joined(first, stream):
            waiting.append(executor.submit(function, item))
            if len(waiting) >= num_workers * (1 + items_ahead):
                check_stop()
                yield waiting.popleft().result()
        while waiting:
            check_stop()
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed, most likely for want of memory; give fewer workers or more memory"
        ) from None
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def unordered_map(
    function: Callable[[Item], Result], items: Sequence[Item], num_workers: int
) -> Iterator[tuple[Item, Result]]:
    """(Item, `function` of it) as they are done, for long work: a stop, and a fault, end the workers at once.

    So `function` has to leave nothing half-written where it is looked for. It is a module's function; items and results
    travel between processes.

    Raises:
        Paused: the run was asked to stop.
        UserError: a worker was killed, most likely for want of memory.
    """
    if num_workers <= 1 or len(items) <= 1:
        for item in items:
            check_stop("what is done is kept")
            yield item, function(item)
        return
    executor = ProcessPoolExecutor(
        min(num_workers, len(items)), mp_context=get_context("spawn"), initializer=_start_worker
    )
    before = active_children()
    rest = iter(items)
    waiting: dict[Future[Result], Item] = {}
    finished = False
    try:
        while True:
            for item in itertools.islice(rest, num_workers + 1 - len(waiting)):
                waiting[executor.submit(function, item)] = item
            if not waiting:
                break
            check_stop("what is done is kept")
            done, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()
        finished = True
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed, most likely for want of memory; give fewer workers or more memory"
        ) from None
    finally:
        if not finished:
            for process in set(active_children()) - set(before):
                process.terminate()
        executor.shutdown(wait=True, cancel_futures=True)


def _joined(first: deque[Item], rest: Iterator[Item]) -> Iterator[Item]:
    while first:
        yield first.popleft()
    yield from rest


def check_stop(kept: str = "nothing of this stage is kept") -> None:
    """Raise Paused if the run was asked to stop."""
    if signals.requested.is_set():
        raise Paused(f"stopped; {kept}")


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the whole group; the parent decides
    die_with_parent()
    parent = parent_process()
    assert parent is not None, "a worker has a parent"
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True, name="parent").start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])  # ready when the parent has ended in any way, on every system
    os._exit(1)
