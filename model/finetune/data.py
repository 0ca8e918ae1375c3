"""A fine-tuning job's data: files read, tokenised, and numbered by the tokens that they use."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer

from model.benchmarks.readers.examples import Split
from model.benchmarks.splits import read_dev, read_train
from model.finetune.embedding_pruning import UsedTokens
from model.finetune.job import Job
from model.heads.batches import chosen
from model.heads.features import Features
from model.heads.head import EvalDataset, EvalResult, combine
from model.heads.task_model import HEADS
from model.tokenizer.wordpiece import special_ids


@dataclass(frozen=True)
class DevPart:
    """A part of the dev set: what judges, and the sequences as the model reads them."""

    prepared: EvalDataset
    features: Features
    examples: Sequence[Any]


@dataclass(frozen=True)
class JobData:
    """Training rows and the parts of the dev set, in the numbers of `tokens`."""

    tokens: UsedTokens
    train: Features
    dev: dict[str, DevPart]
    facts: dict[str, Any]
    """What the result says of the data: row counts, files and the majority answer's scores."""

    @property
    def dev_examples(self) -> list[Any]:
        """The examples of all parts of the dev set, in the order of an outcome's predictions."""
        return [example for part in self.dev.values() for example in part.examples]


def _cut(part: Split, max_rows: int | None) -> Split:
    return replace(part, examples=chosen(part.examples, max_rows), num_whole=len(part.examples))


def _oddities(train: Split, dev: Sequence[Split]) -> dict[str, Any]:
    """The first rows that were skipped, and what is odd about rows that were kept, where there are any."""
    remarks = list(dict.fromkeys(remark for part in (train, *dev) for remark in part.remarks))
    found = {"skipped_rows": list(train.skipped), "remarks": remarks}
    return {name: lines for name, lines in found.items() if lines}


def prepare_dev(job: Job, tokenizer: Tokenizer) -> dict[str, tuple[Split, EvalDataset]]:
    """The parts of the dev set by their suffix, and what judges a model's outputs on each.

    Raises:
        UserError: a file is missing or malformed.
    """
    parts = {suffix: _cut(part, job.recipe.max_dev_rows) for suffix, part in read_dev(job.row, job.data_dir).items()}
    head = HEADS[job.row.head]
    return {
        suffix: (part, head.prepare(job.row, part.examples, tokenizer, job.recipe)) for suffix, part in parts.items()
    }


def load_data(job: Job, tokenizer: Tokenizer, vocab_size: int) -> JobData:
    """Read and prepare what the job trains on and is judged by.

    Raises:
        UserError: a file is missing or malformed, or the recipe leaves no room for the texts.
    """
    row = job.row
    train = read_train(row, job.data_dir)
    dev = prepare_dev(job, tokenizer)
    examples = chosen(train.examples, job.recipe.max_train_rows)
    head = HEADS[row.head]
    features = head.prepare(row, examples, tokenizer, job.recipe).features
    tokens = UsedTokens(
        [features, *(prepared.features for _, prepared in dev.values())], special_ids(tokenizer).pad, vocab_size
    )
    majority = {
        suffix: EvalResult(head.majority_scores(row, examples, part.examples), []) for suffix, (part, _) in dev.items()
    }
    return JobData(
        tokens=tokens,
        train=tokens.renumber(features),
        dev={
            suffix: DevPart(prepared, tokens.renumber(prepared.features), part.examples)
            for suffix, (part, prepared) in dev.items()
        },
        facts={
            "majority": combine(majority).scores,
            "num_train_rows": len(examples),
            "num_dev_rows": sum(len(part.examples) for part, _ in dev.values()),
            "num_all_train_rows": len(train.examples),
            "num_all_dev_rows": sum(part.num_whole or len(part.examples) for part, _ in dev.values()),
            "dev_digest": _digest({suffix: part for suffix, (part, _) in dev.items()}),
            "num_skipped_rows": train.num_skipped,
            "dev_files": [part.name for part, _ in dev.values()],
            **_oddities(train, [part for part, _ in dev.values()]),
        },
    )


def _digest(parts: dict[str, Split]) -> str:
    """The name of the dev rows that a score was measured on: scores on other rows are not compared."""
    digest = hashlib.sha256()
    for suffix, part in parts.items():
        for example in part.examples:
            digest.update(f"{suffix}\0{example!r}\n".encode())
    return digest.hexdigest()[:16]
