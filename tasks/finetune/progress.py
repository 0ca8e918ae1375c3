"""What people see of the fine-tuning stage while it runs, from the status files of its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model.common.files import read_json
from model.common.run_dir import RunDir
from tasks.finetune.results import PlannedEnsemble, Work
from tasks.finetune.scheduler import Progress
from tasks.project.progress import Bar, duration


def show(progress: Progress, bar: Bar) -> None:
    """Update the stage's bar, with a line below it for each running job."""
    done, lines = progress.done_cost, []
    for work in progress.running:
        status = work.run_dir.read_status()
        if status.get("num_steps"):
            done += work.cost * status["step"] / status["num_steps"]
        lines.append(f"{work.name}  {_running(work, status)}")
    text = f"{progress.num_done}/{progress.num_new} new ({progress.num_cached} cached)"
    if progress.num_failed:
        text += f", {progress.num_failed} failed"
    bar.update(done, progress.new_cost, text, lines)


def _running(work: Work, status: Mapping[str, Any]) -> str:
    step, num_steps = status.get("step", 0), status.get("num_steps", 0)
    if not num_steps:
        return "loading"
    if isinstance(work, PlannedEnsemble) or step == num_steps:
        return "evaluating"
    num_epochs = work.job.recipe.num_epochs
    parts = [f"epoch {step * num_epochs // num_steps + 1}/{num_epochs}"]
    if "loss" in status:
        parts.append(f"loss {status['loss']:.3f}")
    if "headline" in status:
        parts.append(headline(status))
    return "  ".join(parts)


def headline(result: Mapping[str, Any]) -> str:
    """Return the main score of a result, such as "accuracy 57.8"."""
    return f"{result['headline']['metric']} {result['headline']['value']:.1f}"


def summary(result: Mapping[str, Any], run_dir: RunDir) -> str:
    """Describe a finished job in one line."""
    if not run_dir.timing.exists():  # an ensemble
        return headline(result)
    return f"{headline(result)}, {duration(read_json(run_dir.timing)['seconds'])}"
