"""Compare the time of fine-tuning on four GLUE benchmarks with the Trainer of `transformers`, on the same cores.

    python -m bench.finetune_time ENCODER_DIR DATA_DIR

Our time is that of the fan-out: it includes the start of the fork server, and ends with the last result. Jobs run on
one worker per core, longest first. The peer runs the benchmarks one after another on all cores. With the *installed*
setting, it is run_glue.py with its defaults (texts padded to 128, fp32, glibc's allocator); *tuned* adds our
environment variables, dynamic padding, grouping by length, and bf16. Ours groups by length, too (`batches: length`).
Batch size, epochs, learning rate and warm-up are the same for all. Each result is kept in build/bench/finetune-time/
and not measured again.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import OUT, argument_parser, comparison, show
from bench.processes import INSTALLED, THREADS, TUNED, ask
from model.benchmarks.table import find, paper_recipe
from model.common.files import read_json, write_json
from model.config.hardware import HardwareOptions
from model.finetune.job import Job
from tasks.jobs.local_launcher import WorkerPool

BENCHMARKS = ("cola", "stsb", "mrpc", "rte")  # longest first
SETTINGS = {"installed": INSTALLED, "tuned": TUNED}


def ours(encoder_dir: Path, data_dir: Path, num_epochs: int, seed: int) -> dict[str, Any]:
    """Fine-tune on all benchmarks; return the total seconds, the scores, and the timing of each job."""
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
                recipe=paper_recipe(find(name)).model_copy(update={"num_epochs": num_epochs, "batches": "length"}),
                seed=seed,
                run_dir=Path(folder) / name,
                machine=HardwareOptions(num_threads=1),
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
    """Fine-tune the peer on one benchmark; return the seconds of its process and the scores."""
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
    """Run the missing jobs, ours before each setting of the peer, and print the table."""
    parser = argument_parser("bench.finetune_time", __doc__)
    parser.add_argument("encoder_dir", type=Path)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--epochs", type=int, default=3, help="number of epochs (default: %(default)s)")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="settings of the peer")
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
        scores = {
            name: {"ours": mine["scores"][name], "peer": one["scores"], "seconds": one["seconds"]}
            for name, one in zip(BENCHMARKS, theirs)
        }
        detail = {"epochs": options.epochs, "threads": THREADS, "timing": mine["timing"], "scores": scores}
        ratio = total / mine["seconds"]
        show([comparison(f"finetune-{setting}", mine["seconds"], total, ratio, "seconds, all processes", detail)])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
