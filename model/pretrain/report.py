"""The log, metrics log, curve, timing and result of a pre-training run."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from torch import Tensor

from model.common import files
from model.common.errors import Diverged
from model.common.metrics_log import MetricsLog
from model.common.run_dir import RunDir
from model.common.status import Status
from model.config.pretraining import PretrainRun
from model.engine.callbacks import Interval
from model.engine.trainer import Callback, StepResult, Trainer
from model.objectives import Objective

_DIGITS = 6  # of numbers in the result


class Report(Callback):
    """Writes the log, the metrics log, timing.json and result.json on rank 0 (where there is a status).

    The other ranks only keep the curve.
    """

    def __init__(self, run: PretrainRun, objective: Objective, status: Status | None, vocab_size: int) -> None:
        self.run, self.status = run, status
        self.curve: list[dict[str, float]] = []
        self.heldout: list[dict[str, float]] = []
        self._losses = [metric.name for metric in objective.metrics if metric.weight]
        self._num_steps = run.recipe.num_steps
        self._chance_loss = objective.chance_loss(vocab_size)
        self._files = RunDir(run.run_dir)
        if status is not None:
            self._metrics_log = MetricsLog(self._files.metrics_log)

    def say(self, line: str) -> None:
        """Print one line, on rank 0."""
        if self.status is not None:
            print(line, flush=True)

    def state(self, trainer: Trainer) -> dict[str, Any]:
        """Return the curve and the held-out results."""
        return {"curve": self.curve, "heldout": self.heldout}

    def restore(self, trainer: Trainer, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Restore the curve and the held-out results."""
        self.curve, self.heldout = state["curve"], state["heldout"]

    def noted(self) -> tuple[float, float | None]:
        """Return seconds of training and joules (None if unknown) up to the last checkpoint."""
        if not self._files.timing.exists():
            return 0.0, None
        content = files.read_json(self._files.timing)
        return float(content["seconds"]), content.get("energy_joules")

    def interval(
        self, step: int, means: dict[str, float], interval: Interval, result: StepResult, cost: Mapping[str, float]
    ) -> None:
        """Add an interval of steps to the curve, the metrics log and the log.

        Args:
            step: the interval's last step.
            means: the means of the metrics.
            interval: the sums that they were made from.
            result: the last step.
            cost: speed, memory and energy (see `model.engine.speed_monitor.SpeedMonitor.read`).

        Raises:
            Diverged: no step of the interval could be taken, or the loss is above the allowed bound.
        """
        skipped, rate, norm = interval.num_skipped, result.learning_rate, float(result.grad_norm)
        if skipped == interval.num_steps or not math.isfinite(means["loss"]):
            raise Diverged(
                "hopeless",
                f"no usable gradient in the last {skipped} steps, at step {step}; lower the learning rate",
            )
        if not math.isfinite(norm):
            norm = 0.0  # of a skipped step
        entry = {"step": step, **_rounded(means), "learning_rate": rate, "grad_norm": round(norm, _DIGITS)}
        self.curve.append({**entry, "skipped_steps": skipped} if skipped else entry)
        if self.status is not None:
            metrics = {**means, "learning_rate": rate, "grad_norm": norm, "skipped_steps": skipped}
            self._metrics_log.log(step, {**{f"train/{name}": value for name, value in metrics.items()}, **cost})
        losses = ", ".join(f"{name.removesuffix('_loss')} {means[name]:.3f}" for name in self._losses)
        self.say(
            f"step {step:,}/{self._num_steps:,}  loss {means['loss']:.3f} ({losses})  rate {rate:.2e}  "
            f"{cost['train/tokens_per_second']:,.0f} tokens/s" + (f"  ({skipped} steps skipped)" if skipped else "")
        )
        self._check_progress(step, means[self._losses[0]])

    def _check_progress(self, step: int, loss: float) -> None:
        before = self.curve[-2]["step"] if len(self.curve) > 1 else 0
        name = self._losses[0].replace("_", " ")
        for bound in self.run.recipe.give_up_above:
            if before < bound.step <= step and loss > bound.mlm_loss:
                raise Diverged(
                    "hopeless", f"the {name} is {loss:.3f} at step {step}; give_up_above allows {bound.mlm_loss:g}"
                )
        if before >= self.run.recipe.warmup_steps and loss > self._chance_loss + 1:
            raise Diverged(
                "hopeless",
                f"the {name} is {loss:.3f} at step {step}, but a uniform guess has {self._chance_loss:.3f}; "
                "lower the learning rate",
            )

    def validation(self, step: int, means: dict[str, float]) -> None:
        """Add the means over held-out samples."""
        self.heldout.append({"step": step, **_rounded(means)})
        if self.status is None:
            return
        self._metrics_log.log(step, {f"heldout/{name}": value for name, value in means.items()}, stream="heldout")
        shown = [
            f"{name.replace('_', ' ')} {value:{'.1%' if name.endswith('accuracy') else '.3f'}}"
            for name, value in means.items()
            if name != "loss"
        ]
        self.say(f"step {step:,}  held-out: {', '.join(shown)}")

    def probes(self, step: int, scores: Mapping[str, float]) -> None:
        """Add probe scores (0 to 100) to the metrics log and the log; no result depends on them."""
        if self.status is not None:
            self._metrics_log.log(step, {f"probe/{name}": value for name, value in scores.items()}, stream="probe")
            self.say(f"step {step:,}  probes: " + ", ".join(f"{name} {value:.1f}" for name, value in scores.items()))

    def timing(self, seconds: float, num_tokens: int, joules: float | None) -> None:
        """Rewrite timing.json; checkpoints and the result hold nothing that depends on the machine's speed."""
        if self.status is None:
            return
        rate = num_tokens / seconds if seconds else 0.0
        content = {"seconds": seconds, "num_tokens": num_tokens, "tokens_per_second": rate, "time": time.time()}
        files.write_json(self._files.timing, content if joules is None else {**content, "energy_joules": joules})

    def result(self, num_steps: int, num_tokens: int) -> None:
        """Write result.json, the last file: it marks the run as successful."""
        if self.status is None:
            return
        final = {f"train/{name}": value for name, value in (self.curve[-1] if self.curve else {}).items()}
        final |= {f"heldout/{name}": value for name, value in (self.heldout[-1] if self.heldout else {}).items()}
        content: dict[str, Any] = {
            "digest": self.run.digest,
            "name": self.run.name,
            "num_steps": num_steps,
            "num_tokens_seen": num_tokens,
            "final": {name: value for name, value in final.items() if not name.endswith("/step")},
            "curve": self.curve,
            "heldout": self.heldout,
            "versions": versions(),
        }
        files.write_json(self._files.result, content)
        self.status.running(num_steps, num_steps)
        self.status.end("done")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that compute."""
    names = ("torch", "lightning", "numba", "numpy", "safetensors")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def _rounded(means: dict[str, float]) -> dict[str, float]:
    return {name: round(value, _DIGITS) for name, value in means.items()}
