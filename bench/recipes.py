"""Compare two pre-training recipes with several pre-training seeds, and count how often equal recipes seem different.

    python -m bench.recipes TOKENS_DIR TOKENIZER_DIR DATA_DIR

docs/real-data.md describes how to make the first two directories; DATA_DIR contains glue/. Recipe A (15 % masked) is
pre-trained with 12 seeds and recipe B (40 % masked) with the first 3, tiny, on one thread; each encoder is fine-tuned
with two seeds. The first table compares A and B over three shared seeds: the interval that ignores pre-training next to
the Multi-Bootstrap. The second takes all pairs of three and three other seeds of A, which are equal recipes: the shares
that are called different by the rows alone and by the whole comparison. Encoders and fine-tunings are kept in
build/bench/recipes/ and not trained again; build/bench/recipes.json has the summary.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench import OUT, argument_parser
from bench.learning import SHAPE
from bench.paired import Jobs
from model.benchmarks.table import BENCHMARKS
from model.common.files import digest_of, write_json
from model.common.run_dir import RunDir
from model.config.pretraining import PretrainRun
from tasks.jobs.local_launcher import module_command, start
from tasks.stats.compare import LEVEL, Comparison, Run, compare_runs

SHARED_SEEDS = (1, 2, 3)
FINETUNING_SEEDS = (1, 2)
RECIPES: dict[str, dict[str, Any]] = {"A": {"rate": 0.15}, "B": {"rate": 0.4}}  # of masking; 0.4: Wettig et al. 2023
BENCHMARK = "sst2"
FINETUNING = {"num_epochs": 2, "batch_size": 32, "learning_rate": 5e-4, "max_train_rows": 4000}
NUM_RESAMPLES = 2000


def pretrain(tokens_dir: Path, tokenizer_dir: Path, name: str, seed: int, num_steps: int) -> Path:
    """Pre-train a recipe with a seed, unless that was done before; return the encoder's directory."""
    recipe = {
        "phases": [{"sequence_length": 64, "batch_size": 32, "num_steps": num_steps, "learning_rate": 1e-3}],
        "start": "neighbors",
        "warmup_steps": num_steps // 10,
        "masking": RECIPES[name],
        "validate_every_steps": num_steps,
    }
    digest = digest_of(recipe | {"seed": seed})
    run_dir = RunDir((OUT / "recipes" / f"{name}-seed{seed}-{digest}").resolve())
    content = {
        "name": name,
        "digest": digest,
        "tokens_dir": str(tokens_dir),
        "tokenizer_dir": str(tokenizer_dir),
        "run_dir": str(run_dir.path),
        "shape": SHAPE,
        "recipe": recipe,
        "seed": seed,
        "machine": {"num_threads": 1, "compile": "off"},
    }
    if run_dir.read_result(digest) is None:
        write_json(run_dir.pretrain_config, PretrainRun.parse(content, "bench").model_dump(mode="json"))
        command = module_command("model.pretrain", str(run_dir.pretrain_config))
        if start(command, run_dir.log, with_secrets=False).wait() != 0:
            raise RuntimeError(run_dir.log.read_text())
    return run_dir.encoder


def fine_tune(encoder_dir: Path, data_dir: Path, pretrain_seed: int) -> list[Run]:
    """Fine-tune an encoder with each seed."""
    jobs = Jobs(f"recipes/{encoder_dir.parent.name}", encoder_dir, data_dir)
    found = []
    for seed in FINETUNING_SEEDS:
        result, run_dir = jobs.run(BENCHMARK, f"pretrained {pretrain_seed}", FINETUNING, seed)
        records = [json.loads(line) for line in RunDir(run_dir).predictions.read_text().splitlines()]
        found.append(Run(seed, result["headline"]["value"], records, pretrain_seed))
    return found


def compared(first: Iterable[Sequence[Run]], second: Iterable[Sequence[Run]]) -> Comparison:
    """Compare two groups of pre-trainings."""
    row = BENCHMARKS[BENCHMARK]
    groups = [[run for runs in group for run in runs] for group in (first, second)]
    return compare_runs(BENCHMARK, row, row.headline, groups[0], groups[1], NUM_RESAMPLES)


def main() -> int:
    """Train what is missing, then compare."""
    parser = argument_parser("bench.recipes", __doc__)
    parser.add_argument("tokens_dir", type=Path)
    parser.add_argument("tokenizer_dir", type=Path)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--steps", type=int, default=1500, help="steps of pre-training (default: %(default)s)")
    parser.add_argument("--equal", type=int, default=12, help="seeds of recipe A (default: %(default)s)")
    arguments = parser.parse_args()
    runs: dict[str, dict[int, list[Run]]] = {"A": {}, "B": {}}
    for name, seeds in (("A", range(1, arguments.equal + 1)), ("B", SHARED_SEEDS)):
        for seed in seeds:
            encoder = pretrain(
                arguments.tokens_dir.resolve(), arguments.tokenizer_dir.resolve(), name, seed, arguments.steps
            )
            runs[name][seed] = fine_tune(encoder, arguments.data_dir, seed)
    found = compared(*([runs[name][seed] for seed in SHARED_SEEDS] for name in ("A", "B")))
    assert found.rows is not None and found.pretraining is not None and found.p is not None
    print(f"A − B over {len(SHARED_SEEDS)} shared seeds: {found.difference:+.2f} points, p = {found.p:.3f}")
    print(f"  rows alone, which ignores pre-training: {found.rows.low:+.2f} to {found.rows.high:+.2f}")
    print(f"  Multi-Bootstrap, rows and pre-trainings: {found.pretraining.low:+.2f} to {found.pretraining.high:+.2f}")
    different = {"rows alone": 0, "Multi-Bootstrap": 0, "comparison": 0}
    pairs = [
        (first, second)
        for first in itertools.combinations(runs["A"], 3)
        for second in itertools.combinations([seed for seed in runs["A"] if seed not in first], 3)
        if first[0] < second[0]
    ]
    chosen = pairs[:: max(1, len(pairs) // 500)]  # evenly from all pairs
    for sides in chosen:
        one = compared(*([runs["A"][seed] for seed in side] for side in sides))
        assert one.rows is not None and one.pretraining is not None and one.p is not None
        different["rows alone"] += not one.rows.low <= 0 <= one.rows.high
        different["Multi-Bootstrap"] += not one.pretraining.low <= 0 <= one.pretraining.high
        different["comparison"] += one.p < LEVEL
    print(f"{len(chosen)} pairs of equal recipes, called different by:")
    for name, count in different.items():
        print(f"  {name}: {count / len(chosen):.1%}")
    scores = {name: {seed: [run.score for run in some] for seed, some in group.items()} for name, group in runs.items()}
    summary = {"difference": found.difference, "rows": [found.rows.low, found.rows.high]}
    summary |= {"pretraining": [found.pretraining.low, found.pretraining.high], "p": found.p, "scores": scores}
    write_json(OUT / "recipes.json", summary | {"num_pairs": len(chosen), "different": different})
    return 0


if __name__ == "__main__":
    sys.exit(main())
