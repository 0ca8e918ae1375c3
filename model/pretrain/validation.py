"""Validation of pre-training on held-out documents, with masks that never change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from model.config.pretraining import Masking, Phase, PretrainRecipe
from model.data.collator import Collator, PretrainBatch
from model.data.sampler import EpochSampler, unusable_reason
from model.data.token_store import TokenStore
from model.engine.callbacks import Interval
from model.objectives import OBJECTIVES
from model.tokenizer.wordpiece import Vocabulary

_SEED = 0  # whatever the run's seed: runs are compared on the same samples and masks
_MAX_BATCH_TOKENS = 1 << 13


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
        self,
        module: nn.Module,
        forward: Callable[..., tuple[Tensor, Tensor]],
        phase: int,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> tuple[Tensor, Interval]:
        """Return this rank's sums of the metrics (num_metrics,), float64, and the counts of all ranks.

        Args:
            module: the training module.
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
        collator = Collator(
            sampler, self._store, length, 0, Masking(), self._vocabulary, _SEED, 1, None, self._objective.targets
        )
        size = min(phase.batch_size, max(1, _MAX_BATCH_TOKENS // length))
        total = min(recipe.validation_batches * phase.batch_size, sampler.epoch_size(0))
        batches, counts = [], Interval([])
        for first in range(0, total, size):
            samples = collator.samples(first, min(size, total - first))
            part = collator.counts(samples, first)
            counts.num_sequences += part.num_sequences
            counts.num_predictions += part.num_predictions
            batches.append(collator.build(samples, first, 0))
        return batches, counts
