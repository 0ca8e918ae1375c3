"""Compare fine-tuning by Cloze and by `transformers`: the losses of single steps, and the scores of paired seeds.

    python -m bench.parity ENCODER_DIR DATA_DIR

Needs a real encoder and the files described in docs/real-data.md. First, both train for 50 steps in fp32 on the same
batches, without dropout and with the same dropout masks. Then both train completely, in the precision that is fast on
this CPU; a pair shares data, batches, initial weights of the head, and dropout masks (with `--masks own`, each draws
its masks). Each run is kept in build/bench/parity/ and not repeated, so the command can be interrupted at any time.
With `--only`, several processes can share the benchmarks.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from scipy.special import stdtrit

from bench import OUT, argument_parser
from bench.finetune_peer import Peer, train
from model.benchmarks.splits import read_dev, read_train
from model.benchmarks.table import find, paper_recipe
from model.common.errors import Paused
from model.common.files import digest_of, read_json, write_json
from model.config.finetuning import FinetuneRecipe
from model.config.hardware import HardwareOptions, resolve
from model.engine.distributed import Fabric, make_fabric
from model.engine.trainer import Callback, StepResult, Trainer
from model.finetune.data import DevResult
from model.finetune.prediction import predict
from model.finetune.training import EpochEvaluation, make_trainer
from model.formats.hf_folder import load_encoder
from model.heads.batches import chosen
from model.heads.features import Features
from model.heads.head import EvalDataset
from model.heads.task_model import HEADS, TaskModel
from model.tokenizer.wordpiece import load_tokenizer, special_ids

TRAJECTORIES = ("mrpc", "cola", "stsb", "squad1")
PEERS = {"ours": "keyed", "own": "peer"}
"""Name of a run of `transformers` by the masks that it uses."""
# Small batches or several epochs: this encoder predicts the majority for the first few hundred steps. Only part of the
# rows is used, so that ten seeds take less than two hours on two cores.
_SHORT = {"batch_size": 8, "num_epochs": 1, "learning_rate": 1e-4, "max_train_rows": 2000}
PAIRED: dict[str, dict[str, Any]] = {
    "mrpc": _SHORT,
    "rte": _SHORT,
    "cola": {"batch_size": 32, "num_epochs": 3, "learning_rate": 5e-5, "max_train_rows": 4000},
    "stsb": _SHORT,
}
STEPS = 50
CONFIDENCE = 0.95


class Fixture:
    """The rows of a benchmark, and new models for a seed."""

    def __init__(self, encoder_dir: Path, data_dir: Path, name: str, recipe: FinetuneRecipe) -> None:
        self.row, self.recipe, self._encoder_dir = find(name), recipe, encoder_dir
        tokenizer = load_tokenizer(encoder_dir)
        self.pad_id = special_ids(tokenizer).pad
        examples = chosen(read_train(self.row, data_dir).examples, recipe.max_train_rows)
        self.features: Features = HEADS[self.row.head].prepare(self.row, examples, tokenizer, recipe).features
        self._tokenizer, self._data_dir = tokenizer, data_dir

    def dev(self) -> EvalDataset:
        """Return the dev set."""
        part = next(iter(read_dev(self.row, self._data_dir).values()))
        return HEADS[self.row.head].prepare(self.row, part.examples, self._tokenizer, self.recipe)

    def model(self, seed: int) -> TaskModel:
        """Return our model."""
        return TaskModel(load_encoder(self._encoder_dir), self.row, self.recipe.dropout, seed)

    def peer(self, seed: int, our_masks: bool = True) -> Peer:
        """Return the model of `transformers`, with the same initial weights."""
        return Peer(self._encoder_dir, self.model(seed), self.recipe.dropout, our_masks=our_masks)


class _Losses(Callback):
    """Keeps the loss of each step, and asks for an end after `num_steps`."""

    def __init__(self, num_steps: int) -> None:
        self.values: list[float] = []
        self._num_steps = num_steps

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self.values.append(result.sums.item())

    def should_stop(self) -> bool:
        return len(self.values) == self._num_steps


def fabric_of(bf16: bool = False) -> Fabric:
    """One CPU process."""
    machine = HardwareOptions(accelerator="cpu", precision="bf16" if bf16 else "fp32")
    return make_fabric(machine, resolve(machine))


def trajectory(fixture: Fixture) -> dict[str, Any]:
    """Return the losses of both over the first steps in fp32, and the largest difference."""
    model = fixture.model(1)
    peer = fixture.peer(1)
    losses = _Losses(STEPS)
    given = fixture.features, fixture.recipe, 1, fixture.pad_id
    with contextlib.suppress(Paused):
        make_trainer(fabric_of(), model, *given, callbacks=[losses], should_stop=losses.should_stop).train()
    theirs = train(peer, model, fixture.features, fixture.recipe, 1, fixture.pad_id, bf16=False, max_steps=STEPS)
    apart = [abs(a - b) for a, b in zip(losses.values, theirs, strict=True)]
    return {"ours": losses.values, "peer": theirs, "largest_difference": max(apart)}


def score(fixture: Fixture, system: str, seed: int, bf16: bool) -> dict[str, Any]:
    """Train one system completely, with dropout, and evaluate it on dev."""
    started = time.process_time()
    dev = fixture.dev()
    if system == "ours":
        model = fixture.model(seed)
        judge = lambda _: (  # noqa: E731
            DevResult(dev.evaluate(predict(model, dev.features, fixture.pad_id, bf16)), None),
            None,
        )
        row, recipe = fixture.row, fixture.recipe
        evaluation = EpochEvaluation(recipe, fixture.features, judge, row.headline, lambda step, result: None)
        given = fixture.features, recipe, seed, fixture.pad_id
        make_trainer(fabric_of(bf16), model, *given, bf16=bf16, callbacks=[evaluation]).train()
        assert evaluation.best is not None
        outcome = evaluation.best[0].reported
    else:
        peer = fixture.peer(seed, our_masks=system == PEERS["ours"])
        torch.manual_seed(seed)
        train(peer, fixture.model(seed), fixture.features, fixture.recipe, seed, fixture.pad_id, bf16)
        outcome = dev.evaluate(predict(peer, dev.features, fixture.pad_id, bf16))  # type: ignore[arg-type]
    spent = time.process_time() - started
    return {"scores": outcome.scores, "degenerate": outcome.degenerate, "cpu_seconds": spent}


def interval(differences: list[float], num_compared: int) -> dict[str, float]:
    """Return the mean difference and the half-width of its t interval with Bonferroni correction."""
    count = len(differences)
    mean = statistics.fmean(differences)
    if count < 2:
        return {"mean": mean, "half_width": float("nan"), "t": float("nan")}
    error = statistics.stdev(differences) / count**0.5
    quantile = float(stdtrit(count - 1, 1 - (1 - CONFIDENCE) / (2 * num_compared)))
    return {"mean": mean, "half_width": quantile * error, "t": mean / error if error else 0.0}


def main(arguments: list[str]) -> int:
    """Run the missing trainings, and print the tables."""
    parser = argument_parser("bench.parity", __doc__)
    parser.add_argument("encoder_dir", type=Path)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--seeds", type=int, default=10, help="number of paired seeds (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="number of threads (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=PAIRED, default=list(PAIRED), help="benchmarks to train on")
    parser.add_argument(
        "--masks", choices=PEERS, default="ours", help="dropout masks of `transformers` (default: %(default)s)"
    )
    parser.add_argument(
        "--precision", choices=("auto", "fp32", "bf16"), default="auto", help="precision of the paired trainings"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()  # its warning about the new head
    transformers.logging.disable_progress_bar()
    kept = OUT / "parity"
    for name, dropout in itertools.product(TRAJECTORIES, (0.0, 0.1)):
        fixed = {"dropout": dropout, "num_epochs": 1, "max_length": 128, "batch_size": 8, "max_train_rows": 2000}
        path = kept / f"trajectory-{name}-{digest_of(fixed)}-{dropout:g}.json"
        if not path.exists():
            recipe = paper_recipe(find(name)).model_copy(update=fixed)
            write_json(path, trajectory(Fixture(options.encoder_dir, options.data_dir, name, recipe)))
        most = read_json(path)["largest_difference"]
        print(f"{name:<8}{STEPS} steps, fp32, dropout {dropout:g}: losses differ by at most {most:.2g}", flush=True)
    systems = ("ours", PEERS[options.masks])
    precision = resolve(HardwareOptions(accelerator="cpu", precision=options.precision)).precision
    fixtures: dict[str, Fixture] = {}
    for seed in range(1, options.seeds + 1):
        runs = list(itertools.product(options.only, systems))
        paths = [_run_path(kept, name, precision, system, seed) for name, system in runs]
        missing = [(*run, path) for run, path in zip(runs, paths) if not path.exists()]
        for name, system, path in missing:
            if name not in fixtures:
                recipe = paper_recipe(find(name)).model_copy(update=PAIRED[name])
                fixtures[name] = Fixture(options.encoder_dir, options.data_dir, name, recipe)
            value = score(fixtures[name], system, seed, bf16=precision == "bf16")
            write_json(path, value)
            print(f"{name} seed {seed} {system}: {value['scores']} {value['cpu_seconds']:.0f} s", flush=True)
        if missing or seed == options.seeds:
            show(kept, precision, systems)
    return 0


def _run_path(kept: Path, name: str, precision: str, system: str, seed: int) -> Path:
    return kept / f"{name}-{digest_of(PAIRED[name])}-{precision}-{system}-{seed}.json"


def show(kept: Path, precision: str, systems: Sequence[str]) -> None:
    """Print and write the table of all finished pairs."""
    table = {}
    print(f"{'':<6}{'pairs':>6}{'ours':>9}{'peer':>9}{'difference':>12}{'+/-':>7}{'CPU time':>10}")
    for name, settings in PAIRED.items():
        pairs = []
        for seed in itertools.count(1):
            paths = [_run_path(kept, name, precision, system, seed) for system in systems]
            if not all(path.exists() for path in paths):
                break
            pairs.append([read_json(path) for path in paths])
        if not pairs:
            continue
        metric = find(name).headline
        values = np.array([[run["scores"][metric] for run in pair] for pair in pairs])
        seconds = np.array([[run["cpu_seconds"] for run in pair] for pair in pairs])
        found = interval(list(values[:, 0] - values[:, 1]), len(PAIRED))
        table[name] = {
            **found,
            "settings": settings,
            "metric": metric,
            "values": values.tolist(),
            "cpu_seconds": seconds.tolist(),
        }
        ratio = float(np.median(seconds[:, 1]) / np.median(seconds[:, 0]))
        print(
            f"{name:<6}{len(pairs):>6}{values[:, 0].mean():>9.2f}{values[:, 1].mean():>9.2f}{found['mean']:>+12.2f}"
            f"{found['half_width']:>7.2f}{ratio:>10.2f}",
            flush=True,
        )
    write_json(OUT / f"parity-{systems[1]}-{precision}.json", table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
