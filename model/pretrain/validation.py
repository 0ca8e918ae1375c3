"""Validation of pre-training on held-out documents, with masks that never change."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from model.config.pretraining import Masking, Phase, PretrainRecipe
from model.data.collator import Collator, PretrainBatch
from model.data.sampler import EpochSampler, unusable_reason
from model.data.token_store import TokenStore
from model.objectives.pretraining_model import NUM_SUMS, PretrainingModule
from model.pretrain.report import Tally
from model.tokenizer.wordpiece import Vocabulary

_SEED = 0  # whatever the run's seed: runs are compared on the same pairs and masks


class Validation:
    """Losses and accuracies over the first samples of the held-out part's first epoch.

    Always in fp32, so that runs of any precision compare, and with BERT's masks (15 % of the tokens, each on its own,
    80/10/10) whatever masks the training has. The samples are of the recipe's sentence objective. Where there are fewer
    than `validation_batches` asks for, each counts once; where there are none, there is no validation.
    """

    def __init__(self, recipe: PretrainRecipe, store: TokenStore, vocabulary: Vocabulary) -> None:
        self._recipe, self._store, self._vocabulary = recipe, store, vocabulary
        self.is_on = unusable_reason(store, recipe.sentence_objective) is None and recipe.validation_batches > 0
        self._batches: dict[int, list[tuple[PretrainBatch, Tally]]] = {}

    def run(
        self,
        module: PretrainingModule,
        forward: Callable[..., tuple[Tensor, Tensor]],
        index: int,
        rank: int,
        num_ranks: int,
    ) -> tuple[Tensor, Tally]:
        """This rank's sums (NUM_SUMS, float64), and the counts of all ranks.

        `forward` computes the module; `index` is the phase's.
        """
        device = next(module.parameters()).device
        sums = torch.zeros(NUM_SUMS, dtype=torch.float64, device=device)
        whole = Tally()
        weights = torch.zeros(2, device=device)
        module.eval()
        with torch.no_grad():
            batches = self._prepared(index)
            for _, tally in batches:
                whole.num_sequences += tally.num_sequences
                whole.num_predictions += tally.num_predictions
            # As many turns on each rank, the last perhaps for nothing: those whose module is in parts compute together.
            for turn in range(-(-len(batches) // num_ranks)):
                number = turn * num_ranks + rank
                batch, _ = batches[min(number, len(batches) - 1)]
                _, part = forward(PretrainBatch(*(tensor.to(device) for tensor in batch)), weights)
                if number < len(batches):
                    sums += part
        module.train()
        return sums, whole

    def _prepared(self, index: int) -> list[tuple[PretrainBatch, Tally]]:
        if index not in self._batches:
            self._batches = {index: self._build(self._recipe.phases[index])}
        return self._batches[index]

    def _build(self, phase: Phase) -> list[tuple[PretrainBatch, Tally]]:
        recipe, length = self._recipe, phase.sequence_length
        sampler = EpochSampler(
            self._store,
            length,
            objective=recipe.sentence_objective,
            short_probability=recipe.short_sequence_probability,
            keys=(_SEED,),
        )
        collator = Collator(sampler, self._store, length, 0, Masking(), self._vocabulary, _SEED, num_dropouts=1)
        # Never more than some thousand tokens at once, whatever a training step takes.
        size = min(phase.batch_size, max(1, _TOKENS_AT_ONCE // length))
        total = min(recipe.validation_batches * phase.batch_size, sampler.epoch_size(0))
        batches = []
        for first in range(0, total, size):
            samples = collator.samples(first, min(size, total - first))
            tally = Tally()
            tally.add(collator.counts(samples, first))
            batches.append((collator.build(samples, first, 0), tally))
        return batches


_TOKENS_AT_ONCE = 1 << 13
