"""Evaluation during pre-training: losses on held-out documents, and probes of benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from model.benchmarks.custom_task import row_of
from model.benchmarks.splits import read_dev, read_train
from model.common.errors import UserError
from model.config.finetuning import FinetuneRecipe
from model.config.pretraining import Masking, Phase, PretrainRecipe, ProbeSettings
from model.data.collator import Collator, PretrainBatch
from model.data.sampler import EpochSampler, unusable_reason
from model.data.token_store import TokenStore
from model.encoder.encoder import Encoder
from model.engine.callbacks import Interval
from model.heads.batches import chosen, collate
from model.heads.features import Features
from model.heads.task_model import HEADS
from model.objectives import OBJECTIVES
from model.tokenizer.wordpiece import Vocabulary, special_ids

_SEED = 0  # whatever the run's seed: runs are compared on the same samples and masks
_MAX_BATCH_TOKENS = 1 << 13
_PROBE_BATCH = 64
_PENALTY = 0.1  # of the ridge, on features of deviation 1 and per row: enough for as many features as rows


class Validation:
    """Evaluates losses and accuracies on the first samples of the held-out part's first epoch.

    Validation always runs in fp32, so that runs of any precision compare, and with BERT's masks (15 % of the tokens,
    independently, 80/10/10) whatever masks training uses. The samples are those of the recipe's sentence objective.
    Where there are fewer than `validation_batches` asks for, each counts once; where there are none, there is no
    validation.

    Args:
        store: the held-out part of the tokens.
    """

    def __init__(self, recipe: PretrainRecipe, store: TokenStore, vocabulary: Vocabulary) -> None:
        self._recipe, self._store, self._vocabulary = recipe, store, vocabulary
        self._objective = OBJECTIVES[recipe.sentence_objective]
        self.is_on = unusable_reason(store, self._objective.samples) is None and recipe.validation_batches > 0
        self._phase = -1  # which the batches belong to

    def run(
        self, module: nn.Module, forward: Callable[..., Any], phase: int, rank: int = 0, num_ranks: int = 1
    ) -> tuple[Tensor, Interval]:
        """Return this rank's sums of the metrics (num_metrics,), float64, and the counts of all ranks.

        Args:
            forward: computes the module: itself, or its forward method.
            phase: index of the phase whose sequence length is used.
        """
        if phase != self._phase:
            self._batches, self._counts = self._build(self._recipe.phases[phase])
            self._phase = phase
        batches, device = self._batches, next(module.parameters()).device
        weights = torch.zeros(len(self._objective.metrics), device=device)
        sums = weights.double()
        module.eval()
        with torch.no_grad():
            # Each rank takes as many turns, the last one perhaps in vain: ranks of a sharded module compute together.
            for turn in range(-(-len(batches) // num_ranks)):
                number = turn * num_ranks + rank
                _, part = forward(batches[min(number, len(batches) - 1)].to(device), weights)
                if number < len(batches):
                    sums += part
        module.train()
        return sums, replace(self._counts)

    def _build(self, phase: Phase) -> tuple[list[PretrainBatch], Interval]:
        recipe, length = self._recipe, phase.sequence_length
        sampler = EpochSampler(
            self._store,
            length,
            objective=self._objective.samples,
            short_probability=recipe.short_sequence_probability,
            keys=(_SEED,),
        )
        collator = Collator(sampler, self._vocabulary, Masking(), _SEED, 1, targets=self._objective.targets)
        size = min(phase.batch_size, max(1, _MAX_BATCH_TOKENS // length))
        total = min(recipe.validation_batches * phase.batch_size, sampler.epoch_size(0))
        batches, counts = [], Interval([])
        for first in range(0, total, size):
            samples = sampler.samples(first, min(size, total - first))
            part = collator.counts(samples, first)
            counts.num_sequences += part.num_sequences
            counts.num_predictions += part.num_predictions
            batches.append(collator.build(samples, first, 0))
        return batches, counts


class Probes:
    """Probes: evaluation on the dev sets of benchmarks by ridge regression on the frozen encoder's features.

    The closed form takes seconds, has no learning rate, and always gives the same answer. Probes show a trend, not a
    score of the leaderboard, and training does not depend on them. The benchmarks are read once.

    Args:
        data_dir: the folder that holds glue/.
        max_length: the encoder's longest sequence.

    Raises:
        UserError: a benchmark is unknown, has no label for a whole text or pair, or its files are missing.
    """

    def __init__(self, settings: ProbeSettings, data_dir: Path, tokenizer: Tokenizer, max_length: int) -> None:
        self._pad_id = special_ids(tokenizer).pad
        self._probes = []
        recipe = FinetuneRecipe.parse({"max_length": min(128, max_length)}, "probes")
        for name in settings.benchmarks:
            row = row_of(name, data_dir)
            head = HEADS[row.head]
            if not head.is_probed:
                raise UserError(f"recipe.probes.benchmarks: {name} has no label for a whole text or pair of texts")
            splits = read_train(row, data_dir), next(iter(read_dev(row, data_dir).values()))
            examples = [chosen(split.examples, settings.max_rows) for split in splits]
            train, dev = (head.prepare(row, part, tokenizer, recipe) for part in examples)
            targets = torch.from_numpy(train.features.targets)
            is_score = targets.is_floating_point()
            wanted = targets[:, None] if is_score else F.one_hot(targets, len(row.labels))
            self._probes.append((row, train.features, wanted.double(), dev))

    def run(self, encoder: Encoder) -> dict[str, float]:
        """{benchmark_metric: score from 0 to 100}, of the headline metric on dev; the encoder is left as it was."""
        training = encoder.training
        encoder.eval()
        found = {}
        for row, train, targets, dev in self._probes:
            outputs = _ridge(self._features(encoder, train), targets, self._features(encoder, dev.features))
            score = dev.evaluate(outputs.numpy().astype(np.float32)).scores[row.headline]
            found[f"{row.name}_{row.headline}"] = score
        encoder.train(training)
        return found

    def _features(self, encoder: Encoder, features: Features) -> Tensor:
        """(rows, 2 hidden) fp64: the state of [CLS], and the mean over all tokens."""
        device = next(encoder.parameters()).device
        order = np.argsort(features.row_lengths, kind="stable")
        states = torch.empty(features.num_rows, 2 * encoder.config.hidden_size, dtype=torch.float64)
        with torch.no_grad():
            for begin in range(0, len(order), _PROBE_BATCH):
                rows = order[begin : begin + _PROBE_BATCH]
                batch = collate(features, rows, self._pad_id).to(device)
                # forward, not a call: what was compiled was compiled for training
                hidden = encoder.forward(batch.input_ids, batch.token_type_ids, batch.attention_mask).last_hidden_state
                mask = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask
                weights = (mask / mask.sum(1, keepdim=True)).to(hidden.dtype)
                mean = torch.bmm(weights[:, None], hidden)[:, 0]
                states[torch.from_numpy(rows)] = torch.cat([hidden[:, 0], mean], 1).double().cpu()
        return states


def _ridge(known: Tensor, wanted: Tensor, asked: Tensor) -> Tensor:
    """Predictions for `asked` of a ridge regression from `known` (rows, width) to `wanted` (rows, outputs)."""
    middle, spread, mean = known.mean(0), known.std(0).clamp(min=1e-6), wanted.mean(0)
    known, asked = (known - middle) / spread, (asked - middle) / spread
    gram = known.T @ known + _PENALTY * len(known) * torch.eye(known.shape[1], dtype=known.dtype)
    return asked @ torch.linalg.solve(gram, known.T @ (wanted - mean)) + mean
