"""The training loop that pre-training and fine-tuning share.

`Trainer` runs forward, backward, clipping and the optimizer step. Everything else is a `Callback`: checkpoints,
metrics, validation, step skipping. A batch is a function of the step number, so resuming means setting `Trainer.step`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from model.common.errors import Paused
from model.data.loader import Counts, StepData
from model.engine.distributed import Fabric
from model.ops.attention_kernels import AttentionKernel
from model.ops.forward_context import ForwardContext
from model.optim.optimizers import MasterWeights, Optimizer
from model.optim.sharding import whole

_STEPS_BETWEEN_VOTES = {"cpu": 1, "cuda": 10}
"""Steps between two votes on stopping; on a GPU each vote waits for the device to finish its queue."""


class Loader(Protocol):
    """Batches as a function of the step."""

    def at(self, step: int) -> StepData:
        """This rank's share of `step`."""
        ...


class TrainingSchedule(Protocol):
    """Length of the run and learning rates as functions of the step.

    `seconds` is the training time before the step on which all ranks agree; only time budgets depend on it.
    """

    @property
    def num_steps(self) -> int:
        """Steps of the whole run, as far as known."""
        ...

    def fit(self, step: int, seconds: float) -> None:
        """Shorten the run to its time budget, where it has one."""
        ...

    def learning_rate(self, step: int, seconds: float) -> float:
        """Learning rate of `step`."""
        ...

    def restarts(self, step: int) -> bool:
        """Check whether the optimizer's state is reset before `step`."""
        ...


class StepResult(NamedTuple):
    """A finished optimizer step, as callbacks see it."""

    sums: Tensor
    """(num_metrics,) float64: this rank's sums of the module's metrics, on the device."""
    counts: Counts
    """Counts of the whole step, over all ranks."""
    grad_norm: Tensor
    """() fp32: norm of the gradient before clipping, on the device."""
    skip: Tensor | None
    """() fp32: 1 where the optimizer skipped the step; None if steps are never skipped."""
    learning_rate: float
    data_seconds: float
    """Time that the next step's data took after this step was launched."""
    is_last: bool


class Callback:
    """Hooks of the training loop. All do nothing by default."""

    def on_train_start(self, trainer: Trainer) -> None:
        """Called before the first step of this process, after a checkpoint was restored."""

    def on_gradients(self, trainer: Trainer, grad_norm: Tensor) -> None:
        """Called before each optimizer step; may set `trainer.optimizer.skip`."""

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        """Called after each step, when `trainer.step` counts it."""

    def on_pause(self, trainer: Trainer) -> None:
        """Called before `Trainer.train` raises Paused."""

    def on_train_end(self, trainer: Trainer) -> None:
        """Called last, however training ends: at its end, by a pause, or by an exception."""

    def state(self, trainer: Trainer) -> dict[str, Any]:
        """Return what a checkpoint keeps, as JSON; keys are unique among callbacks. Called on every rank."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Return further tensors that a checkpoint keeps; names are unique."""
        return {}

    def restore(self, trainer: Trainer, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Restore what `state` and `tensors` returned."""


class Trainer:
    """Trains `module` on the batches of `loader`.

    Args:
        fabric: launched; it handles device, strategy and precision.
        module: called as module(batch, weights, context), it returns the loss (a scalar) and the sums of its metrics.
        make_optimizer: makes the optimizer of the module's parameters after the strategy has wrapped (or sharded) them.
        callbacks: called in this order.
        master_weights: train on bf16 copies of the fp32 matrices (CPU only); `tied` is a matrix besides those of
            `Linear` layers that is also used as one.
        should_stop: asked after every step; when true on any rank, training pauses.
    """

    def __init__(
        self,
        fabric: Fabric,
        module: nn.Module,
        loader: Loader,
        make_optimizer: Callable[[nn.Module], Optimizer],
        schedule: TrainingSchedule,
        callbacks: Sequence[Callback],
        *,
        max_grad_norm: float,
        kernel: AttentionKernel = "batched",
        master_weights: bool = False,
        tied: Tensor | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.fabric, self.module, self.loader, self.schedule = fabric, module, loader, schedule
        self.callbacks = callbacks
        self.step, self.num_tokens = 0, 0  # done so far
        self.seconds = 0.0  # training time so far, including earlier processes
        self.agreed_seconds = 0.0  # `seconds` of rank 0 at the last vote: the same on every rank
        self.outside_seconds = 0.0  # time that this process spent in `outside`
        self._max_grad_norm, self._should_stop = max_grad_norm, should_stop
        self._model = fabric.setup_module(module)
        self.optimizer = make_optimizer(module)
        optimizer = fabric.setup_optimizers(self.optimizer)
        assert not isinstance(optimizer, tuple)
        self._optimizer = optimizer
        self._parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self._master_weights = MasterWeights(module, tied, self.optimizer) if master_weights else None
        copies = None if self._master_weights is None else self._master_weights.copies
        self.context = ForwardContext(kernel=kernel, low_precision=copies)

    @property
    def num_steps(self) -> int:
        """Steps of the whole run, as far as known."""
        return self.schedule.num_steps

    def train(self) -> None:
        """Train from `step` to the end.

        Raises:
            Paused: the run was asked to stop; callbacks have saved what they keep.
        """
        started = time.perf_counter() - self.seconds
        self.agreed_seconds = self.seconds
        self.module.train()
        if self._master_weights is not None:
            self._master_weights.refresh()
        try:
            for callback in self.callbacks:
                callback.on_train_start(self)
            data = self._next()
            while data is not None:
                sums, norm, rate = self._optimize(data)
                counts = data.counts
                self.step += 1
                self.num_tokens += counts.num_tokens
                before = time.perf_counter()
                data = self._next()  # on a GPU, while it still computes the step
                waited = time.perf_counter() - before
                result = StepResult(sums, counts, norm, self.optimizer.skip, rate, waited, is_last=data is None)
                for callback in self.callbacks:
                    callback.on_step_end(self, result)
                self.seconds = time.perf_counter() - started
                self._pause_if(data is not None and self._vote())
        except Paused:
            for callback in self.callbacks:
                callback.on_pause(self)
            raise
        finally:
            for callback in self.callbacks:
                callback.on_train_end(self)

    def check_stop(self) -> None:
        """Raise Paused if this process was asked to stop, for long work between steps (one rank only)."""
        self._pause_if(self._should_stop())

    def _pause_if(self, asked: bool) -> None:
        if asked:
            raise Paused(f"stopped at step {self.step:,} of {self.num_steps:,}; run it again to continue")

    def state(self) -> dict[str, Any]:
        """The progress of the loop and of all callbacks, as JSON."""
        found: dict[str, Any] = {"step": self.step, "num_tokens": self.num_tokens}
        for callback in self.callbacks:
            found |= callback.state(self)
        return found

    def restore(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned and the tensors of the callbacks."""
        self.step, self.num_tokens = state["step"], state["num_tokens"]
        for callback in self.callbacks:
            callback.restore(self, state, tensors)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Exclude the time spent inside (validation, for example) from the measured training speed."""
        before = time.perf_counter()
        try:
            yield
        finally:
            self.outside_seconds += time.perf_counter() - before

    def all_ranks(self, numbers: Tensor) -> list[float]:
        """Sums over ranks of a vector on the device."""
        sums = self.fabric.all_reduce(numbers, reduce_op="sum")
        assert isinstance(sums, Tensor)
        return sums.tolist()

    def _next(self) -> StepData | None:
        """Data of the next step, on the device; None after the last step."""
        self.schedule.fit(self.step, self.agreed_seconds)
        return self.loader.at(self.step).to(self.fabric.device) if self.step < self.num_steps else None

    def _optimize(self, data: StepData) -> tuple[Tensor, Tensor, float]:
        """Take one step; return this rank's sums of the metrics, the gradient norm and the learning rate."""
        rate = start_step(self.optimizer, self.schedule, self.step, self.agreed_seconds)
        totals: Tensor | None = None
        last = len(data.batches) - 1
        for index, (batch, weights) in enumerate(zip(data.batches, data.weights)):
            weight = torch.tensor(weights, dtype=torch.float32).to(self.fabric.device, non_blocking=True)
            with self.fabric.no_backward_sync(self._model, enabled=index < last):
                loss, sums = self._model(batch, weight, self.context)
                self.fabric.backward(loss)
            if self._master_weights is not None:
                self._master_weights.collect_gradients(only_pass=last == 0)
            totals = sums.double() if totals is None else totals + sums
        assert totals is not None, "a step has at least one batch"
        if self._master_weights is not None:
            norm = self._master_weights.clip(self._max_grad_norm)
        else:
            norm = whole(torch.nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm))
        for callback in self.callbacks:
            callback.on_gradients(self, norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return totals, norm, rate

    def _vote(self) -> bool:
        """Check whether any rank was asked to stop, and agree on the training time."""
        asked, ranks = self._should_stop(), self.fabric.world_size
        if ranks == 1:
            self.agreed_seconds = self.seconds
            return asked
        if self.step % _STEPS_BETWEEN_VOTES[self.fabric.device.type]:
            return False
        seconds = self.seconds if self.fabric.is_global_zero else 0.0
        numbers = torch.tensor([float(asked), seconds], dtype=torch.float64, device=self.fabric.device)
        votes, self.agreed_seconds = self.all_ranks(numbers)
        return votes > 0


def start_step(optimizer: Optimizer, schedule: TrainingSchedule, step: int, seconds: float) -> float:
    """Set the learning rates of `step`, reset the optimizer's state if the schedule says so, and return the rate."""
    if schedule.restarts(step):
        optimizer.state.clear()
    rate = schedule.learning_rate(step, seconds)
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate_factor", 1.0)
    return rate
