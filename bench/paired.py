"""Fine-tuning jobs of one encoder with paired seeds, and the interval of their differences."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from bench import OUT
from bench.processes import TUNED
from model.common.files import digest_of, read_json, write_json
from model.config.finetuning import FinetuneRecipe
from model.config.hardware import HardwareOptions
from model.finetune.job import Job

MACHINE = HardwareOptions(accelerator="cpu", num_threads=1)


class Jobs:
    """Fine-tuning jobs, each a separate process on one thread. Results are kept in build/bench/NAME and reused."""

    def __init__(self, name: str, encoder_dir: Path, data_dir: Path) -> None:
        self.name = name
        self.encoder_dir = encoder_dir.resolve()
        self.data_dir = data_dir.resolve()

    def run(self, benchmark: str, way: str, recipe: dict[str, Any], seed: int) -> tuple[dict[str, Any], Path]:
        """Return the result of a job, with the "cpu_seconds" of its process, and its run directory.

        `way` names the compared setting of the recipe. Scores are on all dev rows.
        """
        parsed = FinetuneRecipe.parse(recipe, "bench")
        content = {"benchmark": benchmark, "recipe": parsed.model_dump(mode="json"), "seed": seed}
        job = Job(
            digest=digest_of(content),
            encoder_name="bench",
            encoder_dir=self.encoder_dir,
            benchmark=benchmark,
            data_dir=self.data_dir,
            recipe=parsed,
            seed=seed,
            judge_share=0,
            run_dir=(OUT / self.name / f"{benchmark}-{way}-seed{seed}-{digest_of(content)}").resolve(),
            machine=MACHINE,
        )
        if not job.result_path.exists():
            path = job.run_dir / "JOB.json"
            write_json(path, job.model_dump(mode="json"))
            environment = {**os.environ, **TUNED, "OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, "-P", "-m", "model.finetune", str(path)], env=environment, check=True)
        result = read_json(job.result_path)
        result["cpu_seconds"] = read_json(job.run_dir / "timing.json")["cpu_seconds"]
        scores = ", ".join(f"{name} {value:.2f}" for name, value in result["scores"].items())
        took = f"{result['cpu_seconds']:.0f} CPU seconds, {time.strftime('%H:%M:%S')}"
        print(f"{benchmark} {way} seed {seed}: {scores} ({took})", flush=True)
        return result, job.run_dir


def difference(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Return the mean difference (second minus first) of two or more pairs, with its 95 % t interval."""
    differences = [other - one for one, other in zip(first, second, strict=True)]
    mean, deviation = statistics.mean(differences), statistics.stdev(differences)
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * deviation / len(differences) ** 0.5
    return {"difference": mean, "low": mean - half, "high": mean + half}


def shown(found: dict[str, Any]) -> str:
    """Format the result of `difference` for a table."""
    return f"{found['difference']:+.2f} ({found['low']:+.2f} to {found['high']:+.2f})"
