"""Measure how outages of MLflow, S3 and Prefect affect pre-training: seconds per step, and lost metrics.

    python -m bench.outages [--seconds 60] [--pairs 40]

Runs the pipeline on the synthetic dataset with PostgreSQL, rclone's S3 server and MLflow (the servers of the tests).
While it trains, the connections to MLflow and S3 go through proxies that alternately refuse and pass them; the ratio is
the CPU seconds (and the time) of a step while they refuse over those of the adjacent window while they pass. Then the
servers of MLflow, S3 and Prefect are killed one after another, for `--seconds` each. At the end, the tables of MLflow
are compared with the metrics logs, row by row.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench import argument_parser, comparison, show
from bench.overhead import interval
from model.common.metrics_log import read_metrics
from model.common.state_files import read_state
from tests.flows.clone import Clone, new_clone
from tests.rows import stored, written
from tests.servers import Site

PAIR_SECONDS = 3.0
LOG_EVERY = 5


class Proxy:
    """A TCP proxy to another local port. While shut, it refuses and aborts connections."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.open()

    def open(self) -> None:
        """Accept connections."""
        self._do(self._open())

    def shut(self) -> None:
        """Refuse new connections and abort existing ones."""
        self._do(self._shut())

    def _do(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers |= {writer, back}
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        self._writers.discard(writer)
        writer.close()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
        self._writers.discard(target)
        target.close()


@dataclass
class Mark:
    """The wall clock and the CPU time of training at one moment."""

    time_ms: float
    cpu_seconds: float


class Training:
    """The pre-training process of a clone, observed from outside."""

    def __init__(self, clone: Clone, process: subprocess.Popen[str]) -> None:
        runs = clone.root / "build" / "runs" / "pretrain"
        logs = lambda: list(runs.glob("pretrained-*/journal.jsonl"))  # noqa: E731
        clone.wait_for(lambda: any(path.read_bytes().count(b"\n") > 20 for path in logs()), process)
        [self.metrics_log] = logs()
        self._process = psutil.Process(read_state(self.metrics_log.with_name("handle.json"))["pid"])

    def mark(self) -> Mark:
        """Return the current mark."""
        times = self._process.cpu_times()
        return Mark(time.time() * 1000, times.user + times.system)

    def window(self, seconds: float) -> tuple[Mark, Mark]:
        """Return the marks before and after a number of seconds."""
        begin = self.mark()
        time.sleep(seconds)
        return begin, self.mark()

    def steps_at(self) -> Callable[[float], float]:
        """Return a function from milliseconds to the step at that time, interpolated between the entries of the log."""
        lines = [line for line, _ in read_metrics(self.metrics_log) if line["stream"] == "train"]
        times, steps = [line["time_ms"] for line in lines], [line["step"] for line in lines]

        def step(at: float) -> float:
            place = min(max(bisect.bisect(times, at), 1), len(times) - 1)
            share = (at - times[place - 1]) / max(1, times[place] - times[place - 1])
            return float(steps[place - 1] + share * (steps[place] - steps[place - 1]))

        return step


def results(seconds: float = 60.0, pairs: int = 40) -> Iterator[dict[str, Any]]:
    """Yield the ratios of CPU and wall time, one result per killed server, and the lost metrics."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        site = Site(folder)
        try:
            yield from _measure(site, folder, seconds, pairs)
        finally:
            site.close()


def _measure(site: Site, folder: Path, seconds: float, pairs: int) -> Iterator[dict[str, Any]]:
    clone = _clone(folder / "clone", (2 * PAIR_SECONDS * pairs + 3 * (2 * seconds + 30)) * 1.1 + 30)
    proxies = [Proxy(site.mlflow.port), Proxy(site.s3.server.port)]
    environment = site.environment
    environment["MLFLOW_TRACKING_URI"] = site.tracking_uri().replace(f":{site.mlflow.port}", f":{proxies[0].port}")
    environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{proxies[1].port}"
    clone.environment |= environment
    process = clone.start("cloze", "run")
    training = Training(clone, process)
    windows: dict[str, list[tuple[Mark, Mark]]] = {"open": [], "shut": []}
    for number in range(pairs):
        for state in ("open", "shut") if number % 2 else ("shut", "open"):
            for proxy in proxies:
                proxy.shut() if state == "shut" else None
            windows[state].append(training.window(PAIR_SECONDS))
            for proxy in proxies:
                proxy.open() if state == "shut" else None
    killed: dict[str, list[tuple[Mark, Mark]]] = {}
    for name, server in (("MLflow", site.mlflow), ("S3", site.s3.server), ("Prefect", site.prefect)):
        before = training.window(seconds)
        server.end()
        killed[name] = [before, training.window(seconds)]
        server.start()
        time.sleep(5)
    assert process.poll() is None, "training ended before the measurement"
    code = process.wait(1200)
    step = training.steps_at()
    spent = {state: [_per_step(step, *window) for window in found] for state, found in windows.items()}
    for place, what in enumerate(("cpu", "time")):
        ratios = [shut[place] / free[place] for shut, free in zip(spent["shut"], spent["open"])]
        low, high = interval(ratios)
        yield comparison(
            f"outages-pairs-{what}",
            statistics.fmean(one[place] for one in spent["shut"]),
            statistics.fmean(one[place] for one in spent["open"]),
            statistics.fmean(ratios),
            f"{what} seconds per step, MLflow and S3 down (peer: up); 95 %: {low:.4f} to {high:.4f}",
            {"pairs": pairs, "seconds": PAIR_SECONDS, "low": low, "high": high, "ratios": ratios},
        )
    for name, (before, during) in killed.items():
        free, shut = _per_step(step, *before), _per_step(step, *during)
        unit = f"CPU seconds per step, {name} killed for {seconds:.0f} s (peer: the {seconds:.0f} s before)"
        detail = {"time_ratio": shut[1] / free[1]}
        yield comparison(f"outages-{name.lower()}", shut[0], free[0], shut[0] / free[0], unit, detail)
    yield _lost(site, clone, code)


def _lost(site: Site, clone: Clone, code: int) -> dict[str, Any]:
    """Count the rows of the metrics logs that MLflow lacks or has twice, and list its runs and checkpoints."""
    here, there = written(clone.root), stored(site.postgres)
    total = sum(sum(rows.values()) for rows in here.values())
    lost = sum(sum((rows - there.get(key, (set(), type(rows)()))[1]).values()) for key, rows in here.items())
    doubled = sum(sum((there[key][1] - rows).values()) for key, rows in here.items() if key in there)
    detail = {
        "lost": lost,
        "doubled": doubled,
        "rows": total,
        "runs_of_a_job": sorted({len(there[key][0]) for key in here if key in there}),
        "exit_code": code,
        "checkpoints": site.s3.names("mirror/.*/digests.json"),
        "messages": [line for line in (clone.root / "test.log").read_text().splitlines() if line.startswith("cloze:")],
    }
    unit = f"metric rows lost or duplicated (peer: all); the run exited with {code}"
    return comparison("outages-lost", lost + doubled, total, (lost + doubled) / total, unit, detail)


def _per_step(step: Callable[[float], float], begin: Mark, end: Mark) -> tuple[float, float]:
    """Return the CPU seconds and the seconds per step in a window."""
    steps = step(end.time_ms) - step(begin.time_ms)
    return (end.cpu_seconds - begin.cpu_seconds) / steps, (end.time_ms - begin.time_ms) / 1000 / steps


def _clone(target: Path, seconds: float) -> Clone:
    """Make a clone whose encoder trains on the synthetic dataset for `seconds`."""
    clone = new_clone(target)

    def change(content: dict[str, Any]) -> None:
        recipe = content["pretrain"]["recipe"]
        recipe["phases"][0]["num_steps"] = 10**6
        recipe |= {
            "finish_within_seconds": seconds,
            "log_every_steps": LOG_EVERY,
            "checkpoint_every_steps": 500,
            "validation_batches": 0,
        }
        content["pretrain"]["machine"] = {"num_threads": 1}
        content["finetune"]["benchmarks"] = {"rte": None}
        content["mirror"] = {"url": "s3://cloze/mirror"}

    clone.params(change)
    return clone


def main() -> None:
    """Measure, and print the table."""
    parser = argument_parser("bench.outages", __doc__)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long each server is down (default: %(default)s)"
    )
    parser.add_argument(
        "--pairs", type=int, default=40, help="pairs of windows without and with outage (default: %(default)s)"
    )
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    show(results(given.seconds, given.pairs))


if __name__ == "__main__":
    main()
