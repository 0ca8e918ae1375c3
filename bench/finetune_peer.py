"""Fine-tune a `transformers` model on given batches, for comparison in bench.parity.

The model classes and heads are those of `transformers`. Batches, initial weights of the head, learning rates and scores
are ours, and so are the dropout masks if requested. The only difference is the computation of a step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from model.config.finetuning import FinetuneRecipe
from model.finetune.training import FinetuneLoader, LinearSchedule
from model.heads.batches import FinetuneBatch
from model.heads.features import Features
from model.heads.task_model import TaskModel
from model.ops.keyed_dropout import DropoutKey, keep_factors

_PADDING = -1e9  # the logit of padding in our span heads; those of `transformers` do not mask padding

ATTENTION = "keyed"


class _KeyedLayer(nn.Module):
    """Replaces an `nn.Dropout`; `keys` (batch, 2) are set before each step."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.p = rate
        self.keys: Tensor | None = None

    def factors(self, rows: Tensor, width: int) -> Tensor:
        """Return the factors to multiply by, (batch, num_rows, width)."""
        assert self.keys is not None
        return keep_factors(self.keys, rows, width, self.p)

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply dropout to hidden states (batch, length, width), or pooled ones (batch, width)."""
        if not self.training or self.p == 0.0:
            return hidden
        length = hidden.shape[1] if hidden.ndim == 3 else 1
        factors = self.factors(torch.arange(length, dtype=torch.int32)[None], hidden.shape[-1])
        return (hidden.float() * factors.view(hidden.shape)).to(hidden.dtype)


class KeyedDropout:
    """Gives every dropout layer of a `transformers` BERT the masks of ours.

    Our masks are a function of seed, step, sample and layer (`model.ops.keyed_dropout`), so that two trainings differ
    only in how a step is computed. The model must use `ATTENTION` as its attention implementation.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        bert = model.bert
        self._layers: list[_KeyedLayer] = []
        owners = [bert.embeddings]
        for layer in bert.encoder.layer:
            owners += [layer.attention.self, layer.attention.output, layer.output]
        if hasattr(model, "dropout"):
            owners.append(model)
        for owner in owners:
            owner.dropout = _KeyedLayer(owner.dropout.p)
            self._layers.append(owner.dropout)

    def at(self, key: DropoutKey) -> None:
        """Set the masks of a step and its samples."""
        for layer, keys in zip(self._layers, key.expand(len(self._layers)), strict=True):
            layer.keys = keys


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """Compute attention as `eager_attention_forward` of `transformers`, with keyed dropout."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1)
    if dropout:
        heads, length, width = weights.shape[1:]
        rows = torch.arange(length, dtype=torch.int32)[None] * heads + torch.arange(heads, dtype=torch.int32)[:, None]
        factors = module.dropout.factors(rows.flatten()[None], width)  # type: ignore[operator, union-attr]
        weights = (weights.float() * factors.view(weights.shape)).to(weights.dtype)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, eager_mask)


class Peer(nn.Module):
    """A `transformers` model with the initial weights of `ours`, and logits in the same layout.

    Args:
        encoder_dir: Encoder in the `transformers` layout.
        ours: The model whose head is copied.
        dropout: Dropout rate of all layers.
        attention: "eager" or "sdpa".
        our_masks: Use our dropout masks, with eager attention.
    """

    def __init__(
        self,
        encoder_dir: Path,
        ours: TaskModel,
        dropout: float,
        attention: str = "eager",
        *,
        our_masks: bool = False,
    ) -> None:
        super().__init__()
        self.head, self.group_size, self.output_width = ours.head, ours.group_size, ours.output_width
        width = ours.classifier.out_features
        keyed = our_masks and dropout > 0.0
        settings: dict[str, Any] = (
            {} if len(ours.head.output_names) > 1 or ours.group_size > 1 else {"num_labels": width}
        )
        self.model = getattr(transformers, ours.head.transformers_class).from_pretrained(
            encoder_dir,
            attn_implementation=ATTENTION if keyed else attention,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            classifier_dropout=dropout,
            **settings,
        )
        self.classifier = getattr(self.model, ours.head.layer_name)
        self.classifier.load_state_dict(ours.classifier.state_dict())
        self.keyed = KeyedDropout(self.model) if keyed else None

    def forward(self, batch: FinetuneBatch) -> Tensor:
        """Return logits, as `TaskModel.forward` does."""
        mask = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask.long()
        arguments = [batch.input_ids, mask, batch.token_type_ids]
        if self.group_size > 1:
            arguments = [argument.view(-1, self.group_size, argument.shape[1]) for argument in arguments]
        found = self.model(arguments[0], attention_mask=arguments[1], token_type_ids=arguments[2])
        if len(self.head.output_names) > 1:
            logits = torch.stack((found.start_logits, found.end_logits), -1).float()
            return logits.masked_fill(mask[:, :, None] == 0, _PADDING)
        return found.logits.float()  # type: ignore[no-any-return]


def train(
    peer: Peer,
    ours: TaskModel,
    features: Features,
    recipe: FinetuneRecipe,
    seed: int,
    pad_id: int,
    bf16: bool,
    max_steps: int | None = None,
) -> list[float]:
    """Train on our batches with PyTorch's AdamW and the Trainer's parameter groups, and return the loss of each step.

    The loss is computed by our formula, which equals that of `transformers` without padding.
    """
    peer.train()
    groups = [
        {"params": [p for p in peer.parameters() if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in peer.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, eps=1e-6, fused=True)
    loader = FinetuneLoader(features, recipe, ours.head, seed, pad_id)
    schedule = LinearSchedule(recipe, loader.num_steps)
    losses: list[float] = []
    for step in range(min(loader.num_steps, max_steps or loader.num_steps)):
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate(step)
        batch = loader.at(step).batches[0].batch
        if peer.keyed is not None:
            peer.keyed.at(DropoutKey(seed, step, batch.samples))
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = peer(batch)
        loss = ours.loss(logits, batch.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), recipe.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses
