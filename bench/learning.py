"""Learning on real text: the time in which ours reaches the held-out loss that the tuned peer ends with.

`python -m bench.learning TOKENS_DIR TOKENIZER_DIR` (docs/real-data.md makes both). The same shape, samples, masks,
schedule and number of steps for both, one thread each; learning rates swept for both with the first seed, then the
best one with all seeds. Seconds are of training alone, validations left out. Each run is kept under
build/bench/learning/ and not run again.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.plot import draw_curves
from bench.processes import ask
from model.common.files import read_json, write_json
from model.common.metrics_log import read_journal
from model.common.run_dir import RunDir
from model.config.encoder import PRESETS, EncoderConfig
from model.config.pretrain_run import PretrainRun
from tasks.jobs.local_launcher import LocalJob

OUT = Path("build/bench")
SYSTEMS = ("peer", "ours")
SEEDS = (1, 2, 3)
RATES = (5e-4, 1e-3, 2e-3)
SHAPE = {**PRESETS["tiny"], "initializer_range": 0.06}  # the deviation that narrow layers ask for, given to both
PEER_MODE = "eager"  # the fastest of bench.peer.MODES at this size; see the detail of the result


def recipe(rate: float, num_steps: int) -> dict[str, Any]:
    """What both train by."""
    phase = {"sequence_length": 64, "batch_size": 32, "num_steps": num_steps, "learning_rate": rate}
    return {
        "phases": [phase],
        "warmup_steps": num_steps // 10,
        "validate_every_steps": 50,
        "validation_batches": 8,
        "log_every_steps": 50,
        "checkpoint_every_steps": 10**6,
    }


def peer(tokens_dir: Path, tokenizer_dir: Path, rate: float, seed: int, num_steps: int) -> list[dict[str, float]]:
    """The curve of the peer: step, seconds, mlm_loss."""
    vocab_size = read_json(tokens_dir / "index.json")["vocab_size"]
    config = EncoderConfig.parse({"vocab_size": vocab_size, **SHAPE}, "shape")
    task = {
        "tokens_dir": str(tokens_dir),
        "tokenizer_dir": str(tokenizer_dir),
        "shape": config.model_dump(),
        "recipe": recipe(rate, num_steps),
        "seed": seed,
        "mode": PEER_MODE,
        "threads": 1,
    }
    curve: list[dict[str, float]] = ask("bench.peer", "learn", task=task)["curve"]
    return curve


def ours(tokens_dir: Path, tokenizer_dir: Path, rate: float, seed: int, num_steps: int) -> list[dict[str, float]]:
    """The curve of our own process, from its journal."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        values = {
            "name": "bench",
            "digest": "bench",
            "tokens_dir": str(tokens_dir),
            "tokenizer_dir": str(tokenizer_dir),
            "run_dir": str(run_dir),
            "shape": SHAPE,
            "recipe": {**recipe(rate, num_steps), "start": "neighbours"},
            "seed": seed,
            "machine": {"num_threads": 1, "compile": "off"},
        }
        run = PretrainRun.parse(values, "bench")
        write_json(Path(folder) / "RUN.json", run.model_dump(mode="json"))
        job = LocalJob.submit("model.pretrain", Path(folder) / "RUN.json", RunDir(run_dir))
        if job.process.wait() != 0:
            raise RuntimeError((run_dir / "log.txt").read_text())
        seconds, losses = {}, {}
        for entry, _ in read_journal(run_dir / "journal.jsonl"):
            if entry["stream"] == "train":
                seconds[entry["step"]] = entry["metrics"]["train/interval_seconds"]
            else:
                losses[entry["step"]] = entry["metrics"]["heldout/mlm_loss"]
    spent, curve = 0.0, []
    for step, loss in losses.items():
        spent += seconds[step]
        curve.append({"step": step, "seconds": spent, "mlm_loss": loss})
    return curve


def main() -> int:
    """Run what is missing, then say how the two compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens_dir", type=Path)
    parser.add_argument("tokenizer_dir", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--only", choices=SYSTEMS, help="run one of the two and compare nothing")
    arguments = parser.parse_args()
    best: dict[str, dict[int, list[dict[str, float]]]] = {}
    for system in [arguments.only] if arguments.only else SYSTEMS:

        def curve(rate: float, seed: int, system: str = system) -> list[dict[str, float]]:
            path = OUT / "learning" / f"{system}-{rate:g}-seed{seed}-{arguments.steps}.json"
            if not path.exists():
                train = {"peer": peer, "ours": ours}[system]
                write_json(path, train(arguments.tokens_dir, arguments.tokenizer_dir, rate, seed, arguments.steps))
            found: list[dict[str, float]] = read_json(path)
            last = found[-1]
            print(f"{system} rate {rate:g} seed {seed}: {last['mlm_loss']:.3f} in {last['seconds']:.0f} s", flush=True)
            return found

        rate = min(RATES, key=lambda rate: curve(rate, SEEDS[0])[-1]["mlm_loss"])
        best[system] = {seed: curve(rate, seed) for seed in SEEDS}
    if not arguments.only:
        compare(best, arguments.steps)
    return 0


def compare(best: dict[str, dict[int, list[dict[str, float]]]], num_steps: int) -> None:
    """Write the result and the picture, and print the ratio of every seed.

    A step counts as the median step of its run, so that a machine that is busy for a while bends nothing.
    """
    for curve in (curve for seeds in best.values() for curve in seeds.values()):
        ends = [{"step": 0, "seconds": 0.0}, *curve]
        paces = [(b["seconds"] - a["seconds"]) / (b["step"] - a["step"]) for a, b in itertools.pairwise(ends)]
        pace = statistics.median(paces)
        for point in curve:
            point["seconds"] = point["step"] * pace
    found: list[dict[str, Any]] = []
    for seed in SEEDS:
        end = best["peer"][seed][-1]
        there = next((point for point in best["ours"][seed] if point["mlm_loss"] <= end["mlm_loss"]), None)
        if there is None:
            print(f"seed {seed}: ours does not reach the {end['mlm_loss']:.3f} that the peer ends at")
            return
        found.append({"peer": end, "ours": there, "ratio": end["seconds"] / there["seconds"]})
        print(
            f"seed {seed}: {end['mlm_loss']:.3f} is where the peer ends after {end['seconds']:.0f} s, ours is there "
            f"after {there['seconds']:.0f} s (step {there['step']:.0f}) and ends at "
            f"{best['ours'][seed][-1]['mlm_loss']:.3f} after {best['ours'][seed][-1]['seconds']:.0f} s"
        )
    result = {
        "name": "learning-tiny",
        "ours": statistics.median(one["ours"]["seconds"] for one in found),
        "peer": statistics.median(one["peer"]["seconds"] for one in found),
        "ratio": statistics.median(one["ratio"] for one in found),
        "unit": "seconds to the peer's final held-out masked-word loss",
        "detail": {"seeds": SEEDS, "steps": num_steps, "found": found},
    }
    write_json(OUT / "learning-tiny.json", result)
    print(f"ratio {result['ratio']:.1f}")
    draw_curves(best, OUT / "learning-tiny.png")


if __name__ == "__main__":
    sys.exit(main())
