"""Measure the overhead of the trainer (Fabric, metrics log, status, step skipping) over a bare training loop.

Both train the same shape on the same batches in one process, in alternating blocks of steps. The trainer asks after
every step whether to stop; after each of its blocks, the bare loop runs a block in that callback.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench import comparison
from bench.processes import THREADS, ask, random_text
from bench.step import take_step
from model.common.rng import Domain, Key
from model.common.status import Status
from model.config.hardware import resolve
from model.config.pretraining import PretrainRun
from model.encoder.init import initialize
from model.objectives.masked_lm import PretrainingModule
from model.ops.forward_context import ForwardContext
from model.optim.optimizers import MasterWeights, make_optimizer
from model.pretrain.training import Pretraining

BLOCKS, STEPS = 100, 4  # blocks per side, steps per block
WARM_UP_BLOCKS = 2


def toy_run(folder: Path, preset: str, batch_size: int, num_steps: int, log_every_steps: int) -> PretrainRun:
    """Return a pre-training on the text of `random_text` in `folder`, without validations and checkpoints."""
    phase = {"sequence_length": 128, "batch_size": batch_size, "num_steps": num_steps, "learning_rate": 1e-4}
    return PretrainRun.parse(
        {
            "name": "bench",
            "digest": "bench",
            "tokens_dir": str(folder / "tokens"),
            "tokenizer_dir": str(folder / "tokenizer"),
            "run_dir": str(folder / "run"),
            "shape": {"preset": preset},
            "recipe": {
                "phases": [phase],
                "warmup_steps": 1,
                "log_every_steps": log_every_steps,
                "validation_batches": 0,
                "checkpoint_every_steps": 10**6,
            },
            "machine": {"num_threads": THREADS, "compile": "off"},
        },
        "bench",
    )


def results() -> Iterator[dict[str, Any]]:
    """Yield the mean ratio of the blocks; the detail has its 95 % interval."""
    found = ask("bench.overhead", task={})
    unit = "seconds per step (peer: a bare loop; the ratio is the trainer's time over the loop's)"
    yield comparison("overhead-mini", found["trainer"], found["bare"], found["ratio"], unit, found)


def measure(folder: Path) -> dict[str, Any]:
    """Return the seconds per step of both, and their mean ratio over blocks with its 95 % interval."""
    random_text(folder)
    steps = (BLOCKS + WARM_UP_BLOCKS + 1) * STEPS
    run = toy_run(folder, "mini", batch_size=32, num_steps=steps, log_every_steps=STEPS)
    times: dict[str, list[float]] = {"trainer": [], "bare": []}
    asked, since = 0, time.perf_counter()

    def between_steps() -> bool:
        nonlocal asked, since
        asked += 1
        if asked % STEPS == 0:
            now = time.perf_counter()
            times["trainer"].append((now - since) / STEPS)
            for number in range(asked - STEPS, asked):
                bare_step(number)
            since = time.perf_counter()
            times["bare"].append((since - now) / STEPS)
        return False

    status = Status(run.run_dir / "status.json")
    training = Pretraining(run, status, between_steps)
    trainer = training.make_trainer()
    module = PretrainingModule(training.config).train()
    initialize(module, run.seed, training.config.initializer_range)
    optimizer = make_optimizer(module, learning_rate=1e-4)
    bf16 = resolve(run.machine).precision == "bf16"
    master_weights = MasterWeights(module, module.output_matrix, optimizer) if bf16 else None
    context = ForwardContext(low_precision=master_weights.copies if master_weights else None)

    def bare_step(number: int) -> None:
        data = trainer.loader.at(number)
        weights = torch.tensor(data.weights[0])
        take_step(lambda: module(data.batches[0], weights, context)[0], module, optimizer, master_weights, bf16)

    trainer.train()
    pairs = list(zip(times["trainer"], times["bare"]))[WARM_UP_BLOCKS:]
    ratios = [one / other for one, other in pairs]
    low, high = interval(ratios)
    return {
        "trainer": statistics.median(one for one, _ in pairs),
        "bare": statistics.median(other for _, other in pairs),
        "ratio": statistics.mean(ratios),
        "low": low,
        "high": high,
        "blocks": len(ratios),
        "steps_per_block": STEPS,
        "threads": THREADS,
    }


def interval(values: list[float], draws: int = 4000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean."""
    generator = random.Random(Key(len(values)).for_(Domain.ROW_SUBSET))
    means = sorted(statistics.fmean(generator.choices(values, k=len(values))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


if __name__ == "__main__":
    import json

    with tempfile.TemporaryDirectory() as temporary:
        found = measure(Path(temporary))
    print(json.dumps(found))
    sys.exit(0)
