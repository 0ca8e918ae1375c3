"""The interface of a pre-training objective."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from model.config.encoder import EncoderConfig
from model.config.pretraining import SampleKind
from model.data.collator import PretrainBatch, Targets
from model.data.loader import Metric
from model.encoder.encoder import Encoder
from model.ops.forward_context import DEFAULT_CONTEXT, ForwardContext


class TrainingModule(nn.Module, ABC):
    """An encoder with what an objective needs besides, as the training loop calls it."""

    encoder: Encoder

    @abstractmethod
    def forward(
        self, batch: PretrainBatch, weights: Tensor, context: ForwardContext = DEFAULT_CONTEXT
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss of a batch.

        Args:
            weights: (num_metrics,) fp32, the weight of each sum in the loss.
            context: attention kernel and low-precision copies of the weights.

        Returns:
            The loss (scalar), and the sums of the objective's metrics (num_metrics,), fp32 and without gradient.
        """


class Objective(ABC):
    """A pre-training objective: its samples, their targets, the training module, and what is published."""

    samples: SampleKind
    """The kind of samples: sentence pairs, or packed rows ("none")."""
    metrics: tuple[Metric, ...]
    """The sums that the training module returns. The first one is the loss that decides whether a run is hopeless."""
    targets: type[Targets] = Targets
    """Corrupts the inputs of a sample and sets its labels."""

    @abstractmethod
    def build(self, config: EncoderConfig) -> TrainingModule:
        """Make the training module."""

    def chance_loss(self, vocab_size: int) -> float:
        """Return the first metric of a uniform guess, in nats."""
        return math.log(vocab_size)

    def published(self, module: Any) -> dict[str, Any]:
        """Return what training has trained besides the encoder's layers, as arguments of
        `model.formats.hf_folder.save_encoder`."""
        return {"has_pooler": False}
