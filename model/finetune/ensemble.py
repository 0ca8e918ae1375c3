"""Scores several fine-tunings of one recipe together: the mean of what they gave on dev, judged like one of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from model.common.errors import UserError
from model.common.files import write_json
from model.common.status import Status
from model.finetune.data import prepare_dev
from model.finetune.job import EnsembleJob
from model.finetune.output import OUTPUT_PREFIX, write_predictions
from model.heads.head import combine
from model.heads.task_model import HEADS
from model.tokenizer.wordpiece import load_tokenizer

_LEAST = 1e-30


def run_ensemble(job: EnsembleJob) -> None:
    """Write result.json: scores, headline and degenerate as in a job's, and the seeds.

    Raises:
        UserError: a member's outputs are of other dev rows.
    """
    status = Status(job.status_path)
    status.running(0, len(job.members))
    parts = prepare_dev(job.job, load_tokenizer(job.job.encoder_dir))
    files = [load_file(member.outputs) for member in job.members]
    outcomes = {}
    for suffix, (_, prepared) in parts.items():
        outputs = [file[OUTPUT_PREFIX + suffix] for file in files]
        height = HEADS[job.job.row.head].num_output_rows(prepared.features)
        for member, output in zip(job.members, outputs):
            if len(output) != height:
                raise UserError(
                    f"{member.outputs}: {len(output)} outputs, the dev set asks for {height}; run its job again"
                )
        outcomes[suffix] = prepared.evaluate(mean_outputs(job.job.row.head, outputs))
    outcome = combine(outcomes)
    write_predictions(job.run_dir / "predictions.jsonl", outcome.predictions)
    headline = job.job.row.headline
    write_json(
        job.result_path,
        {
            "digest": job.digest,
            "members": [member.digest for member in job.members],
            "seeds": sorted(member.seed for member in job.members),
            "scores": outcome.scores,
            "headline": {"metric": headline, "value": outcome.scores[headline]},
            "degenerate": outcome.degenerate,
        },
    )
    status.end("done")


def mean_outputs(head: str, outputs: Sequence[npt.NDArray[np.floating]]) -> npt.NDArray[np.float32]:
    """One set of outputs from those of several models, all (rows or tokens, width).

    Classes, choices and tags: the logarithm of the mean of their probabilities. Regressions: the mean of their values.
    Spans: the mean of their start and end logits.
    """
    stacked = np.stack([output.astype(np.float64) for output in outputs])
    if not HEADS[head].averages_probabilities:
        return stacked.mean(axis=0).astype(np.float32)
    powers = np.exp(stacked - stacked.max(axis=-1, keepdims=True))
    probabilities = (powers / powers.sum(axis=-1, keepdims=True)).mean(axis=0)
    logarithms: npt.NDArray[np.float32] = np.log(np.maximum(probabilities, _LEAST)).astype(np.float32)
    return logarithms
