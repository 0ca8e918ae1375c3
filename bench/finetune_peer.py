"""`transformers`' fine-tuning of one benchmark on given batches: what bench.parity compares ours with.

The model classes and their heads are the peer's; batches, first weights of the head, learning rates and scores ours;
what is dropped is, as asked for, the peer's own or ours. What differs is what computes a step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from bench.keyed_dropout import ATTENTION, KeyedDropout
from model.config.finetuning import FinetuneRecipe
from model.finetune.loop import autocast
from model.heads.batches import FinetuneBatch, collate, training_batches
from model.heads.features import Features
from model.heads.task_model import ARCHITECTURES, TaskModel
from model.ops.keyed_dropout import DropoutKey
from model.optim.schedules import linear_warmup_decay

_PADDING = -1e9  # our span heads give padding this logit, theirs leave it to the softmax; so it is put in here


class Peer(nn.Module):
    """A model of `transformers` with the first weights of `ours`, that gives logits in the form of ours.

    Args:
        encoder_dir: in the layout of `transformers`.
        ours: whose head's weights are copied.
        dropout: in place of every rate of the checkpoint's configuration.
        attention: "eager" or "sdpa".
        our_masks: drop what ours drops (`bench.keyed_dropout`), with eager attention; without dropout, all is theirs.
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
        self.kind, self.group_size, self.reads_tokens = ours.kind, ours.group_size, ours.reads_tokens
        width = ours.classifier.out_features
        keyed = our_masks and dropout > 0.0
        settings: dict[str, Any] = {"num_labels": width} if ours.kind in ("classes", "regression", "tags") else {}
        self.model = getattr(transformers, ARCHITECTURES[ours.kind]).from_pretrained(
            encoder_dir,
            attn_implementation=ATTENTION if keyed else attention,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            classifier_dropout=dropout,
            **settings,
        )
        self.classifier = self.model.qa_outputs if ours.kind == "span" else self.model.classifier
        self.classifier.load_state_dict(ours.classifier.state_dict())
        self.keyed = KeyedDropout(self.model) if keyed else None

    def forward(self, batch: FinetuneBatch) -> Tensor:
        """As `TaskModel.forward`."""
        mask = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask.long()
        arguments = [batch.input_ids, mask, batch.token_type_ids]
        if self.kind == "choice":
            arguments = [argument.view(-1, self.group_size, argument.shape[1]) for argument in arguments]
        found = self.model(arguments[0], attention_mask=arguments[1], token_type_ids=arguments[2])
        if self.kind == "span":
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
    """Train on our batches by torch's AdamW, grouped as the Trainer groups it; the loss of each step.

    The loss is the formula of ours, which that of `transformers` equals where there is no padding.
    """
    peer.train()
    groups = [
        {"params": [p for p in peer.parameters() if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in peer.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, eps=1e-6, fused=True)
    num_steps = -(-features.num_rows // recipe.batch_size) * recipe.num_epochs
    num_warmup_steps = int(num_steps * recipe.warmup_fraction)
    losses: list[float] = []
    for epoch in range(recipe.num_epochs):
        for rows in training_batches(features.row_lengths, recipe.batch_size, seed, epoch):
            if len(losses) == max_steps:
                return losses
            for group in optimizer.param_groups:
                factor = linear_warmup_decay(len(losses), num_steps, num_warmup_steps)
                group["lr"] = recipe.learning_rate * factor
            batch = collate(features, rows, pad_id)
            if peer.keyed is not None:
                peer.keyed.at(DropoutKey(seed, len(losses), batch.samples))
            with autocast(torch.device("cpu"), bf16):
                logits = peer(batch)
            loss = ours.loss(logits, batch.targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(peer.parameters(), recipe.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
    return losses
