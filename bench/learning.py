"""Measure how the speed of a step and the starting weights shorten pre-training on real text, in both systems.

    python -m bench.learning TOKENS_DIR TOKENIZER_DIR

docs/real-data.md describes how to make both directories. Cloze and the tuned peer train the same shape on the same
samples and masks, from the same initial weights of a seed, with the same schedule and number of steps, on one thread
each: once from BERT's random weights and once from those of `start: neighbors`. The learning rate of a start is the
best of RATES in Cloze with the first seed; both systems use it, since they compute the same function. The time excludes
validation. Each run is kept in build/bench/learning/ and not repeated.

Two factors explain how much sooner Cloze reaches a loss with its start than the peer does with the random one: the time
of a step (peer / Cloze), and the number of steps (random / neighbors), which is compared within each system.
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
from model.encoder.init import Start
from tasks.jobs.local_launcher import module_command, start

SYSTEMS = ("peer", "ours")
STARTS: tuple[Start, ...] = ("random", "neighbors")
SEEDS = (1, 2, 3)
RATES: dict[Start, tuple[float, ...]] = {"random": (1e-3, 2e-3), "neighbors": (5e-4, 1e-3)}
Curve = list[dict[str, float]]
"""Points of step, seconds and mlm_loss."""
SHAPE = {**PRESETS["tiny"], "initializer_range": 0.06}  # narrow layers need a larger deviation; the same for both sides
PEER_MODE = "eager"  # the fastest of bench.peer.MODES at this size


def recipe(rate: float, num_steps: int, start: Start) -> dict[str, Any]:
    """Return the training recipe of both sides."""
    phase = {"sequence_length": 64, "batch_size": 32, "num_steps": num_steps, "learning_rate": rate}
    return {
        "phases": [phase],
        "start": start,
        "warmup_steps": num_steps // 10,
        "validate_every_steps": 50,
        "validation_batches": 8,
        "log_every_steps": 50,
        "checkpoint_every_steps": 10**6,
    }


def peer(tokens_dir: Path, tokenizer_dir: Path, values: dict[str, Any], seed: int) -> Curve:
    """Train the peer by the recipe `values`."""
    vocab_size = read_json(tokens_dir / "index.json")["vocab_size"]
    config = EncoderConfig.parse({"vocab_size": vocab_size, **SHAPE}, "shape")
    task = {
        "tokens_dir": str(tokens_dir),
        "tokenizer_dir": str(tokenizer_dir),
        "shape": config.model_dump(),
        "recipe": values,
        "seed": seed,
        "mode": PEER_MODE,
        "threads": 1,
    }
    curve: Curve = ask("bench.peer", "learn", task=task)["curve"]
    return curve


def ours(tokens_dir: Path, tokenizer_dir: Path, values: dict[str, Any], seed: int) -> Curve:
    """Train with Cloze by the recipe `values`; read the curve from its metrics log."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        content = {
            "name": "bench",
            "digest": "bench",
            "tokens_dir": str(tokens_dir),
            "tokenizer_dir": str(tokenizer_dir),
            "run_dir": str(run_dir),
            "shape": SHAPE,
            "recipe": values,
            "seed": seed,
            "machine": {"num_threads": 1, "compile": "off"},
        }
        run = PretrainRun.parse(content, "bench")
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
    """Run the missing trainings, then compare systems and starts."""
    parser = argument_parser("bench.learning", __doc__)
    parser.add_argument("tokens_dir", type=Path)
    parser.add_argument("tokenizer_dir", type=Path)
    parser.add_argument("--steps", type=int, default=12_000, help="number of steps (default: %(default)s)")
    parser.add_argument("--only", choices=SYSTEMS, help="train only one side; compare nothing")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="default: 1 2 3")
    arguments = parser.parse_args()

    def curve(system: str, weights: Start, rate: float, seed: int) -> Curve:
        path = OUT / "learning" / f"{system}-{weights}-{rate:g}-seed{seed}-{arguments.steps}.json"
        if not path.exists():
            train = {"peer": peer, "ours": ours}[system]
            values = recipe(rate, arguments.steps, weights)
            write_json(path, train(arguments.tokens_dir, arguments.tokenizer_dir, values, seed))
        found: Curve = read_json(path)
        last = found[-1]
        name = f"{system} {weights} rate {rate:g} seed {seed}"
        print(f"{name}: {last['mlm_loss']:.3f} in {last['seconds']:.0f} s", flush=True)
        return found

    curves: dict[tuple[str, Start], dict[int, Curve]] = {}
    for weights in STARTS:
        losses = {rate: curve("ours", weights, rate, SEEDS[0])[-1]["mlm_loss"] for rate in RATES[weights]}
        rate = min(losses, key=lambda rate: losses[rate])
        for system in [arguments.only] if arguments.only else SYSTEMS:
            curves[system, weights] = {seed: curve(system, weights, rate, seed) for seed in arguments.seeds}
    if not arguments.only:
        compare(curves, arguments.seeds)
    return 0


def compare(curves: dict[tuple[str, Start], dict[int, Curve]], seeds: list[int]) -> None:
    """Write the result and the plot, and print both factors for every seed.

    Every step counts as the median step of its run, so that a temporary load on the machine does not distort the curve.
    """
    step_seconds: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    for (system, _), runs in curves.items():
        for points in runs.values():
            marks = [{"step": 0, "seconds": 0.0}, *points]
            paces = [(b["seconds"] - a["seconds"]) / (b["step"] - a["step"]) for a, b in itertools.pairwise(marks)]
            step_seconds[system].append(statistics.median(paces))
            for point in points:
                point["seconds"] = point["step"] * step_seconds[system][-1]
    found: list[dict[str, Any]] = []
    for seed in seeds:
        ends = {key: runs[seed][-1] for key, runs in curves.items()}
        # The loss that all four runs reach.
        loss = max(end["mlm_loss"] for end in ends.values())
        reached = {key: next(p for p in runs[seed] if p["mlm_loss"] <= loss) for key, runs in curves.items()}
        steps = {system: reached[system, "random"]["step"] / reached[system, "neighbors"]["step"] for system in SYSTEMS}
        total = reached["peer", "random"]["seconds"] / reached["ours", "neighbors"]["seconds"]
        found.append({"seed": seed, "loss": loss, "steps_ratio": steps, "ratio": total})
        for key, point in reached.items():
            end = ends[key]
            print(
                f"seed {seed}, {' '.join(key)}: loss {loss:.3f} after {point['step']:.0f} steps "
                f"({point['seconds']:.0f} s), {end['mlm_loss']:.3f} after {end['step']:.0f} ({end['seconds']:.0f} s)"
            )
    speed = statistics.median(step_seconds["peer"]) / statistics.median(step_seconds["ours"])
    result = comparison(
        "learning-tiny",
        statistics.median(step_seconds["ours"]),
        statistics.median(step_seconds["peer"]),
        speed,
        "seconds a step",
        {"seeds": seeds, "found": found},
    )
    write_json(OUT / "learning-tiny.json", result)
    by_start = [f"{value:.1f}" for one in found for value in one["steps_ratio"].values()]
    print(f"a step: {speed:.2f} times as fast; steps from random weights / from neighbors: {', '.join(by_start)}")
    print(f"together: {', '.join(format(one['ratio'], '.1f') for one in found)}")
    draw_curves({", ".join(key): runs for key, runs in curves.items()}, OUT / "learning-tiny.png")


def draw_curves(curves: Mapping[str, Mapping[int, list[dict[str, float]]]], path: Path) -> None:
    """Plot the held-out loss over training time, one line per system and seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for (system, seeds), color in zip(curves.items(), ("tab:grey", "tab:cyan", "black", "tab:blue")):
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
