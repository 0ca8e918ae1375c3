"""Pre-training jobs: one process per encoder of params.yaml."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from model.common.files import digest_of, digest_of_file, read_json, write_json
from model.common.run_dir import RunDir
from model.config.pretraining import KEEPING, PretrainRun
from tasks.jobs.supervision import copy_tree, run_process, supervise
from tasks.jobs.worker_pool import JobEnd
from tasks.params.root import CheckpointSyncSettings, PretrainParams
from tasks.pretrain.checkpoint_sync import mirrored
from tasks.tokens.tokens import check_fit


def plan_encoders(
    params: PretrainParams, tokens_dir: Path, tokenizer_dir: Path, data_dir: Path, runs_dir: Path, version: int
) -> list[PretrainRun]:
    """Plan one job per encoder.

    Raises:
        UserError: the tokens were made with another vocabulary.
    """
    check_fit(tokens_dir, tokenizer_dir)
    inputs = [digest_of_file(tokens_dir / "index.json"), digest_of_file(tokenizer_dir / "tokenizer.json")]
    planned = []
    for encoder in params.encoders:
        recipe = params.recipe_of(encoder)
        seed = params.seed if encoder.seed is None else encoder.seed
        content = {
            "inputs": inputs,
            "machine": params.machine.model_dump(include={"precision", "compile"}),
            "recipe": recipe.model_dump(mode="json", exclude=KEEPING),
            "seed": seed,
            "shape": encoder.shape.model_dump(),
            "version": version,
        }
        digest = digest_of(content)
        planned.append(
            PretrainRun(
                name=encoder.name,
                digest=digest,
                tokens_dir=tokens_dir,
                tokenizer_dir=tokenizer_dir,
                data_dir=data_dir,
                run_dir=runs_dir / f"{encoder.name}-{digest}",
                shape=encoder.shape,
                recipe=recipe,
                seed=seed,
                machine=params.machine,
            )
        )
    return planned


def finished(job: PretrainRun, published_dir: Path) -> dict[str, Any] | None:
    """Return a job's result from its run directory or the published output, if it has one."""
    run_dir, path = RunDir(job.run_dir), RunDir(published_dir / job.name).metrics
    found = run_dir.read_result(job.digest)
    if found is not None and run_dir.encoder.is_dir():
        return found
    published = read_json(path) if path.exists() else {}
    return published if published.get("digest") == job.digest else None


def train(
    job: PretrainRun,
    stop: threading.Event,
    on_status: Callable[[dict[str, Any]], None],
    mirror: CheckpointSyncSettings | None = None,
) -> dict[str, Any]:
    """Train one encoder, resuming from its newest checkpoint, local or on S3.

    Raises what `tasks.jobs.supervision.supervise` and `tasks.pretrain.checkpoint_sync.mirrored` raise.
    """
    run_dir = RunDir(job.run_dir)
    write_json(run_dir.pretrain_config, job.model_dump(mode="json"))

    def attempt() -> JobEnd:
        with mirrored(mirror if job.recipe.phases else None, run_dir.path.name, run_dir.checkpoints, stop):
            num_ranks = job.machine.num_devices
            return run_process("model.pretrain", run_dir.pretrain_config, run_dir, num_ranks, stop, on_status)

    return supervise(f"pretrain {job.name}", job.digest, run_dir, attempt, stop)


def required_bytes(job: PretrainRun, is_mirrored: bool = False) -> int:
    """Upper bound of a job's disk usage: its checkpoints (fp32 weights and two moments), one being written, one being
    uploaded, and the encoder."""
    vocab_size = read_json(job.tokens_dir / "index.json")["vocab_size"]
    config = job.shape.build(vocab_size)
    hidden, layers = config.hidden_size, config.num_hidden_layers
    num_parameters = hidden * (vocab_size + 1024) + layers * (4 * hidden**2 + 2 * hidden * config.intermediate_size)
    return 4 * num_parameters * (3 * (job.recipe.checkpoints_kept + 1 + is_mirrored) + 1)


def assemble(jobs: Sequence[PretrainRun], published_dir: Path, out_dir: Path) -> None:
    """Write out_dir/<encoder>/ with the encoder, metrics.json and the last checkpoint."""
    for job in jobs:
        run_dir, target = RunDir(job.run_dir), RunDir(out_dir / job.name)
        result = run_dir.read_result(job.digest)
        if result is None or not run_dir.encoder.is_dir():
            copy_tree(published_dir / job.name, target.path)
            continue
        copy_tree(run_dir.encoder, target.path)
        checkpoints = sorted(run_dir.checkpoints.glob("step-*"))
        if checkpoints:
            copy_tree(checkpoints[-1], target.last_checkpoint)
        write_json(target.metrics, result)
