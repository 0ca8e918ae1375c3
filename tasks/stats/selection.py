"""Select the best fine-tuning run of an encoder on a benchmark: first the recipe, then the seed.

The published model, the leaderboard, ensembles, pruning, chained fine-tunings, `cloze predict` and `cloze export` all
use this rule. The recipe is chosen by the mean of the headline metric over *all* its seeds, so one lucky seed does not
hide that a recipe often collapses. It is chosen on the dev rows for selection (`finetune.judge_share`), and the scores
are those of the other rows; without such rows, both are the whole dev split, as in the BERT paper. Averages and
comparisons count all runs of the chosen recipe. A degenerate run (one answer for every row) is the best run only if
there is no other.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import pydantic

from model.common.config_base import Settings


class FileRecord(Settings):
    """Part of a result file; unknown keys are ignored."""

    model_config = pydantic.ConfigDict(extra="ignore", allow_inf_nan=True, str_max_length=None)


class Headline(FileRecord):
    metric: str
    value: pydantic.FiniteFloat


class RunResult(FileRecord):
    """Part of a fine-tuning run's result.json that the selection reads."""

    digest: str
    seed: int
    recipe: dict[str, Any]
    headline: Headline
    """Score on the reported dev rows."""
    selection_scores: dict[str, pydantic.FiniteFloat] = {}
    """Scores on the dev rows for selection; empty if they are the reported rows."""
    degenerate: bool = False
    """True if the run gives one answer for every row."""

    @property
    def merit(self) -> float:
        """Headline score on the rows for selection."""
        return self.selection_scores.get(self.headline.metric, self.headline.value)


R = TypeVar("R", bound=RunResult)


class RecipeRank(NamedTuple):
    """Sort key of a recipe; greater is better."""

    learned: bool
    """True if at least one seed is not degenerate."""
    mean: float
    """Mean headline score over all seeds, degenerate ones included, on the rows for selection."""
    num_learned: int


@dataclass(frozen=True)
class SelectedRecipe(Generic[R]):
    """The best recipe of an encoder on a benchmark, and its runs."""

    runs: list[R]
    """All runs of the recipe, by seed. Every one counts in averages and comparisons."""
    num_recipes: int
    rank: RecipeRank

    @property
    def collapsed(self) -> bool:
        """True if every run of every recipe is degenerate."""
        return not self.rank.learned

    @property
    def usable(self) -> list[R]:
        """Runs that may be published or join an ensemble: those that are not degenerate, or all if `collapsed`."""
        return [run for run in self.runs if self.collapsed or not run.degenerate]

    @property
    def best(self) -> R:
        """The usable run with the highest headline score on the rows for selection; ties go to the lowest seed."""
        return max(self.usable, key=lambda run: (run.merit, -run.seed))


def select(runs: Iterable[R]) -> SelectedRecipe[R]:
    """Choose the best recipe from `runs`, one or more runs of an encoder on a benchmark."""
    recipes = by_recipe(runs)
    return SelectedRecipe(runs=recipes[0], num_recipes=len(recipes), rank=rank_of(recipes[0]))


def merge(pretrainings: Sequence[SelectedRecipe[R]]) -> SelectedRecipe[R]:
    """Unite the selected recipes of a system's pre-trainings, each of which selects its own."""
    runs = [run for one in pretrainings for run in one.runs]
    return SelectedRecipe(runs, max(one.num_recipes for one in pretrainings), rank_of(runs))


def by_recipe(runs: Iterable[R]) -> list[list[R]]:
    """Group runs by recipe, best first (ties in the order of their settings), and sort each group by seed."""
    recipes: dict[str, list[R]] = {}
    for run in sorted(runs, key=lambda run: (run.seed, run.digest)):
        recipes.setdefault(json.dumps(run.recipe, sort_keys=True), []).append(run)
    return sorted((recipes[name] for name in sorted(recipes)), key=rank_of, reverse=True)


def rank_of(runs: Sequence[RunResult]) -> RecipeRank:
    num_learned = sum(not run.degenerate for run in runs)
    return RecipeRank(num_learned > 0, statistics.fmean(run.merit for run in runs), num_learned)
