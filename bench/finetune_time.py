"""The time of the same fine-tunings, whole processes on the same cores, beside `transformers`' Trainer.

`python -m bench.finetune_time ENCODER_DIR DATA_DIR`. Ours is the fan-out as the stage runs it: the fork server is
started, jobs go to one worker per core, longest first, and the time ends with the last result. The peer runs the same
benchmarks one after another on all cores, as its script does. *Installed* is run_glue.py with its defaults (texts
padded to 128, fp32, the allocator as glibc has it), *tuned* the environment of our own processes, dynamic padding,
grouping by length and bf16. Batch, epochs, rate and warm-up are the same for all. Each peer run is kept under
build/bench/finetune-time/.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.__main__ import OUT, show
from bench.processes import INSTALLED, THREADS, TUNED, ask
from model.benchmarks.table import find, paper_recipe
from model.common.files import read_json, write_json
from model.config.hardware import Machine
from model.finetune.job import Job
from tasks.jobs.worker_pool import WorkerPool

BENCHMARKS = ("cola", "stsb", "mrpc", "rte")  # longest first
SETTINGS = {"installed": INSTALLED, "tuned": TUNED}


def ours(encoder_dir: Path, data_dir: Path, num_epochs: int, seed: int) -> dict[str, Any]:
    """Seconds of all benchmarks together, and their scores."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        jobs = []
        for name in BENCHMARKS:
            job = Job(
                digest=f"{name}-{seed}",
                encoder_name="encoder",
                encoder_dir=encoder_dir.resolve(),
                benchmark=name,
                data_dir=data_dir.resolve(),
                recipe=paper_recipe(find(name)).model_copy(update={"num_epochs": num_epochs}),
                seed=seed,
                run_dir=Path(folder) / name,
                machine=Machine(num_threads=1),
            )
            write_json(job.run_dir / "JOB.json", job.model_dump(mode="json"))
            jobs.append(job)
        with (
            WorkerPool(Path(folder) / "workers.log") as pool,
            ThreadPoolExecutor(THREADS) as threads,
        ):
            list(threads.map(lambda job: pool.run(job.digest, job.run_dir / "JOB.json", threading.Event()), jobs))
        seconds = time.perf_counter() - started
        return {
            "seconds": seconds,
            "scores": {job.benchmark: read_json(job.result_path)["scores"] for job in jobs},
            "timing": {job.benchmark: read_json(job.run_dir / "timing.json") for job in jobs},
        }


def peer(encoder_dir: Path, data_dir: Path, name: str, setting: str, num_epochs: int, seed: int) -> dict[str, Any]:
    """Seconds of one benchmark's process, and its scores."""
    recipe = paper_recipe(find(name)).model_copy(update={"num_epochs": num_epochs})
    task = {
        "encoder_dir": str(encoder_dir.resolve()),
        "data_dir": str(data_dir.resolve()),
        "benchmark": name,
        "setting": setting,
        "recipe": recipe.model_dump(mode="json"),
        "seed": seed,
        "threads": THREADS,
    }
    started = time.perf_counter()
    scores = ask("bench.trainer_peer", task=task, allocator=SETTINGS[setting])["scores"]
    return {"seconds": time.perf_counter() - started, "scores": scores}


def main(arguments: list[str]) -> int:
    """Run what is not there yet, ours before each setting of the peer, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.finetune_time")
    parser.add_argument("encoder_dir", type=Path)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    options = parser.parse_args(arguments)
    os.environ.update(TUNED)
    kept = OUT / "finetune-time"
    for setting in options.settings:
        found = []
        for name in ("ours", *BENCHMARKS):
            path = kept / f"{setting}-{options.epochs}-{name}.json"
            if not path.exists():
                if name == "ours":
                    value = ours(options.encoder_dir, options.data_dir, options.epochs, seed=1)
                else:
                    value = peer(options.encoder_dir, options.data_dir, name, setting, options.epochs, seed=1)
                write_json(path, value)
                print(f"{setting} {name}: {value['seconds']:.1f} s {value['scores']}", file=sys.stderr, flush=True)
            found.append(read_json(path))
        mine, theirs = found[0], found[1:]
        total = sum(one["seconds"] for one in theirs)
        result = {
            "name": f"finetune-{setting}",
            "ours": mine["seconds"],
            "peer": total,
            "ratio": total / mine["seconds"],
            "unit": "seconds, all processes",
            "detail": {
                "epochs": options.epochs,
                "threads": THREADS,
                "timing": mine["timing"],
                "scores": {
                    name: {"ours": mine["scores"][name], "peer": one["scores"], "seconds": one["seconds"]}
                    for name, one in zip(BENCHMARKS, theirs)
                },
            },
        }
        show([result])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
