"""A fine-tuning job's data: files read, tokenized, and renumbered by the tokens that they use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from model.benchmarks.readers.examples import Split
from model.benchmarks.splits import read_dev, read_train
from model.encoder.encoder import Encoder
from model.finetune.job import Job
from model.heads.batches import chosen
from model.heads.features import Features, Ragged
from model.heads.head import EvalDataset, EvalResult, combine
from model.heads.task_model import HEADS
from model.tokenizer.wordpiece import special_ids


class UsedTokens:
    """The token ids that some sequences use, renumbered from 0 in ascending order.

    A job trains only these rows of the token embedding. Every other row has no gradient, so Adam changes it by weight
    decay alone: a factor that is known beforehand. The result is the same up to the rounding of that factor, and a step
    saves several passes over most of the parameters of a small encoder with a real vocabulary.
    """

    _all_rows: Tensor  # the embedding before `narrow`

    def __init__(self, parts: Iterable[Features], pad_id: int, vocab_size: int) -> None:
        used = np.zeros(vocab_size, dtype=bool)
        used[pad_id] = True
        for features in parts:
            used[features.sequences.values] = True
        self.ids = np.flatnonzero(used)
        self._number = (np.cumsum(used) - 1).astype(np.int32)
        self.pad_id = int(self._number[pad_id])

    def renumber(self, features: Features) -> Features:
        """The same sequences in the new numbers."""
        sequences = Ragged(self._number[features.sequences.values], features.sequences.offsets)
        return replace(features, sequences=sequences)

    def narrow(self, encoder: Encoder) -> None:
        """Leave the encoder only the used rows of its token embedding."""
        self._all_rows = encoder.embeddings.token.weight.detach()
        used = self._all_rows[torch.from_numpy(self.ids).to(self._all_rows.device)]
        encoder.embeddings.token = nn.Embedding.from_pretrained(used, freeze=False)

    def widen(self, encoder: Encoder, decay: float) -> None:
        """Give the encoder all rows again, the unused ones multiplied by `decay`."""
        rows = encoder.embeddings.token.weight.detach()
        whole = self._all_rows.to(rows.device) * decay
        whole[torch.from_numpy(self.ids).to(rows.device)] = rows
        encoder.embeddings.token = nn.Embedding.from_pretrained(whole, freeze=False)


class DevPart(NamedTuple):
    """A part of the dev set."""

    split: Split  # the examples; `num_whole` is their number before `max_dev_rows`
    dataset: EvalDataset
    features: Features


class JobData(NamedTuple):
    """Training rows and the parts of the dev set, in the numbers of `tokens`."""

    tokens: UsedTokens
    train: Features
    dev: dict[str, DevPart]  # by suffix
    facts: dict[str, Any]  # entries of the result: row counts, files and the scores of the majority answer


def load_dev(job: Job, tokenizer: Tokenizer) -> dict[str, DevPart]:
    """Read and prepare the parts of the dev set, by suffix.

    Raises:
        UserError: a file is missing or malformed.
    """
    parts = {}
    for suffix, whole in read_dev(job.row, job.data_dir).items():
        examples = chosen(whole.examples, job.recipe.max_dev_rows)
        dataset = HEADS[job.row.head].prepare(job.row, examples, tokenizer, job.recipe)
        split = replace(whole, examples=examples, num_whole=len(whole.examples))
        parts[suffix] = DevPart(split, dataset, dataset.features)
    return parts


def load_data(job: Job, tokenizer: Tokenizer, vocab_size: int) -> JobData:
    """Read and prepare the training rows and the dev set.

    Raises:
        UserError: a file is missing or malformed, or the recipe leaves no space for the texts.
    """
    row, head = job.row, HEADS[job.row.head]
    train, dev = read_train(row, job.data_dir), load_dev(job, tokenizer)
    examples = chosen(train.examples, job.recipe.max_train_rows)
    features = head.prepare(row, examples, tokenizer, job.recipe).features
    tokens = UsedTokens([features, *(part.features for part in dev.values())], special_ids(tokenizer).pad, vocab_size)
    splits = [part.split for part in dev.values()]
    majority = {
        suffix: EvalResult(head.majority_scores(row, examples, part.split.examples), []) for suffix, part in dev.items()
    }
    facts: dict[str, Any] = {
        "majority": combine(majority).scores,
        "num_train_rows": len(examples),
        "num_dev_rows": sum(len(split.examples) for split in splits),
        "num_all_train_rows": len(train.examples),
        "num_all_dev_rows": sum(split.num_whole for split in splits),
        "dev_digest": _digest(dev),
        "num_skipped_rows": train.num_skipped,
        "dev_files": [split.name for split in splits],
    }
    if train.skipped:
        facts["skipped_rows"] = list(train.skipped)
    if remarks := list(dict.fromkeys(remark for split in (train, *splits) for remark in split.remarks)):
        facts["remarks"] = remarks
    dev = {suffix: part._replace(features=tokens.renumber(part.features)) for suffix, part in dev.items()}
    return JobData(tokens, tokens.renumber(features), dev, facts)


def _digest(dev: dict[str, DevPart]) -> str:
    """Identifies the dev rows that a score was measured on: scores on other rows are not compared."""
    digest = hashlib.sha256()
    for suffix, part in dev.items():
        for example in part.split.examples:
            digest.update(f"{suffix}\0{example!r}\n".encode())
    return digest.hexdigest()[:16]
