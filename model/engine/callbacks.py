"""Callbacks of the training loop: loss sums, step skipping, checkpoints and the status file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.common import files
from model.common.background import BackgroundTask
from model.common.ownership import require_ownership
from model.common.status import Status
from model.data.loader import Metric
from model.engine.checkpoint import Checkpoint, Checkpoints, optimizer_moments, restore_moments
from model.engine.distributed import SavingGroup, shares_directory
from model.engine.tensor_files import HostCopies
from model.engine.trainer import Callback, StepResult, Trainer
from model.optim.optimizers import SkipStep
from model.optim.sharding import is_sharded, own_offsets, own_part, own_shards, wholes

_TENSOR = ":"  # in the names of the tensors that callbacks keep in a checkpoint, and in no parameter's name


@dataclass
class Interval:
    """Sums over some steps, or over an evaluation."""

    totals: list[Any]  # of the metrics: numbers, or () tensors
    num_sequences: int = 0
    num_predictions: int = 0
    num_steps: int = 0
    num_skipped: int = 0
    grad_norms: float = 0.0  # sum, before clipping

    def means(self, metrics: Sequence[Metric]) -> dict[str, Any]:
        """Mean of each metric, and their weighted sum as "loss"."""
        counts = {"prediction": self.num_predictions, "sequence": self.num_sequences, "step": self.num_steps}
        means = {metric.name: total / max(1, counts[metric.per]) for metric, total in zip(metrics, self.totals)}
        return {**means, "loss": sum(metric.weight * means[metric.name] for metric in metrics if metric.weight)}


class LossLogger(Callback):
    """Sums the metrics on the device, and reports each interval of steps.

    Args:
        every_steps: length of an interval; the last step ends one, too.
        report: called as report(trainer, interval, result) after the last step of an interval.
    """

    def __init__(
        self, metrics: Sequence[Metric], every_steps: int, report: Callable[[Trainer, Interval, StepResult], None]
    ) -> None:
        self._metrics, self._every, self._report = metrics, every_steps, report
        self._interval = Interval([0.0] * len(metrics))
        self._sums: Tensor | None = None  # not yet in the interval: metrics, norms, predictions, sequences, skipped

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        device, ranks, counts = result.sums.device, trainer.fabric.world_size, result.counts
        share = torch.tensor([counts.num_predictions / ranks, counts.num_sequences / ranks, 0.0], dtype=torch.float64)
        norm = (result.grad_norm / ranks).double()[None]
        step = torch.cat([result.sums, norm, share.to(device, non_blocking=True)])
        if result.skip is not None:
            skipped = torch.zeros_like(step)
            skipped[-1] = 1 / ranks
            step = torch.where(result.skip > 0, skipped, step)
        self._sums = step if self._sums is None else self._sums + step
        self._interval.num_steps += 1
        if trainer.step % self._every == 0 or result.is_last:
            self._drain(trainer)
            done, self._interval = self._interval, Interval([0.0] * len(self._metrics))
            self._report(trainer, done, result)

    def state(self, trainer: Trainer) -> dict[str, Any]:
        self._drain(trainer)
        return {"interval": dict(vars(self._interval))}

    def restore(self, trainer: Trainer, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._interval, self._sums = Interval(**state["interval"]), None

    def _drain(self, trainer: Trainer) -> None:
        if self._sums is None:
            return
        *totals, norms, predictions, sequences, skipped = trainer.all_ranks(self._sums)
        into, self._sums = self._interval, None
        ranks = trainer.fabric.world_size  # by which losses per step are weighted on each rank
        for index, (metric, total) in enumerate(zip(self._metrics, totals)):
            into.totals[index] += total / ranks if metric.per == "step" else total
        into.grad_norms += norms
        into.num_predictions += round(predictions)
        into.num_sequences += round(sequences)
        into.num_skipped += round(skipped)


class SkipSpikes(Callback):
    """Skips steps whose gradient is not finite or is a spike (see `model.optim.optimizers.SkipStep`)."""

    def __init__(self, spike_factor: float | None, device: torch.device) -> None:
        self._guard = SkipStep(spike_factor, device)

    def on_gradients(self, trainer: Trainer, grad_norm: Tensor) -> None:
        trainer.optimizer.skip = self._guard.judge(grad_norm)

    def state(self, trainer: Trainer) -> dict[str, Any]:
        return {"guard": self._guard.state()}

    def restore(self, trainer: Trainer, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._guard.restore(state["guard"])


class EverySteps(Callback):
    """Calls `action` every `steps` steps and after the last one, outside of the measured training time."""

    def __init__(self, steps: int, action: Callable[[Trainer], None]) -> None:
        self._steps, self._action = steps, action

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        if trainer.step % self._steps == 0 or result.is_last:
            with trainer.outside():
                self._action(trainer)


class OwnerCheck(Callback):
    """Ends training before anything is written if a later attempt owns the run directory."""

    def __init__(self, run_dir: Path, attempt: int) -> None:
        self._run_dir, self._attempt = run_dir, attempt

    def on_train_start(self, trainer: Trainer) -> None:
        require_ownership(self._run_dir, self._attempt)

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self.on_train_start(trainer)

    def on_pause(self, trainer: Trainer) -> None:
        self.on_train_start(trainer)


class StatusWriter(Callback):
    """Keeps status.json up to date on rank 0, where `status` is not None."""

    def __init__(self, status: Status | None) -> None:
        self._status = status

    def on_train_start(self, trainer: Trainer) -> None:
        if self._status is not None:
            self._status.running(trainer.step, trainer.num_steps)

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self.on_train_start(trainer)


class Checkpointing(Callback):
    """Saves checkpoints, and resumes from one.

    Args:
        state: returns what else a checkpoint keeps, such as the identity of the run.
        restore: called with the checkpoint to resume from; restores what `state` returned and returns true, or returns
            false if the checkpoint is of another run, or raises.
        every_steps: save after these steps, and after the last one.
        every_seconds: save when so much training time has passed since the last checkpoint.
        on_save: called at each checkpoint, on every rank; returns what to do as soon as the checkpoint is on disk.
        on_pause_after_seconds: on a pause, save only if the run has trained for so long.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        state: Callable[[], Mapping[str, Any]],
        restore: Callable[[Checkpoint], bool],
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        on_save: Callable[[Trainer], Callable[[], None]] = lambda trainer: lambda: None,
        on_pause_after_seconds: float = 0.0,
    ) -> None:
        self._checkpoints, self._run_state, self._restore_run = checkpoints, state, restore
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._on_save, self._worth_saving = on_save, on_pause_after_seconds
        self._saved_at_seconds, self._saved_step = 0.0, -1
        self._host_weights, self._host_moments = HostCopies(), HostCopies()
        self._write = BackgroundTask("checkpoint")
        self._group: SavingGroup | None = None

    def resume(self, trainer: Trainer, found: Checkpoint | None) -> bool:
        """Restore `found` into the trainer if it belongs to this run; return whether it does."""
        if found is None or not self._restore_run(found):
            return False
        with torch.no_grad():
            for name, tensor in trainer.module.state_dict().items():
                tensor.copy_(own_part(found.weights[name], tensor))
        restore_moments(trainer.module, trainer.optimizer, found.moments)
        trainer.restore(found.state, {name: t for name, t in found.weights.items() if _TENSOR in name})
        return True

    def on_train_start(self, trainer: Trainer) -> None:
        self._saved_at_seconds = trainer.agreed_seconds
        is_in_parts = any(is_sharded(tensor) for tensor in trainer.module.state_dict().values())
        if is_in_parts and shares_directory(trainer.fabric, self._checkpoints.directory):
            self._group = SavingGroup(trainer.fabric)

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        by_step = self._every_steps is not None and (trainer.step % self._every_steps == 0 or result.is_last)
        waited = trainer.agreed_seconds - self._saved_at_seconds
        if by_step or (self._every_seconds is not None and waited >= self._every_seconds):
            self.save(trainer, result.is_last)

    def on_pause(self, trainer: Trainer) -> None:
        """Save, unless training again is quicker than saving."""
        if trainer.agreed_seconds >= self._worth_saving and trainer.step != self._saved_step:
            self.save(trainer, is_final=True)

    def on_train_end(self, trainer: Trainer) -> None:
        self._write.wait()

    def save(self, trainer: Trainer, is_final: bool = False) -> None:
        """Save a checkpoint of the current step. Every rank has to call this.

        Training may continue when this returns: the tensors are copied, and a background thread writes them. A final
        checkpoint is on disk when this returns.

        Raises what the previous write raised.
        """
        self._write.wait()  # it reads the copies that are overwritten here
        content = files.json_bytes({**self._run_state(), **trainer.state()})  # later steps change it
        kept = {name: tensor for callback in trainer.callbacks for name, tensor in callback.tensors().items()}
        weights = {**trainer.module.state_dict(), **kept}
        moments = optimizer_moments(trainer.module, trainer.optimizer)
        step, is_first = trainer.step, trainer.fabric.is_global_zero
        own_weights = self._host_weights.of(self._shares(weights, is_first), is_final)
        own_moments = self._host_moments.of(self._shares(moments, is_first), is_final)
        offsets = None if self._group is None else own_offsets({**weights, **moments})
        self._saved_at_seconds, self._saved_step = trainer.agreed_seconds, trainer.step
        after = self._on_save(trainer)

        def write() -> None:
            self._checkpoints.save(step, content, own_weights, own_moments, self._group, offsets)
            after()

        if is_first or self._group is not None:
            if is_final:
                write()
            else:
                self._write.start(write)

    def _shares(self, tensors: Mapping[str, Tensor], is_first_rank: bool) -> Iterator[tuple[str, Tensor]]:
        """This rank's share of what a checkpoint keeps of `tensors`. Every rank has to take all of it."""
        if self._group is not None:
            yield from own_shards(tensors, is_first_rank)
            return
        for name, tensor in wholes(tensors):
            if is_first_rank:
                yield name, tensor
