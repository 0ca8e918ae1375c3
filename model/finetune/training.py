"""Fine-tuning data, module and evaluation for the training loop of `model.engine.trainer`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from model.config.finetuning import FinetuneRecipe
from model.config.schedules import linear_warmup_decay
from model.data.collator import Counts
from model.data.loader import Metric, StepData
from model.engine.distributed import Fabric
from model.engine.trainer import Callback, StepResult, Trainer
from model.finetune.build import factors_of
from model.finetune.data import DevResult
from model.heads.batches import FinetuneBatch, collate, training_batches
from model.heads.features import Features
from model.heads.head import Head
from model.heads.task_model import TaskModel
from model.ops.forward_context import DEFAULT_CONTEXT, ForwardContext
from model.ops.fused_cpu import IGNORED
from model.ops.keyed_dropout import DropoutKey
from model.optim.optimizers import make_optimizer

METRICS = (Metric("loss", "step", 1.0),)  # a step's loss is the mean over its rows
_BEST = "best:"  # before the names of the weights that were best on dev so far, in a checkpoint


class FinetuneInput(NamedTuple):
    """A training batch, and the step and samples that key its dropout."""

    batch: FinetuneBatch
    samples: Tensor
    """(sequences,) int64, on the CPU."""
    step: int

    def to(self, device: torch.device) -> FinetuneInput:
        return self._replace(batch=self.batch.to(device))


def make_trainer(
    fabric: Fabric,
    model: TaskModel,
    features: Features,
    recipe: FinetuneRecipe,
    seed: int,
    pad_id: int,
    *,
    bf16: bool = False,
    callbacks: Sequence[Callback] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> Trainer:
    """Make a trainer of `model`, which is on the fabric's device, on the rows of `features`.

    Args:
        seed: keys the order of the rows and dropout.
        bf16: whether matrix products are computed in bf16 (weights and losses stay fp32).
    """
    on_cpu = fabric.device.type == "cpu"
    loader = FinetuneLoader(features, recipe, model.head, seed, pad_id, fabric.global_rank, fabric.world_size)
    kind, factors = "adamw" if recipe.bias_correction else "bert_adamw", factors_of(model, recipe)
    return Trainer(
        fabric,
        FinetuneModule(model, seed),
        loader,
        lambda _: make_optimizer(model, kind, recipe.learning_rate, recipe.weight_decay, rate_factors=factors),
        LinearSchedule(recipe, loader.num_steps),
        callbacks,
        max_grad_norm=recipe.max_grad_norm,
        master_weights=bf16 and on_cpu and fabric.world_size == 1,
        should_stop=should_stop,
    )


def unused_row_decay(trainer: Trainer, model: TaskModel, num_steps: int) -> float:
    """Return the factor by which weight decay shrinks an embedding row that no text uses, within `num_steps`."""
    embedding = model.encoder.embeddings.token.weight
    if not embedding.requires_grad:
        return 1.0
    [group] = [group for group in trainer.optimizer.param_groups if any(p is embedding for p in group["params"])]
    decay = group["weight_decay"] * group.get("rate_factor", 1.0)
    return math.prod(1.0 - trainer.schedule.learning_rate(step, 0.0) * decay for step in range(num_steps))


class FinetuneModule(nn.Module):
    """An encoder with its head, and its loss, as the training loop calls them. `seed` keys dropout."""

    def __init__(self, model: TaskModel, seed: int) -> None:
        super().__init__()
        self.model, self._seed = model, seed

    def forward(
        self,
        given: FinetuneInput | FinetuneBatch,
        weights: Tensor | None = None,
        context: ForwardContext = DEFAULT_CONTEXT,
    ) -> Any:
        """The loss of a batch and its sum (1,); without `weights`, the logits.

        Args:
            weights: (1,) weight of the batch's mean loss: 1, or with several ranks this rank's share of the step.
        """
        if weights is None:
            assert isinstance(given, FinetuneBatch)
            return self.model(given)
        assert isinstance(given, FinetuneInput)
        batch = given.batch
        logits = self.model(batch, DropoutKey(self._seed, given.step, given.samples), context)
        with torch.autocast(logits.device.type, enabled=False):
            loss = self.model.loss(logits, batch.targets) * weights[0]
        return loss, loss.detach()[None]


class FinetuneLoader:
    """Training batches as a function of the step: the rows of each epoch in an order keyed by (seed, epoch).

    Args:
        head: the head that reads the batches; it decides whether padding can be left out.
        rank, num_ranks: each batch is split evenly, in order, among ranks.
    """

    def __init__(
        self,
        features: Features,
        recipe: FinetuneRecipe,
        head: Head,
        seed: int,
        pad_id: int,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        self._features, self._batch_size, self._seed = features, recipe.batch_size, seed
        self._composition = recipe.batches or head.batches
        # The last layer of heads that read tokens computes every position of the padded rectangle.
        self._unpadded = not head.reads_tokens
        self._pad_id, self._rank, self._num_ranks = pad_id, rank, num_ranks
        self._lengths = features.row_lengths
        self.steps_per_epoch = math.ceil(features.num_rows / recipe.batch_size)
        self.num_steps = self.steps_per_epoch * recipe.num_epochs
        self._epoch, self._batches = -1, list[npt.NDArray[np.int64]]()

    def at(self, step: int) -> StepData:
        epoch, number = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._batches = training_batches(self._lengths, self._batch_size, self._seed, epoch, self._composition)
        rows = self._batches[number]
        mine = np.array_split(rows, self._num_ranks)[self._rank]
        # A rank without rows computes one with weight 0, since the ranks compute together.
        batch = collate(self._features, mine if len(mine) else rows[:1], self._pad_id, self._unpadded)
        whole = self._num_targets(rows)
        weight = 1.0 if self._num_ranks == 1 else self._num_ranks * self._num_targets(mine) / whole
        counts = Counts(len(rows), whole, int(self._lengths[rows].sum()))
        return StepData([FinetuneInput(batch, batch.samples, step)], [[weight]], counts)

    def _num_targets(self, rows: npt.NDArray[np.int64]) -> int:
        """Number of targets whose mean is the loss: rows, or labeled tokens."""
        if not self._features.per_token:
            return len(rows)
        offsets, targets = self._features.sequences.offsets, self._features.targets
        return sum(int((targets[offsets[row] : offsets[row + 1]] != IGNORED).sum()) for row in rows)


class LinearSchedule:
    """Linear warm-up, then linear decay to 0."""

    def __init__(self, recipe: FinetuneRecipe, num_steps: int) -> None:
        self.num_steps, self._rate = num_steps, recipe.learning_rate
        self._num_warmup_steps = int(num_steps * recipe.warmup_fraction)

    def fit(self, step: int, seconds: float) -> None:
        """Fine-tuning has no time budget."""

    def learning_rate(self, step: int, seconds: float = 0.0) -> float:
        return self._rate * linear_warmup_decay(step, self.num_steps, self._num_warmup_steps)

    def restarts(self, step: int) -> bool:
        return False


class EpochEvaluation(Callback):
    """Evaluates after every epoch (or after the last one only), and keeps the best result on dev.

    With `every_epoch`, the weights with the best score by `headline` (the earliest of equals) are kept in memory and in
    checkpoints.

    Args:
        evaluate: returns the result on dev, and the outputs it was made from; every rank calls it.
        headline: the metric that decides, on the rows for selection.
        report: called as report(step, result).
    """

    def __init__(
        self,
        recipe: FinetuneRecipe,
        features: Features,
        evaluate: Callable[[Trainer], tuple[DevResult, Any]],
        headline: str,
        report: Callable[[int, DevResult], None],
    ) -> None:
        self.steps_per_epoch = math.ceil(features.num_rows / recipe.batch_size)
        self.num_steps = self.steps_per_epoch * recipe.num_epochs
        self._every_epoch = recipe.evaluate_every_epoch
        self._evaluate, self.headline, self._report = evaluate, headline, report
        self.evaluations: list[dict[str, Any]] = []  # epoch, step, scores, and scores for selection if on other rows
        self.best_epoch = 0
        self.best: tuple[DevResult, Any] | None = None  # result and outputs, unless of an earlier process
        self.best_weights: dict[str, Tensor] | None = None  # of the module

    def on_train_start(self, trainer: Trainer) -> None:
        """Make up for an evaluation that an interrupted process did not get to."""
        if trainer.step:
            self.on_step_end(trainer)

    def state(self, trainer: Trainer) -> dict[str, Any]:
        return {"evaluations": self.evaluations, "best_epoch": self.best_epoch}

    def tensors(self) -> dict[str, Tensor]:
        return {f"{_BEST}{name}": tensor for name, tensor in (self.best_weights or {}).items()}

    def restore(self, trainer: Trainer, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.evaluations, self.best_epoch = state["evaluations"], state["best_epoch"]
        best = {name.removeprefix(_BEST): tensor for name, tensor in tensors.items() if name.startswith(_BEST)}
        self.best_weights = best or None

    def on_step_end(self, trainer: Trainer, step: StepResult | None = None) -> None:
        epoch, rest = divmod(trainer.step, self.steps_per_epoch)
        due = not rest and (self._every_epoch or trainer.step == self.num_steps)
        if not due or (self.evaluations and self.evaluations[-1]["epoch"] >= epoch):
            return
        with trainer.outside():
            result, outputs = self._evaluate(trainer)
        previous = [record.get("selection_scores", record["scores"])[self.headline] for record in self.evaluations]
        record = {"epoch": epoch, "step": trainer.step, "scores": result.reported.scores}
        selection = {} if result.selection is None else {"selection_scores": result.selection.scores}
        self.evaluations.append(record | selection)
        if not previous or result.value(self.headline) > max(previous):
            self.best_epoch, self.best = epoch, (result, outputs)
            if self._every_epoch:
                weights = trainer.module.state_dict()
                self.best_weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self._report(trainer.step, result)
