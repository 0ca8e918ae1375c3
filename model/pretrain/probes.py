"""Probes: what an encoder in training knows of a benchmark, by ridge regression on its frozen features.

A closed form instead of a fine-tuning: seconds, no rate to choose, the same answer every time. It shows a trend, not a
score of the leaderboard, and nothing of it flows back into training.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from model.benchmarks.custom_task import row_of
from model.benchmarks.splits import read_dev, read_train
from model.benchmarks.table import Benchmark
from model.common.errors import UserError
from model.config.finetuning import FinetuneRecipe
from model.config.pretraining import ProbeSettings
from model.encoder.encoder import Encoder
from model.heads.batches import chosen, collate
from model.heads.features import Features
from model.heads.head import EvalDataset
from model.heads.task_model import HEADS
from model.tokenizer.wordpiece import special_ids

_BATCH = 64
_PENALTY = 0.1  # of the ridge, on features of deviation 1 and per row: enough for as many features as rows


@dataclass(frozen=True)
class _Probe:
    benchmark: Benchmark
    train: Features
    dev: EvalDataset


class Probes:
    """Reads the benchmarks once; `run` is asked as often as wanted.

    Args:
        settings: which benchmarks, and how many of their rows.
        data_dir: the folder that holds glue/.
        tokenizer: the encoder's.
        max_length: its longest sequence.

    Raises:
        UserError: a benchmark is unknown, has no label for a whole text or pair, or its files are missing.
    """

    def __init__(self, settings: ProbeSettings, data_dir: Path, tokenizer: Tokenizer, max_length: int) -> None:
        self._pad_id = special_ids(tokenizer).pad
        self._probes = []
        recipe = FinetuneRecipe.parse({"max_length": min(128, max_length)}, "probes")
        for name in settings.benchmarks:
            row = row_of(name, data_dir)
            if not HEADS[row.head].is_probed:
                raise UserError(f"recipe.probes.benchmarks: {name} has no label for a whole text or pair of texts")
            train, dev = read_train(row, data_dir), next(iter(read_dev(row, data_dir).values()))
            parts = []
            for examples in (train.examples, dev.examples):
                parts.append(HEADS[row.head].prepare(row, chosen(examples, settings.max_rows), tokenizer, recipe))
            self._probes.append(_Probe(row, parts[0].features, parts[1]))

    def run(self, encoder: Encoder) -> dict[str, float]:
        """{benchmark_metric: score from 0 to 100}, of the headline metric on dev; the encoder is left as it was."""
        training = encoder.training
        encoder.eval()
        found = {}
        for probe in self._probes:
            targets = torch.from_numpy(probe.train.targets)
            is_score = targets.is_floating_point()
            wanted = targets[:, None] if is_score else F.one_hot(targets, len(probe.benchmark.labels))
            known, asked = (self._features(encoder, part) for part in (probe.train, probe.dev.features))
            outputs = _ridge(known, wanted.double(), asked).numpy().astype(np.float32)
            score = probe.dev.evaluate(outputs).scores[probe.benchmark.headline]
            found[f"{probe.benchmark.name}_{probe.benchmark.headline}"] = score
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
    """What a ridge regression from `known` (rows, width) to `wanted` (rows, outputs) predicts for `asked`."""
    middle, spread, mean = known.mean(0), known.std(0).clamp(min=1e-6), wanted.mean(0)
    known, asked = (known - middle) / spread, (asked - middle) / spread
    gram = known.T @ known + _PENALTY * len(known) * torch.eye(known.shape[1], dtype=known.dtype)
    return asked @ torch.linalg.solve(gram, known.T @ (wanted - mean)) + mean
