"""The training loop of fine-tuning, and evaluation. What is seen when is a function of (seed, epoch,
step)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.config.finetuning import FinetuneRecipe
from model.config.schedules import linear_warmup_decay
from model.finetune.build import factors_of
from model.heads.batches import collate, evaluation_batches, scatter_tokens, training_batches
from model.heads.features import Features
from model.heads.head import EvalResult
from model.heads.task_model import TaskModel
from model.ops.forward_context import ForwardContext
from model.ops.keyed_dropout import DropoutKey
from model.optim.master_weights import MasterWeights
from model.optim.optimizers import make_optimizer

_CURVE_POINTS = 100
_EVALUATION_TOKENS = {"cpu": 4096, "cuda": 65536}  # of a batch; more does not fit a core's cache


class NonFinite(Exception):
    """The loss is not a number any more."""


class Stopped(Exception):
    """The job was asked to stop."""


@dataclass
class Progress:
    """All that training has come to beside the model and the optimiser."""

    step: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    best_weights: dict[str, Tensor] | None = None
    best_outcome: EvalResult | None = None


class Watcher(Protocol):
    """Whoever follows the training: writes the journal, the status and checkpoints."""

    def at_step(self, trainer: Trainer) -> None:
        """A step is done; a checkpoint may be saved. Raises Stopped to end the training."""
        ...

    def at_log(self, progress: Progress, metrics: dict[str, float]) -> None:
        """Means since the last call."""
        ...

    def at_evaluation(self, progress: Progress, outcome: EvalResult) -> None:
        """An epoch has been evaluated."""
        ...


class Trainer:
    """Trains `model` on `features` by `recipe`.

    Args:
        model: the encoder with its head, on its device.
        features: the training rows.
        bf16: whether matrix products are computed in bf16 (weights and losses stay fp32).
    """

    def __init__(
        self, model: TaskModel, features: Features, recipe: FinetuneRecipe, seed: int, pad_id: int, bf16: bool
    ) -> None:
        self.model = model
        self.recipe = recipe
        kind = "adamw" if recipe.bias_correction else "bert_adamw"
        factors = factors_of(model, recipe)
        self.optimizer = make_optimizer(model, kind, recipe.learning_rate, recipe.weight_decay, rate_factors=factors)
        self.progress = Progress()
        self._parameters = list(model.parameters())
        self._features = features
        self._seed = seed
        self._pad_id = pad_id
        self._bf16 = bf16
        self._device = next(model.parameters()).device
        # The last layer of span heads computes every token, as a rectangle.
        self._unpadded = self._device.type == "cpu" and not model.head.reads_tokens
        on_cpu = self._device.type == "cpu"
        self._master_weights = MasterWeights(model, None, self.optimizer) if bf16 and on_cpu else None
        self._context = ForwardContext(low_precision=self._master_weights.copies if self._master_weights else None)
        self._lengths = features.row_lengths
        self.steps_per_epoch = math.ceil(features.num_rows / recipe.batch_size)
        self.num_steps = self.steps_per_epoch * recipe.num_epochs
        self._num_warmup_steps = int(self.num_steps * recipe.warmup_fraction)
        self.log_every = math.ceil(self.num_steps / _CURVE_POINTS)
        self._sums = torch.zeros(2, device=self._device)  # losses and gradient norms since the last log
        self._num_summed = 0

    def train(self, evaluate: Callable[[], EvalResult], headline: str, watcher: Watcher) -> None:
        """Train from `self.progress.step` to the end.

        With `evaluate_every_epoch` the weights that scored best on dev by `headline` are kept in the
        progress (the earliest of equals), otherwise the last ones are evaluated.

        Raises:
            NonFinite: the loss is not a number.
            Stopped: as the watcher says.
        """
        progress = self.progress
        if self._master_weights is not None:
            self._master_weights.refresh()
        first_epoch = max(0, progress.step - 1) // self.steps_per_epoch  # one that is done may lack its evaluation
        for epoch in range(first_epoch, self.recipe.num_epochs):
            batches = training_batches(self._lengths, self.recipe.batch_size, self._seed, epoch)
            self.model.train()
            for rows in batches[progress.step - epoch * self.steps_per_epoch :]:
                self._step(rows)
                progress.step += 1
                if progress.step % self.log_every == 0 or progress.step == self.num_steps:
                    watcher.at_log(progress, self._means())
                watcher.at_step(self)
            if self.recipe.evaluate_every_epoch or epoch + 1 == self.recipe.num_epochs:
                self._evaluate(epoch + 1, evaluate, headline, watcher)

    def state(self) -> dict[str, Any]:
        """The progress as JSON, but for weights."""
        progress = self.progress
        return {
            "step": progress.step,
            "curve": progress.curve,
            "evaluations": progress.evaluations,
            "best_epoch": progress.best_epoch,
            "sums": self._sums.tolist(),
            "num_summed": self._num_summed,
        }

    def restore(self, state: dict[str, Any], best_weights: dict[str, Tensor] | None) -> None:
        """Go on from what `state` gave."""
        names = ("step", "curve", "evaluations", "best_epoch")
        self.progress = Progress(**{name: state[name] for name in names}, best_weights=best_weights)
        self._sums = torch.tensor(state["sums"], device=self._device)
        self._num_summed = state["num_summed"]

    def decay(self, num_steps: int) -> float:
        """What weight decay has multiplied a token's embedding that no row uses by after `num_steps`."""
        embedding = self.model.encoder.embeddings.token.weight
        if not embedding.requires_grad:
            return 1.0
        [group] = [group for group in self.optimizer.param_groups if any(p is embedding for p in group["params"])]
        decay = self.recipe.weight_decay * group.get("rate_factor", 1.0)
        return math.prod(1.0 - self._rate(step) * decay for step in range(num_steps))

    def _rate(self, step: int) -> float:
        return self.recipe.learning_rate * linear_warmup_decay(step, self.num_steps, self._num_warmup_steps)

    def _step(self, rows: npt.NDArray[np.int64]) -> None:
        step = self.progress.step
        rate = self._rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("rate_factor", 1.0)
        batch = collate(self._features, rows, self._pad_id, self._unpadded).to(self._device)
        with autocast(self._device, self._bf16):
            logits = self.model(batch, DropoutKey(self._seed, step, batch.samples), self._context)
        loss = self.model.loss(logits, batch.targets)
        loss.backward()
        if self._master_weights is not None:
            self._master_weights.collect_gradients(only_pass=True)
        norm = self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._sums += torch.stack((loss.detach(), norm))
        self._num_summed += 1

    def _clip(self) -> Tensor:
        """Scale the gradients to the recipe's norm at most; gives their norm before that."""
        if self._master_weights is not None:
            return self._master_weights.clip(self.recipe.max_grad_norm)
        return torch.nn.utils.clip_grad_norm_(self._parameters, self.recipe.max_grad_norm)

    def _means(self) -> dict[str, float]:
        """Mean loss and gradient norm since the last call; the loss goes into the curve."""
        step = self.progress.step
        loss, norm = (self._sums / self._num_summed).tolist()
        if not math.isfinite(loss):
            raise NonFinite(f"the loss is {loss} at step {step}; lower the learning rate")
        self._sums.zero_()
        self._num_summed = 0
        self.progress.curve.append({"step": step, "loss": round(loss, 6)})
        return {"train/loss": loss, "train/grad_norm": norm, "train/learning_rate": self._rate(step - 1)}

    def _evaluate(self, epoch: int, evaluate: Callable[[], EvalResult], headline: str, watcher: Watcher) -> None:
        progress = self.progress
        if progress.evaluations and progress.evaluations[-1]["epoch"] >= epoch:
            return  # resumed from a checkpoint that was saved after it
        outcome = evaluate()
        previous = [record["scores"][headline] for record in progress.evaluations]
        progress.evaluations.append({"epoch": epoch, "step": progress.step, "scores": outcome.scores})
        if not previous or outcome.scores[headline] > max(previous):
            progress.best_epoch, progress.best_outcome = epoch, outcome
            if self.recipe.evaluate_every_epoch:
                weights = self.model.state_dict()
                progress.best_weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        watcher.at_evaluation(progress, outcome)


def predict(
    model: TaskModel,
    features: Features,
    pad_id: int,
    bf16: bool,
    between: Callable[[], None] = lambda: None,
) -> npt.NDArray[np.float32]:
    """The head's outputs for all rows: (rows, width), or (tokens, width) for span and tags.

    `between` is called after each batch (and may raise to end the evaluation).
    """
    device = next(model.parameters()).device
    outputs = np.zeros((model.head.num_output_rows(features), model.output_width), dtype=np.float32)
    max_tokens = _EVALUATION_TOKENS.get(device.type, 4096) // features.group_size
    model.eval()
    with torch.inference_mode(), autocast(device, bf16):
        for rows in evaluation_batches(features.row_lengths, max_tokens):
            logits = model(collate(features, rows, pad_id).to(device)).cpu().numpy()
            if model.head.reads_tokens:
                scatter_tokens(features, rows, logits, outputs)
            else:
                outputs[rows] = logits
            between()
    return outputs


def autocast(device: torch.device, bf16: bool) -> contextlib.AbstractContextManager[Any]:
    """bf16 matrix products on `device`, or nothing."""
    return torch.autocast(device.type, torch.bfloat16) if bf16 else contextlib.nullcontext()
