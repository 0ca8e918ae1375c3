"""Parallel map over processes."""

from __future__ import annotations

import itertools
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from typing import TypeVar

from model.common.errors import Paused, UserError
from model.common.process_guard import die_with_parent
from tasks.project import signals
from tasks.project.progress import warn

Item = TypeVar("Item")
Result = TypeVar("Result")
_SPAWN = get_context("spawn")  # not forked: a fork can inherit locks that threads (Prefect's) hold
MIN_ITEMS = 4  # fewer run in this process, since starting workers takes about a second
_KILLED = "a worker process was killed, probably because memory ran out; use fewer workers or add memory"


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], num_workers: int, items_ahead: int = 2
) -> Iterator[Result]:
    """Apply `function` to every item in `num_workers` processes and yield the results in the order of the items.

    At most `num_workers * (1 + items_ahead)` items are in flight, so memory does not depend on the number of items.
    `function` must be a module-level function; items and results are pickled.

    Raises:
        Paused: the run was interrupted.
        UserError: a worker was killed, probably because memory ran out.
    """
    rest = iter(items)
    first = list(itertools.islice(rest, MIN_ITEMS))
    stream = itertools.chain(first, rest)
    num_workers = _usable(num_workers)
    if num_workers <= 1 or len(first) < MIN_ITEMS:
        for item in stream:
            check_stop()
            yield function(item)
        return
    executor = ProcessPoolExecutor(num_workers, mp_context=_SPAWN, initializer=_start_worker)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in stream:
            waiting.append(executor.submit(function, item))
            if len(waiting) >= num_workers * (1 + items_ahead):
                check_stop()
                yield waiting.popleft().result()
        while waiting:
            check_stop()
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise UserError(_KILLED) from None
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def unordered_map(
    function: Callable[[Item], Result], items: Sequence[Item], num_workers: int
) -> Iterator[tuple[Item, Result]]:
    """Apply `function` to every item and yield (item, result) in order of completion.

    A stop request or an error ends the workers at once, so `function` must write its outputs atomically. It must be a
    module-level function; items and results are pickled.

    Raises:
        Paused: the run was interrupted.
        UserError: a worker was killed, probably because memory ran out.
    """
    num_workers = _usable(num_workers)
    if num_workers <= 1 or len(items) <= 1:
        for item in items:
            check_stop("finished items are kept")
            yield item, function(item)
        return
    executor = ProcessPoolExecutor(min(num_workers, len(items)), mp_context=_SPAWN, initializer=_start_worker)
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
            check_stop("finished items are kept")
            done, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()
        finished = True
    except BrokenProcessPool:
        raise UserError(_KILLED) from None
    finally:
        if not finished:
            for process in set(active_children()) - set(before):
                process.terminate()
        executor.shutdown(wait=True, cancel_futures=True)


def _usable(num_workers: int) -> int:
    """Return 1 if several processes cannot share a lock, which is a file in /dev/shm, else `num_workers`."""
    try:
        if num_workers > 1:
            _SPAWN.Lock()
    except OSError as error:
        warn(f"cloze: /dev/shm: {error.strerror}; using one process instead of {num_workers}")
        return 1
    return num_workers


def check_stop(kept: str = "this stage starts over in the next run") -> None:
    """Raise Paused if a stop was requested."""
    if signals.requested.is_set():
        raise Paused(f"interrupted; {kept}")


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    die_with_parent()
    parent = parent_process()
    assert parent is not None, "workers have a parent"
    threading.Thread(target=signals.exit_after, args=(parent.sentinel,), daemon=True, name="parent").start()
