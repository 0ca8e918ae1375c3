"""What a pre-training run says while it goes on, and what it leaves: journal, status, curve, result."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from model.common import files
from model.common.metrics_log import MetricsLog
from model.common.status import Status
from model.config.pretrain_run import PretrainRun
from model.config.pretraining import SentenceObjective
from model.data.collator import Counts

_DIGITS = 6  # of numbers in the result
_PAIR_NAMES: dict[SentenceObjective, str] = {"next_sentence": "nsp", "sentence_order": "sop"}


class Hopeless(Exception):
    """No good end of the run is to be expected."""


@dataclass
class Tally:
    """Sums since the last entry of the curve; `totals` are those of `model.objectives.pretraining_model.NUM_SUMS`."""

    totals: list[float] = field(default_factory=lambda: [0.0] * 4)
    num_sequences: int = 0
    num_predictions: int = 0
    num_steps: int = 0
    num_skipped: int = 0

    def add_totals(self, sums: list[float]) -> None:
        """Add what the device has summed: the losses' sums, predictions, sequences and skipped steps."""
        self.totals = [have + new for have, new in zip(self.totals, sums)]
        self.num_predictions += round(sums[-3])
        self.num_sequences += round(sums[-2])
        self.num_skipped += round(sums[-1])

    def add(self, counts: Counts) -> None:
        """Count one step's samples."""
        self.num_sequences += counts.num_sequences
        self.num_predictions += counts.num_predictions

    def means(self, objective: SentenceObjective) -> dict[str, float]:
        """Losses (nats) and accuracies (0 to 1) as means over predictions and sequences."""
        masked, pair, masked_correct, pair_correct = self.totals
        means = {
            "mlm_loss": masked / max(1, self.num_predictions),
            "mlm_accuracy": masked_correct / max(1, self.num_predictions),
        }
        loss = means["mlm_loss"]
        if objective in _PAIR_NAMES:
            name, count = _PAIR_NAMES[objective], max(1, self.num_sequences)
            means |= {f"{name}_loss": pair / count, f"{name}_accuracy": pair_correct / count}
            loss += pair / count
        return {**means, "loss": loss}


class Report:
    """Writes the run's files where it has a status to write (on rank 0); elsewhere it only keeps the curve."""

    def __init__(self, run: PretrainRun, status: Status | None, vocab_size: int) -> None:
        self.run = run
        self.status = status
        self.curve: list[dict[str, float]] = []
        self.heldout: list[dict[str, float]] = []
        self._num_steps = run.recipe.num_steps
        self._guess = math.log(vocab_size)
        if status is not None:
            self._journal = MetricsLog(run.run_dir / "journal.jsonl")

    def say(self, line: str) -> None:
        """One line on standard output."""
        if self.status is not None:
            print(line, flush=True)

    def at_step(self, step: int) -> None:
        """`step` steps are done; the status is rewritten at most twice a second."""
        if self.status is not None:
            self.status.running(step, self._num_steps)

    def noted(self) -> tuple[float, float | None]:
        """Seconds of training, and joules where known, when the last checkpoint was written; of earlier processes,
        too."""
        path = self.run.run_dir / "timing.json"
        if not path.exists():
            return 0.0, None
        content = files.read_json(path)
        return float(content["seconds"]), content.get("energy_joules")

    def interval(self, step: int, tally: Tally, rate: float, norm: float, cost: Mapping[str, float]) -> None:
        """An interval of steps is done: into the curve, the journal and the log.

        `cost` is what `model.engine.speed_monitor.Meter` read.

        Raises:
            Hopeless: no step of it could be taken, or the loss is above what is allowed.
        """
        means, skipped = tally.means(self.run.recipe.sentence_objective), tally.num_skipped
        if skipped == tally.num_steps or not math.isfinite(means["loss"]):
            raise Hopeless(f"no usable gradient in the last {skipped} steps, at step {step}; lower the learning rate")
        if not math.isfinite(norm):
            norm = 0.0  # of a step that was not taken
        entry = {"step": step, **_rounded(means), "learning_rate": rate, "grad_norm": round(norm, _DIGITS)}
        self.curve.append({**entry, "skipped_steps": skipped} if skipped else entry)
        if self.status is not None:
            self._journal.log(
                step,
                {
                    **{f"train/{name}": value for name, value in means.items()},
                    "train/learning_rate": rate,
                    "train/grad_norm": norm,
                    "train/skipped_steps": skipped,
                    **cost,
                },
            )
        self.say(
            f"step {step:,}/{self._num_steps:,}  loss {means['loss']:.3f} "
            f"(mlm {means['mlm_loss']:.3f}{self._of_pairs(means, 'loss', '.3f')})  rate {rate:.2e}  "
            f"{cost['train/tokens_per_second']:,.0f} tokens/s" + (f"  ({skipped} steps skipped)" if skipped else "")
        )
        self._judge(step, means["mlm_loss"])

    def _judge(self, step: int, mlm_loss: float) -> None:
        before = self.curve[-2]["step"] if len(self.curve) > 1 else 0
        for bound in self.run.recipe.give_up_above:
            if before < bound.step <= step and mlm_loss > bound.mlm_loss:
                raise Hopeless(
                    f"the masked-word loss is {mlm_loss:.3f} at step {step}; give_up_above allows {bound.mlm_loss:g}"
                )
        if before >= self.run.recipe.warmup_steps and mlm_loss > self._guess + 1:
            raise Hopeless(
                f"the masked-word loss is {mlm_loss:.3f} at step {step}, a uniform guess has {self._guess:.3f}; "
                "lower the learning rate"
            )

    def validation(self, step: int, means: dict[str, float]) -> None:
        """The means over held-out samples."""
        self.heldout.append({"step": step, **_rounded(means)})
        if self.status is None:
            return
        self._journal.log(step, {f"heldout/{name}": value for name, value in means.items()}, stream="heldout")
        self.say(
            f"step {step:,}  held-out: mlm loss {means['mlm_loss']:.3f}, accuracy {means['mlm_accuracy']:.1%}"
            f"{self._of_pairs(means, 'accuracy', '.1%')}"
        )

    def probes(self, step: int, scores: Mapping[str, float]) -> None:
        """Scores (0 to 100) of probes: into the journal and the log, no result depends on them."""
        if self.status is not None:
            self._journal.log(step, {f"probe/{name}": value for name, value in scores.items()}, stream="probe")
            self.say(f"step {step:,}  probes: " + ", ".join(f"{name} {value:.1f}" for name, value in scores.items()))

    def _of_pairs(self, means: dict[str, float], kind: str, form: str) -> str:
        name = _PAIR_NAMES.get(self.run.recipe.sentence_objective)
        return f", {name} {means[f'{name}_{kind}']:{form}}" if name else ""

    def timing(self, seconds: float, num_tokens: int, joules: float | None) -> None:
        """Rewrite timing.json; what depends on the machine stays out of checkpoints and the result."""
        if self.status is None:
            return
        rate = num_tokens / seconds if seconds else 0.0
        told = {"seconds": seconds, "num_tokens": num_tokens, "tokens_per_second": rate, "time": time.time()}
        files.write_json(
            self.run.run_dir / "timing.json", told if joules is None else {**told, "energy_joules": joules}
        )

    def result(self, num_steps: int, num_tokens: int) -> None:
        """Write result.json, the last file: with it the run is a success."""
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
        files.write_json(self.run.run_dir / "result.json", content)
        self.status.running(num_steps, num_steps)
        self.status.end("done")


def versions() -> dict[str, str]:
    """Versions of what computes."""
    names = ("torch", "lightning", "numba", "numpy", "safetensors")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def _rounded(means: dict[str, float]) -> dict[str, float]:
    return {name: round(value, _DIGITS) for name, value in means.items()}
