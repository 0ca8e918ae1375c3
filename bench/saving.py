"""Measure what checkpoints cost training: a checkpoint per 50 steps, written in the background or in the foreground.

A trainer takes blocks of steps: one without a checkpoint, one that starts with a checkpoint as training saves it, and
one that starts with a checkpoint as it was saved before (copied, written, synced and read back for the digests while
training waits). The blocks alternate; a checkpoint's cost is the time that its block takes longer than the block
without one next to it. A block is as short as a checkpoint's effect, since the noise of 50 steps would hide it: it ends
after ten steps, and when the checkpoint is on the disk. `base` measures how long one save holds up training, without
steps. CPU seconds, of all threads, are recorded as well, since other processes disturb them less. Runs on a GPU or a
CPU.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from bench import comparison
from bench.overhead import interval, toy_run
from bench.processes import ask, random_text
from bench.timing import device
from model.common import files
from model.common.checkpoint_files import DIGESTS
from model.common.status import Status
from model.engine.callbacks import Checkpointing
from model.engine.checkpoint import optimizer_moments
from model.engine.trainer import Trainer
from model.optim.sharding import gathered
from model.pretrain.training import Pretraining

WAYS = ("none", "background", "foreground")
STEPS = 10  # per block
STEPS_PER_CHECKPOINT = 50  # for the share of the step time
TRAINED = {"preset": "small", "batch": 8, "rounds": 40}
HELD_UP = {"preset": "base", "batch": 1, "saves": 5}


def results() -> Iterator[dict[str, Any]]:
    """Yield the share of step time that checkpoints of `small` take, and the seconds that a save of `base` holds up."""
    found = ask("bench.saving", task=TRAINED)
    unit = "seconds per checkpoint of small (peer: written in the foreground)"
    yield comparison("saving-small", *_compared(found["cost_seconds"]), unit, found)
    found = ask("bench.saving", task=HELD_UP)
    unit = "seconds that a save of base holds up training (peer: written in the foreground)"
    yield comparison("saving-base", *_compared(found["held_up"]), unit, found)


def _compared(seconds: dict[str, float]) -> tuple[float, float, float]:
    return seconds["background"], seconds["foreground"], seconds["foreground"] / max(seconds["background"], 1e-9)


class Times(NamedTuple):
    """Seconds, and CPU seconds of this process."""

    seconds: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> Times:
        """Return the clocks, after the device has finished its work."""
        if device().type == "cuda":
            torch.cuda.synchronize()
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, other: Times) -> Times:
        return Times(*(one - two for one, two in zip(self, other)))


class Saver:
    """Saves a trainer's checkpoints in either way."""

    def __init__(self, trainer: Trainer, directory: Path) -> None:
        self._trainer, self._directory = trainer, directory
        [self._checkpointing] = [callback for callback in trainer.callbacks if isinstance(callback, Checkpointing)]

    def save(self, way: str) -> Times:
        """Save a checkpoint, and return for how long it held up training."""
        before = Times.now()
        if way == "background":
            self._checkpointing.save(self._trainer)
        elif way == "foreground":
            self._save_in_foreground()
        return Times.now() - before

    def wait(self) -> None:
        """Wait for the write in the background."""
        self._checkpointing.on_train_end(self._trainer)

    def _save_in_foreground(self) -> None:
        module, optimizer = self._trainer.module, self._trainer.optimizer
        with files.atomic_directory(self._directory / f"foreground-{self._trainer.step}") as partial:
            save_file(gathered(module.state_dict()), partial / "model.safetensors")
            save_file(gathered(optimizer_moments(module, optimizer)), partial / "optimizer.safetensors")
            files.write_json(partial / "state.json", self._trainer.state())
            written = sorted(partial.iterdir())
            for path in written:
                files.sync(path)
            files.write_json(partial / DIGESTS, {path.name: files.digest_of_file(path) for path in written})
        for old in sorted(self._directory.glob("foreground-*"))[:-2]:
            shutil.rmtree(old)


def measure(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the cost of checkpoints in blocks of steps, or (with "saves") how long saves hold up training."""
    random_text(folder)
    rounds = task.get("rounds", 0)
    num_steps = (1 + rounds * len(WAYS)) * STEPS if rounds else 2
    run = toy_run(folder, task["preset"], task["batch"], num_steps, log_every_steps=STEPS)
    blocks: dict[str, list[Times]] = {way: [] for way in WAYS}
    held_up: dict[str, list[Times]] = {way: [] for way in WAYS}
    order, asked, since = ["warm-up"], 0, Times.now()

    def between_steps() -> bool:
        """Called after each step: end a block after its last one, and begin the next."""
        nonlocal asked, since
        asked += 1
        if asked % STEPS == 0 and rounds:
            saver.wait()
            if order[-1] in blocks:
                blocks[order[-1]].append(Times.now() - since)
            shift = len(order) // len(WAYS) % len(WAYS)  # each way comes first, second and last in turn
            order.append((WAYS * 2)[shift + (len(order) - 1) % len(WAYS)])
            since = Times.now()
            held_up[order[-1]].append(saver.save(order[-1]))
        return False

    trainer = Pretraining(run, Status(run.run_dir / "status.json"), between_steps).make_trainer()
    saver = Saver(trainer, run.run_dir)
    trainer.train()
    for _ in range(task.get("saves", 0)):
        for way in WAYS[1:]:
            held_up[way].append(saver.save(way))
            saver.wait()
    found: dict[str, Any] = {"held_up": _medians(held_up, "seconds"), "held_up_cpu": _medians(held_up, "cpu_seconds")}
    for clock in Times._fields if rounds else ():
        spent = {way: [getattr(block, clock) for block in blocks[way][:rounds]] for way in WAYS}
        for way in WAYS[1:]:
            extra = [one - other for one, other in zip(spent[way], spent["none"])]
            between = statistics.median(spent["none"]) * STEPS_PER_CHECKPOINT / STEPS
            share = [more / between for more in extra]
            found.setdefault(f"cost_{clock}", {})[way] = statistics.median(extra)
            found.setdefault(f"share_{clock}", {})[way] = [statistics.fmean(share), *interval(share)]
    bytes_saved = sum(path.stat().st_size for path in next(run.run_dir.glob("foreground-*")).iterdir())
    place = torch.cuda.get_device_name() if device().type == "cuda" else "cpu"
    return found | {"blocks": blocks, "all_held_up": held_up, "bytes": bytes_saved, "device": place, **task}


def _medians(times: dict[str, list[Times]], clock: str) -> dict[str, float]:
    """Medians without the first save of each way, which allocates memory."""
    return {way: statistics.median(getattr(one, clock) for one in times[way][1:]) for way in WAYS[1:]}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        answer = measure(json.loads(sys.argv[1]), Path(temporary))
    print(json.dumps(answer))
