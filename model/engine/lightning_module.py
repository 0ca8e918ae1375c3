"""The training engine's module and loader as a `LightningModule` and a `LightningDataModule`, for `lightning.Trainer`.

`model.engine.trainer.Trainer` is the engine of Cloze. With these classes, `lightning.Trainer` takes the same steps:
the same batches, losses, learning rates, clipping and optimizer. docs/lightning.md has an example and the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from model.data.loader import Metric, StepData
from model.engine.callbacks import Interval
from model.engine.trainer import Loader, TrainingSchedule, start_step
from model.ops.attention_kernels import AttentionKernel
from model.ops.forward_context import ForwardContext
from model.optim.optimizers import Optimizer, SkipStep


class ClozeLightningModule(lightning.LightningModule):
    """Trains `module` under `lightning.Trainer`, which needs `max_steps=schedule.num_steps`.

    One `training_step` is one optimizer step: the module accumulates gradients, clips them and sets the learning rate,
    so leave `accumulate_grad_batches` and `gradient_clip_val` of `lightning.Trainer` at their defaults. Time budgets
    are not supported.

    Logs `train/loss`, `train/learning_rate`, `train/grad_norm` (before clipping) and the mean of each metric.

    Args:
        module: called as module(batch, weights, context), it returns the loss (a scalar) and the sums of `metrics`.
        skip_bad_steps: skip steps whose gradient is not finite, and log `train/skipped_steps`.
        skip_spikes_above: also skip steps whose gradient norm exceeds this multiple of the typical norm.
    """

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: Callable[[nn.Module], Optimizer],
        schedule: TrainingSchedule,
        metrics: Sequence[Metric],
        *,
        max_grad_norm: float,
        kernel: AttentionKernel = "batched",
        skip_bad_steps: bool = False,
        skip_spikes_above: float | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.module = module.train()
        self._make_optimizer, self._schedule, self._metrics = make_optimizer, schedule, metrics
        self._max_grad_norm, self._context = max_grad_norm, ForwardContext(kernel=kernel)
        self._skips, self._spike_factor = skip_bad_steps or skip_spikes_above is not None, skip_spikes_above
        self._skip_step: SkipStep | None = None
        self._restored: Mapping[str, float] | None = None

    def configure_optimizers(self) -> Optimizer:
        """Make the optimizer, on the device that Lightning has moved the module to."""
        if self._skips:
            self._skip_step = SkipStep(self._spike_factor, self.device)
            if self._restored is not None:
                self._skip_step.restore(self._restored)
        return self._make_optimizer(self.module)

    def training_step(self, data: StepData, batch_idx: int) -> Tensor:
        """Take one optimizer step, and return its loss."""
        wrapped = self.optimizers()
        assert isinstance(wrapped, LightningOptimizer) and isinstance(wrapped.optimizer, Optimizer)
        optimizer = wrapped.optimizer
        rate = start_step(optimizer, self._schedule, self.global_step, 0.0)
        totals = torch.zeros(len(self._metrics), dtype=torch.float64, device=self.device)
        for batch, weights in zip(data.batches, data.weights):
            weight = torch.tensor(weights, dtype=torch.float32, device=self.device)
            loss, sums = self.module(batch, weight, self._context)
            self.manual_backward(loss)
            totals += sums
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._max_grad_norm)
        values: dict[str, Any] = {"learning_rate": rate, "grad_norm": norm}
        if self._skip_step is not None:
            optimizer.skip = values["skipped_steps"] = self._skip_step.judge(norm)
        wrapped.step()
        wrapped.zero_grad(set_to_none=True)
        counts, totals = data.counts, self.trainer.strategy.reduce(totals, reduce_op="sum")
        # Each rank's sum of a metric per step is weighted by the number of ranks.
        interval = Interval(list(totals), counts.num_sequences, counts.num_predictions, self.trainer.world_size)
        values |= interval.means(self._metrics)
        self.log_dict({f"train/{name}": value for name, value in values.items()})
        return values["loss"]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the running mean of gradient norms, which spikes are compared with."""
        if self._skip_step is not None:
            checkpoint["skip_step"] = self._skip_step.state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore what `on_save_checkpoint` kept, when the optimizer is made."""
        self._restored = checkpoint.get("skip_step")


class ClozeDataModule(lightning.LightningDataModule):
    """Yields one `StepData` per optimizer step, from the trainer's `global_step` on, so that resuming is exact.

    Args:
        make_loader: called as make_loader(rank, num_ranks), it returns the loader of that rank.
    """

    def __init__(self, make_loader: Callable[[int, int], Loader], num_steps: int) -> None:
        super().__init__()
        self._make_loader, self._num_steps = make_loader, num_steps

    def train_dataloader(self) -> _Steps:
        """The remaining steps of the run; they are one epoch of Lightning."""
        trainer = self.trainer
        assert trainer is not None, "lightning.Trainer sets it"
        return _Steps(self._make_loader(trainer.global_rank, trainer.world_size), trainer, self._num_steps)


class _Steps:
    """The data of the steps that `trainer` has not taken."""

    def __init__(self, loader: Loader, trainer: lightning.Trainer, num_steps: int) -> None:
        self._loader, self._trainer, self._num_steps = loader, trainer, num_steps

    def __len__(self) -> int:
        return self._num_steps

    def __iter__(self) -> Iterator[StepData]:
        return map(self._loader.at, range(self._trainer.global_step, self._num_steps))

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the trainer's checkpoint has the step. Without this method, Lightning warns of inexact resuming."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
