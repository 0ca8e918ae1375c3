"""Compare the time of a pre-training step (bf16, dropout 0.1, MLM and NSP, length 128) with `transformers`.

Our time is that of the process that users run, from its metrics log. The *installed* peer is `transformers` with its
defaults (eager, glibc's allocator). The *tuned* peer has our environment variables and the fastest of the modes eager,
sdpa and compiled, which the first round determines. The processes alternate, on batches of the same shape.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import comparison
from bench.peer import MODES
from bench.processes import INSTALLED, THREADS, TUNED, ask, random_text, shape_of
from model.common.files import write_json
from model.common.metrics_log import read_metrics
from model.common.run_dir import RunDir
from model.config.hardware import products_are_fast
from model.config.pretraining import PretrainRun
from tasks.jobs.local_launcher import module_command, start

LENGTH = 128
CASES = {"mini": {"batch": 32, "steps": 10, "rounds": 5}, "base": {"batch": 8, "steps": 5, "rounds": 3}}


def results() -> Iterator[dict[str, Any]]:
    """Yield two results for each case, in seconds per step (medians over rounds)."""
    for preset, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            random_text(Path(folder))
            yield from compare(preset, case, Path(folder))


def compare(preset: str, case: dict[str, int], folder: Path) -> Iterator[dict[str, Any]]:
    """Measure all rounds of one preset."""
    task = {"shape": shape_of(preset), "length": LENGTH, "threads": THREADS, **case}

    def peer(mode: str, allocator: dict[str, str]) -> float:
        return float(ask("bench.peer", "steps", task={**task, "mode": mode}, allocator=allocator)["seconds"])

    # Without fast bf16 products, `compile: auto` never compiles.
    compile_modes = ("off", "on") if products_are_fast() else ("off",)
    candidates: dict[str, dict[str, Callable[[], float]]] = {
        "ours": {mode: lambda mode=mode: ours(preset, case, folder, mode) for mode in compile_modes},  # type: ignore[misc]
        "installed": {"eager": lambda: peer("eager", INSTALLED)},
        "tuned": {mode: lambda mode=mode: peer(mode, TUNED) for mode in MODES},  # type: ignore[misc]
    }
    seconds: dict[str, list[float]] = {system: [] for system in candidates}
    first = {system: {mode: run() for mode, run in modes.items()} for system, modes in candidates.items()}
    chosen = {system: min(modes, key=lambda mode: modes[mode]) for system, modes in first.items()}
    for _ in range(case["rounds"]):
        for system, mode in chosen.items():
            seconds[system].append(candidates[system][mode]())
    medians = {system: statistics.median(values) for system, values in seconds.items()}
    for setting in ("installed", "tuned"):
        detail = {**case, "threads": THREADS, "modes": chosen, "first_round": first, "seconds": seconds}
        peer_seconds, our_seconds = medians[setting], medians["ours"]
        ratio = peer_seconds / our_seconds
        yield comparison(f"pretrain-{preset}-{setting}", our_seconds, peer_seconds, ratio, "seconds per step", detail)


def ours(preset: str, case: dict[str, int], folder: Path, compile_mode: str) -> float:
    """Return the median seconds per step of our process, without the first steps (warm-up, compilation)."""
    run_dir = folder / "run"
    phase = {"sequence_length": LENGTH, "batch_size": case["batch"], "num_steps": 3 + case["steps"]}
    values = {
        "name": "bench",
        "digest": "bench",
        "tokens_dir": str(folder / "tokens"),
        "tokenizer_dir": str(folder / "tokenizer"),
        "run_dir": str(run_dir),
        "shape": {"preset": preset},
        "recipe": {
            "phases": [{**phase, "learning_rate": 1e-4}],
            "warmup_steps": 1,
            "log_every_steps": 1,
            "short_sequence_probability": 0,
            "validation_batches": 0,
            "checkpoint_every_steps": 10**6,
        },
        "machine": {"compile": compile_mode},
    }
    for old in ("journal.jsonl", "result.json"):
        (run_dir / old).unlink(missing_ok=True)
    for checkpoint in run_dir.glob("checkpoints/*/*"):
        checkpoint.unlink()
    run = PretrainRun.parse(values, "bench")
    write_json(folder / "RUN.json", run.model_dump(mode="json"))
    command = module_command("model.pretrain", str(folder / "RUN.json"))
    if start(command, RunDir(run_dir).log, with_secrets=False).wait() != 0:
        raise RuntimeError((run_dir / "log.txt").read_text()[-2000:])
    entries = [entry for entry, _ in read_metrics(run_dir / "journal.jsonl") if entry["stream"] == "train"]
    return statistics.median(entry["metrics"]["train/interval_seconds"] for entry in entries[3:])
