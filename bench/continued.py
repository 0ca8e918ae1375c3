"""Compare continued pre-training with the script run_mlm.py of `transformers`, for the same time on the same text.

    python -m bench.continued ENCODER_DIR TEXT_DIR --seconds 600 --seeds 1 2 3

ENCODER_DIR has the `transformers` layout, and TEXT_DIR contains books/ (novels, the text of the training) and
wikipedia/*.parquet (articles, the general text, which is only measured). All systems start from the same weights, with
the same initial masked-LM head for each seed, and train with the same number of threads, allocator and OpenMP settings:

- ours: sequences of 128 tokens, packed, 32 per step; the defaults otherwise
- installed: run_mlm.py with its defaults, learning rate included (bench.mlm_peer)
- tuned: run_mlm.py with the sequence length, batch size and precision of ours

Ours and tuned have the best of three learning rates, found in short runs of ours with a seed that is not compared:
both compute the same function, and a short run of the peer has too few steps to tell rates apart. One evaluator
computes the held-out losses of all, on the same samples and masks, at two lengths. Every run is kept in
build/bench/continued/ and not repeated; build/bench/continued.json has the summary. Needs the extra `bench`.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from bench import OUT, argument_parser
from bench.processes import THREADS, TUNED, ask
from model.common.files import atomic_directory, read_json, write_json
from model.common.run_dir import RunDir
from model.config.hardware import WAITING
from model.config.pretraining import PretrainRecipe, PretrainRun
from model.data.token_store import HELDOUT, TokenStore, heldout_parts
from model.encoder.init import initialize
from model.formats.hf_folder import load_config, load_encoder, load_parts, save_encoder
from model.objectives import OBJECTIVES
from model.objectives.masked_lm import MaskedLanguageHead
from model.pretrain.evaluation import Validation
from model.tokenizer.wordpiece import Vocabulary, load_tokenizer, save_tokenizer
from tasks.corpus.build_corpus import build_corpus
from tasks.jobs.local_launcher import module_command, start
from tasks.params.corpus import CorpusSettings
from tasks.params.root import TokensSettings
from tasks.tokens.tokens import build_tokens

SYSTEMS = ("ours", "tuned", "installed")
RATES = (5e-5, 1e-4, 3e-4)
DEFAULT_RATE = 5e-5  # of run_mlm.py
SHORT_SEED = 0
LENGTHS = (128, 512)
EVALUATED_TOKENS = 1 << 16  # of each text at each length
CORPUS = {
    "sources": [
        {"name": "novels", "kind": "books", "path": "books"},
        {"name": "general", "kind": "parquet", "path": "wikipedia/*.parquet", "max_documents": 1000},
    ],
    "contamination": "off",
}
ENVIRONMENT = {**TUNED, **WAITING}  # of the peer, as ours has it
Losses = dict[str, float]


def make_text(encoder_dir: Path, text_dir: Path, folder: Path) -> None:
    """Write the text as tokens of the encoder's vocabulary to folder/tokens, with its tokenizer."""
    corpus = CorpusSettings.parse(CORPUS, "bench")
    save_tokenizer(load_tokenizer(encoder_dir), folder / "tokenizer")
    build_corpus(corpus, text_dir, folder / "corpus", num_workers=THREADS)
    settings = TokensSettings(heldout_fraction=0.02, heldout_sources=("general",))
    build_tokens(settings, folder / "corpus", folder / "tokenizer", folder / "tokens")


def make_start(encoder_dir: Path, tokenizer_dir: Path, seed: int, folder: Path) -> None:
    """Write the encoder with a masked-LM head of initial weights as a BertForMaskedLM."""
    config = load_config(encoder_dir)
    head = MaskedLanguageHead(config)
    initialize(head, seed, config.initializer_range)
    save_encoder(load_encoder(encoder_dir), folder, tokenizer_dir, masked=head, has_pooler=False)


def evaluate(encoder_dir: Path, text: Path) -> Losses:
    """Return the held-out masked-LM loss of an encoder on every text, at every length."""
    vocabulary, config = Vocabulary.of(load_tokenizer(text / "tokenizer")), load_config(encoder_dir)
    module = OBJECTIVES["none"].build(config)
    assert not load_parts(encoder_dir, module.encoder, **OBJECTIVES["none"].published(module))
    found = {}
    for part in heldout_parts(text / "tokens"):
        store = TokenStore.open(text / "tokens", part)
        for length in LENGTHS:
            phase = {"sequence_length": length, "batch_size": 8, "num_steps": 1, "learning_rate": 1.0}
            batches = EVALUATED_TOKENS // (8 * length)
            values = {"phases": [phase], "warmup_steps": 0, "validation_batches": batches, "sentence_objective": "none"}
            validation = Validation(PretrainRecipe.parse(values, "bench"), store, vocabulary)
            sums, counts = validation.run(module, module, 0)
            name = "novels" if part == HELDOUT else part.removeprefix(f"{HELDOUT}-")
            found[f"{name}_{length}"] = float(sums[0]) / counts.num_predictions
    return found


def ours(task: dict[str, Any]) -> dict[str, float]:
    """Continue with Cloze; the task is that of bench.mlm_peer."""
    with tempfile.TemporaryDirectory() as folder:
        start_dir, run_dir = Path(task["start_dir"]), Path(folder) / "run"
        config = load_config(start_dir).model_dump()
        phase = {"sequence_length": 128, "batch_size": 32, "num_steps": 10**6, "learning_rate": task["rate"]}
        recipe = {
            "phases": [phase],
            "warmup_steps": 20,
            "sentence_objective": "none",
            "finish_within_seconds": task["seconds"],
            "validation_batches": 0,
            "checkpoint_every_steps": 10**6,
        }
        values = {
            "name": "bench",
            "digest": "bench",
            "tokens_dir": task["tokens_dir"],
            "tokenizer_dir": start_dir,
            "run_dir": run_dir,
            "shape": {},
            "start": {"name": "bench", "directory": start_dir, "digest": "bench", "config": config},
            "recipe": recipe,
            "seed": task["seed"],
            "machine": {"accelerator": "cpu", "num_threads": task["threads"]},
        }
        run = PretrainRun.parse(values, "bench")
        write_json(Path(folder) / "RUN.json", run.model_dump(mode="json"))
        command = module_command("model.pretrain", str(Path(folder) / "RUN.json"))
        if start(command, RunDir(run_dir).log, with_secrets=False).wait() != 0:
            raise RuntimeError(RunDir(run_dir).log.read_text())
        RunDir(run_dir).encoder.rename(task["out_dir"])
        timing = read_json(RunDir(run_dir).timing)
        steps = read_json(RunDir(run_dir).result)["num_steps"]
        return {"steps": steps, "seconds": timing["seconds"]}


class Runs:
    """The runs of all systems; each is kept in `folder`."""

    def __init__(self, encoder_dir: Path, text: Path, folder: Path, num_threads: int) -> None:
        self._encoder_dir, self._text, self._folder, self._num_threads = encoder_dir, text, folder, num_threads

    def start(self, seed: int) -> tuple[Path, Losses]:
        """Return the starting point of a seed, and its losses."""
        path = self._folder / f"start-seed{seed}"
        if not path.exists():
            with atomic_directory(path) as partial:
                make_start(self._encoder_dir, self._text / "tokenizer", seed, partial)
        losses = path.with_suffix(".json")
        if not losses.exists():
            write_json(losses, evaluate(path, self._text))
        found: Losses = read_json(losses)
        return path, found

    def run(self, system: str, rate: float, seed: int, seconds: float) -> dict[str, Any]:
        """Return the losses of a run, with its steps and seconds."""
        path = self._folder / f"{system}-{rate:g}-seed{seed}-{seconds:g}s-{self._num_threads}threads.json"
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                task = {
                    "start_dir": str(self.start(seed)[0]),
                    "tokens_dir": str(self._text / "tokens"),
                    "out_dir": str(Path(folder) / "encoder"),
                    "setting": system,
                    "rate": rate,
                    "seconds": seconds,
                    "seed": seed,
                    "threads": self._num_threads,
                }
                done = ours(task) if system == "ours" else ask("bench.mlm_peer", task=task, allocator=ENVIRONMENT)
                write_json(path, {**done, **evaluate(Path(folder) / "encoder", self._text)})
        found: dict[str, Any] = read_json(path)
        losses = "  ".join(f"{name} {found[name]:.4f}" for name in measures(found))
        facts = f"{found['steps']:,} steps in {found['seconds']:.0f} s"
        print(f"{system:<10} rate {rate:g} seed {seed}: {losses}  ({facts})", flush=True)
        return found


def measures(found: dict[str, Any]) -> list[str]:
    """Return the names of the losses in a record."""
    return [name for name in found if name not in ("steps", "seconds")]


def differences(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """Return the mean of first - second, with 95 % intervals paired by seed and after Welch."""
    paired = stats.ttest_rel(first, second).confidence_interval()
    welch = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    mean = statistics.mean(first) - statistics.mean(second)
    return {"mean": mean, "paired": [paired.low, paired.high], "welch": [welch.low, welch.high]}


def main() -> int:
    """Run the missing trainings, then compare ours with both settings of the peer."""
    parser = argument_parser("bench.continued", __doc__)
    parser.add_argument("encoder_dir", type=Path)
    parser.add_argument("text_dir", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0, help="training time (default: %(default)s)")
    parser.add_argument("--short-seconds", type=float, help="time of the runs that choose the rate (default: a fifth)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="default: all")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    arguments = parser.parse_args()
    folder = (OUT / "continued").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "text").exists():
        with atomic_directory(folder / "text") as partial:
            make_text(arguments.encoder_dir, arguments.text_dir, partial)
    runs = Runs(arguments.encoder_dir.resolve(), folder / "text", folder, arguments.threads)
    short = arguments.short_seconds or arguments.seconds / 5
    losses = {rate: runs.run("ours", rate, SHORT_SEED, short)["novels_128"] for rate in RATES}
    best = min(losses, key=lambda rate: losses[rate])
    found: dict[str, Any] = {
        "start": [runs.start(seed)[1] for seed in arguments.seeds],
        "rates": {f"{rate:g}": loss for rate, loss in losses.items()},
        "runs": {},
    }
    for system in arguments.systems:
        rate = DEFAULT_RATE if system == "installed" else best
        found["runs"][system] = [runs.run(system, rate, seed, arguments.seconds) for seed in arguments.seeds]
    found["ours - peer"] = {
        peer: {
            name: differences(*([one[name] for one in found["runs"][system]] for system in ("ours", peer)))
            for name in measures(found["start"][0])
        }
        for peer in arguments.systems
        if peer != "ours" and "ours" in arguments.systems and len(arguments.seeds) > 1
    }
    write_json(OUT / "continued.json", {"seeds": arguments.seeds, "seconds": arguments.seconds, **found})
    report(found)
    return 0


def report(found: dict[str, Any]) -> None:
    """Print the mean losses of every system, and the differences with their intervals."""
    for name in measures(found["start"][0]):
        means = {"start": statistics.mean(one[name] for one in found["start"])}
        means |= {system: statistics.mean(one[name] for one in runs) for system, runs in found["runs"].items()}
        print(f"{name:<12} " + "  ".join(f"{system} {mean:.4f}" for system, mean in means.items()))
        for peer, by_name in found["ours - peer"].items():
            one = by_name[name]
            intervals = ", ".join(f"{kind} {one[kind][0]:+.4f} to {one[kind][1]:+.4f}" for kind in ("paired", "welch"))
            print(f"{'':<12} ours - {peer}: {one['mean']:+.4f} (95 %: {intervals})")


if __name__ == "__main__":
    sys.exit(main())
