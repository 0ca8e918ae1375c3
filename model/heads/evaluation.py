"""What an evaluation finds, and how the parts of a benchmark's dev set become one finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from model.heads.features import Features


@dataclass(frozen=True)
class EvalResult:
    """Scores (0 to 100), a record per row, whether the run degenerated, settings chosen on dev, and what makes the
    benchmark's official files of predictions: JSON documents by file name, without suffix."""

    scores: dict[str, float]
    predictions: list[dict[str, Any]]
    degenerate: bool = False
    chosen: dict[str, float] = field(default_factory=dict)
    documents: Callable[[], dict[str, Any]] = dict


class EvalDataset(Protocol):
    """A part of a benchmark, ready for a model."""

    @property
    def features(self) -> Features:
        """The sequences and targets."""
        ...

    def evaluate(self, outputs: npt.NDArray[np.float32]) -> EvalResult:
        """Scores of the head's outputs: (rows, width), or (tokens, width) for span and tags."""
        ...


def combine(outcomes: Mapping[str, EvalResult]) -> EvalResult:
    """One outcome from those of several dev parts: every metric per part with its suffix, and the parts'
    mean."""
    if len(outcomes) == 1 and "" in outcomes:
        return outcomes[""]
    scores: dict[str, float] = {}
    for metric in next(iter(outcomes.values())).scores:
        values = {suffix: outcome.scores[metric] for suffix, outcome in outcomes.items()}
        scores[metric] = sum(values.values()) / len(values)
        scores |= {f"{metric}_{suffix}": value for suffix, value in values.items()}
    predictions = [{**record, "part": suffix} for suffix, outcome in outcomes.items() for record in outcome.predictions]
    return EvalResult(scores, predictions, all(outcome.degenerate for outcome in outcomes.values()))
