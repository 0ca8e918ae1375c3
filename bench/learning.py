"""Measure the time in which pre-training on real text reaches the final held-out loss of the tuned peer.

    python -m bench.learning TOKENS_DIR TOKENIZER_DIR

docs/real-data.md describes how to make both directories. Both sides train the same shape on the same samples and masks,
with the same schedule and number of steps, on one thread. The best learning rate of each, found with the first seed, is
used with all seeds. The time excludes validation. Each run is kept in build/bench/learning/ and not repeated.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import OUT, argument_parser, comparison
from bench.processes import ask
from model.common.files import read_json, write_json
from model.common.metrics_log import read_metrics
from model.common.run_dir import RunDir
from model.config.encoder import PRESETS, EncoderConfig
from model.config.pretraining import PretrainRun
from tasks.jobs.local_launcher import module_command, start

SYSTEMS = ("peer", "ours")
SEEDS = (1, 2, 3)
RATES = (5e-4, 1e-3, 2e-3)
SHAPE = {**PRESETS["tiny"], "initializer_range": 0.06}  # narrow layers need a larger deviation; the same for both sides
PEER_MODE = "eager"  # the fastest of bench.peer.MODES at this size


def recipe(rate: float, num_steps: int) -> dict[str, Any]:
    """Return the training recipe of both sides."""
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
    """Train the peer; return its curve of step, seconds and mlm_loss."""
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
    """Train with Cloze; return the curve from its metrics log."""
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
        command = module_command("model.pretrain", str(Path(folder) / "RUN.json"))
        if start(command, RunDir(run_dir).log, with_secrets=False).wait() != 0:
            raise RuntimeError((run_dir / "log.txt").read_text())
        seconds, losses = {}, {}
        for entry, _ in read_metrics(run_dir / "journal.jsonl"):
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
    """Run the missing trainings, then compare both sides."""
    parser = argument_parser("bench.learning", __doc__)
    parser.add_argument("tokens_dir", type=Path)
    parser.add_argument("tokenizer_dir", type=Path)
    parser.add_argument("--steps", type=int, default=3000, help="number of steps (default: %(default)s)")
    parser.add_argument("--only", choices=SYSTEMS, help="train only one side; compare nothing")
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
    """Write the result and the plot, and print the times of every seed.

    Every step counts as the median step of its run, so that a temporary load on the machine does not distort the curve.
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
            print(f"seed {seed}: ours does not reach the final loss of the peer, {end['mlm_loss']:.3f}")
            return
        found.append({"peer": end, "ours": there, "ratio": end["seconds"] / there["seconds"]})
        print(
            f"seed {seed}: the peer ends with {end['mlm_loss']:.3f} after {end['seconds']:.0f} s; ours reaches that "
            f"after {there['seconds']:.0f} s (step {there['step']:.0f}) and ends with "
            f"{best['ours'][seed][-1]['mlm_loss']:.3f} after {best['ours'][seed][-1]['seconds']:.0f} s"
        )
    result = comparison(
        "learning-tiny",
        statistics.median(one["ours"]["seconds"] for one in found),
        statistics.median(one["peer"]["seconds"] for one in found),
        statistics.median(one["ratio"] for one in found),
        "seconds to the peer's final held-out masked-LM loss",
        {"seeds": SEEDS, "steps": num_steps, "found": found},
    )
    write_json(OUT / "learning-tiny.json", result)
    print(f"ratio {result['ratio']:.1f}")
    draw_curves(best, OUT / "learning-tiny.png")


def draw_curves(curves: Mapping[str, Mapping[int, list[dict[str, float]]]], path: Path) -> None:
    """Plot the held-out loss over training time, one line per system and seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for (system, seeds), color in zip(curves.items(), ("tab:grey", "tab:blue")):
        for number, points in enumerate(seeds.values()):
            seconds, losses = ([point[name] for point in points] for name in ("seconds", "mlm_loss"))
            axes.plot(seconds, losses, color=color, alpha=0.8, label=system if number == 0 else None)
    axes.set_xlabel("seconds of training (one thread)")
    axes.set_ylabel("held-out masked-LM loss")
    axes.legend()
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
