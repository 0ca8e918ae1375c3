"""A fine-tuning job's data: files read, tokenized, and renumbered by the tokens that they use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.readers.examples import Split
from model.benchmarks.splits import read_dev, read_train, split_for_selection
from model.common.errors import UserError
from model.config.finetuning import judge_share_of
from model.encoder.encoder import Encoder
from model.finetune.job import Job
from model.heads.batches import chosen
from model.heads.features import Features, Ragged
from model.heads.head import EvalDataset, EvalResult, Outputs, combine
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
    """The rows of one dev file that have the same purpose."""

    examples: Sequence[Any]
    dataset: EvalDataset
    features: Features


class DevResult(NamedTuple):
    """The evaluation of a model on the dev set."""

    reported: EvalResult
    selection: EvalResult | None
    """On the rows that select the epoch and the recipe; None if they are the reported rows."""

    def value(self, metric: str) -> float:
        """Return the score that decides which epoch and recipe is the best."""
        return (self.selection or self.reported).scores[metric]

    @property
    def degenerate(self) -> bool:
        return self.reported.degenerate and (self.selection is None or self.selection.degenerate)


class DevSet(NamedTuple):
    """The dev files of a benchmark by suffix; without `selection`, the reported rows also select."""

    files: dict[str, Split]
    """Whole files, before `max_dev_rows`."""
    reported: dict[str, DevPart]
    selection: dict[str, DevPart]

    @property
    def parts(self) -> dict[str, DevPart]:
        """All parts by their names in outputs.safetensors."""
        reported = {f"dev.{suffix}": part for suffix, part in self.reported.items()}
        return reported | {f"selection.{suffix}": part for suffix, part in self.selection.items()}

    def evaluate(self, outputs: Mapping[str, Outputs]) -> DevResult:
        """Score the outputs of `parts`. Settings such as a threshold are chosen on the selection rows."""
        selection = {
            suffix: part.dataset.evaluate(outputs[f"selection.{suffix}"]) for suffix, part in self.selection.items()
        }
        reported = {
            suffix: part.dataset.evaluate(
                outputs[f"dev.{suffix}"], selection[suffix].chosen if suffix in selection else None
            )
            for suffix, part in self.reported.items()
        }
        return DevResult(combine(reported), combine(selection) if selection else None)


class JobData(NamedTuple):
    """Training rows and the dev set, in the numbers of `tokens`."""

    tokens: UsedTokens
    train: Features
    dev: DevSet
    facts: dict[str, Any]  # entries of the result: row counts, files and the scores of the majority answer


def load_dev(job: Job, tokenizer: Tokenizer) -> DevSet:
    """Read and prepare the dev set.

    Raises:
        UserError: a file is missing or malformed, or has too few rows to split.
    """
    files = read_dev(job.row, job.data_dir)
    rows = {suffix: chosen(split.examples, job.recipe.max_dev_rows) for suffix, split in files.items()}
    share = judge_share_of(job.judge_share, sum(map(len, rows.values())))

    def prepared(examples: Sequence[Any]) -> DevPart:
        dataset = HEADS[job.row.head].prepare(job.row, examples, tokenizer, job.recipe)
        return DevPart(examples, dataset, dataset.features)

    if not share:
        return DevSet(files, {suffix: prepared(examples) for suffix, examples in rows.items()}, {})
    dev = DevSet(files, {}, {})
    for suffix, examples in rows.items():
        selection, reported = split_for_selection(examples, share)
        if not selection or not reported:
            raise UserError(
                f"finetune.judge_share: {share:g} leaves no rows to {'report' if selection else 'select'} on in "
                f"{files[suffix].path}, which has {len(examples)} rows; set it to 0 to select and report on all rows"
            )
        dev.reported[suffix], dev.selection[suffix] = prepared(reported), prepared(selection)
    return dev


def load_data(job: Job, tokenizer: Tokenizer, vocab_size: int) -> JobData:
    """Read and prepare the training rows and the dev set.

    Raises:
        UserError: a file is missing or malformed, or the recipe leaves no space for the texts.
    """
    row, head = job.row, HEADS[job.row.head]
    HEAD_SPECS[row.head].check_files(row, job.data_dir, job.recipe)
    train, dev = read_train(row, job.data_dir), load_dev(job, tokenizer)
    examples = chosen(train.examples, job.recipe.max_train_rows)
    features = head.prepare(row, examples, tokenizer, job.recipe).features
    parts = [features, *(part.features for part in dev.parts.values())]
    tokens = UsedTokens(parts, special_ids(tokenizer).pad, vocab_size)
    splits = list(dev.files.values())
    majority = {
        suffix: EvalResult(head.majority_scores(row, examples, part.examples), [])
        for suffix, part in dev.reported.items()
    }
    facts: dict[str, Any] = {
        "majority": combine(majority).scores,
        "num_train_rows": len(examples),
        "num_dev_rows": sum(len(part.examples) for part in dev.reported.values()),
        "num_selection_rows": sum(len(part.examples) for part in dev.selection.values()),
        "num_all_train_rows": len(train.examples),
        "num_all_dev_rows": sum(len(split.examples) for split in splits),
        "dev_digest": _digest(dev.reported),
        "num_skipped_rows": train.num_skipped,
        "dev_files": [split.name for split in splits],
    }
    if train.skipped:
        facts["skipped_rows"] = list(train.skipped)
    if remarks := list(dict.fromkeys(remark for split in (train, *splits) for remark in split.remarks)):
        facts["remarks"] = remarks
    renumbered = [
        {suffix: part._replace(features=tokens.renumber(part.features)) for suffix, part in half.items()}
        for half in (dev.reported, dev.selection)
    ]
    return JobData(tokens, tokens.renumber(features), DevSet(dev.files, *renumbered), facts)


def _digest(dev: dict[str, DevPart]) -> str:
    """Identifies the dev rows that a score was measured on: scores on other rows are not compared."""
    digest = hashlib.sha256()
    for suffix, part in dev.items():
        for example in part.examples:
            digest.update(f"{suffix}\0{example!r}\n".encode())
    return digest.hexdigest()[:16]
