"""Probes: evaluation of an encoder in training on a benchmark, by ridge regression on its frozen features.

The closed form takes seconds, has no learning rate, and always gives the same answer. Probes show a trend, not a score
of the leaderboard, and training does not depend on them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from model.benchmarks.custom_task import row_of
from model.benchmarks.splits import read_dev, read_train
from model.common.errors import UserError
from model.config.finetuning import FinetuneRecipe
from model.config.pretraining import ProbeSettings
from model.encoder.encoder import Encoder
from model.heads.batches import chosen, collate
from model.heads.features import Features
from model.heads.task_model import HEADS
from model.tokenizer.wordpiece import special_ids

_BATCH = 64
_PENALTY = 0.1  # of the ridge, on features of deviation 1 and per row: enough for as many features as rows


class Probes:
    """Reads the benchmarks once, and evaluates any number of encoders on them.

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
            targets = head.probe_targets(row, torch.from_numpy(train.features.targets))
            self._probes.append((row, train.features, targets, dev))

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
            for begin in range(0, len(order), _BATCH):
                rows = order[begin : begin + _BATCH]
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
