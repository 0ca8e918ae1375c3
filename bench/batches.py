"""Compare fine-tuning batches of rows of similar length with shuffled ones, on MRPC and QQP.

    python -m bench.batches ENCODER_DIR DATA_DIR

ENCODER_DIR has the `transformers` layout, and DATA_DIR contains glue/. The first table has the variance of the labels'
shares among batches, divided by that of independent draws. Then jobs with paired seeds run, each in a separate process
on one thread; the second table has their scores and the difference with its 95 % interval. Results are kept in
build/bench/batches/ and not computed again; build/bench/batches.json has the summary.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np

from bench import OUT, argument_parser
from bench.paired import Jobs, difference, shown
from model.benchmarks.splits import read_train
from model.benchmarks.table import BENCHMARKS
from model.common.files import write_json
from model.config.finetuning import Batches, FinetuneRecipe
from model.heads.batches import chosen, training_batches
from model.heads.task_model import HEADS
from model.tokenizer.wordpiece import load_tokenizer

RECIPES: dict[str, dict[str, Any]] = {
    "mrpc": {"num_epochs": 3, "batch_size": 32, "learning_rate": 1e-4},
    "qqp": {"num_epochs": 2, "batch_size": 32, "learning_rate": 1e-4, "max_train_rows": 4000, "max_dev_rows": 2000},
}
WAYS: tuple[Batches, ...] = get_args(Batches)  # length, shuffled
_EPOCHS = 50  # over which the variance is measured


def variance_ratios(benchmark: str, encoder_dir: Path, data_dir: Path) -> dict[str, float]:
    """Return the variance of the labels' shares in full batches, divided by that of independent draws (binomial)."""
    row, recipe = BENCHMARKS[benchmark], FinetuneRecipe.parse(RECIPES[benchmark], "bench")
    examples = chosen(read_train(row, data_dir).examples, recipe.max_train_rows)
    features = HEADS[row.head].prepare(row, examples, load_tokenizer(encoder_dir), recipe).features
    labels = np.eye(len(row.labels))[features.targets.astype(np.int64)]
    expected = (labels.mean(0) * (1 - labels.mean(0))).sum() / recipe.batch_size
    ratios: dict[str, float] = {}
    for way in WAYS:
        shares = [
            labels[rows].mean(0)
            for epoch in range(_EPOCHS)
            for rows in training_batches(features.row_lengths, recipe.batch_size, 0, epoch, way)
            if len(rows) == recipe.batch_size
        ]
        ratios[way] = float(((np.array(shares) - labels.mean(0)) ** 2).mean(0).sum() / expected)
    return ratios


def summarize(benchmark: str, found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return scores, differences (shuffled minus length) and CPU seconds of the pairs so far."""
    summary: dict[str, Any] = {"recipe": RECIPES[benchmark], "pairs": len(found["length"])}
    for metric in BENCHMARKS[benchmark].metrics:
        values = {way: [result["scores"][metric] for result in results] for way, results in found.items()}
        summary[metric] = {**values, **difference(values["length"], values["shuffled"])}
    summary["degenerate"] = {way: sum(result["degenerate"] for result in results) for way, results in found.items()}
    summary["cpu_seconds"] = {
        way: statistics.median(result["cpu_seconds"] for result in results) for way, results in found.items()
    }
    return summary


def table(summaries: dict[str, dict[str, Any]]) -> str:
    """Format the summaries as a table for bench/RESULTS.md."""
    lines = [
        "| | length | shuffled | shuffled - length, 95 % interval | degenerate | CPU seconds | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, summary in summaries.items():
        seconds = summary["cpu_seconds"]
        for metric in BENCHMARKS[name].metrics:
            one = summary[metric]
            means = " | ".join(f"{statistics.mean(one[way]):.1f}" for way in WAYS)
            times = f"{seconds['length']:.0f}, {seconds['shuffled']:.0f}"
            counts = ", ".join(str(summary["degenerate"][way]) for way in WAYS)
            ratio = seconds["shuffled"] / seconds["length"]
            label = f"{name}, {metric}, {summary['pairs']} seeds"
            lines.append(f"| {label} | {means} | {shown(one)} | {counts} | {times} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> int:
    """Print the variance ratios, run the missing jobs and write the summary."""
    parser = argument_parser("bench.batches", __doc__)
    parser.add_argument("encoder_dir", type=Path)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--only", choices=RECIPES, help="run only this benchmark")
    parser.add_argument("--seeds", type=int, default=10, help="pairs (default: %(default)s; 0: no training)")
    arguments = parser.parse_args()
    names = [arguments.only] if arguments.only else list(RECIPES)
    print("| variance of label shares / binomial | length | shuffled |\n|---|---|---|")
    ratios = {name: variance_ratios(name, arguments.encoder_dir, arguments.data_dir) for name in names}
    for name, ratio in ratios.items():
        print(f"| {name} | {ratio['length']:.2f} | {ratio['shuffled']:.2f} |", flush=True)
    jobs = Jobs("batches", arguments.encoder_dir, arguments.data_dir)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {name: {way: [] for way in WAYS} for name in names}
    for seed in range(1, arguments.seeds + 1):  # seeds in the outer loop: an interrupted run still has pairs
        for name in names:
            for way in WAYS:
                found[name][way].append(jobs.run(name, way, {**RECIPES[name], "batches": way}, seed)[0])
        if seed > 1:
            summaries = {name: {"variance": ratios[name], **summarize(name, found[name])} for name in names}
            write_json(OUT / "batches.json", summaries)
            print(table(summaries), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
