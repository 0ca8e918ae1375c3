"""The course of a fan-out: what has a result, what may run now, and what need not be kept.

It asks the plan anew whenever a job ends, so that jobs start as soon as what they need is there. What it decides
follows from results alone; a run that goes on after a kill decides the same.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tasks.finetune.ensembles import PlannedEnsemble, ensemble_result, plan_ensemble
from tasks.finetune.plan import Group, Planned, Planner, best_of
from tasks.finetune.results import finished, model_of, outputs_of

Work = Planned | PlannedEnsemble


class Course:
    """One run of the stage; used by one thread."""

    def __init__(self, planner: Planner, runs_dir: Path, published_dir: Path) -> None:
        self.planner = planner
        self.published_dir = published_dir
        self._runs_dir = runs_dir
        self._results: dict[str, dict[str, Any]] = {}
        self._running: set[str] = set()
        self._failed: set[str] = set()
        self._repeating: set[str] = set()
        self._repeated: set[str] = set()
        self._absent: set[str] = set()  # looked for on the disk, in vain
        self._with_model: set[str] = set()
        self._ensembles: dict[tuple[str, ...], PlannedEnsemble | None] = {}
        self.groups = self._grouped()

    def result(self, work: Work) -> dict[str, Any] | None:
        """The result of a job or an ensemble, if it has one."""
        if work.digest not in self._results and work.digest not in self._absent:
            if isinstance(work, PlannedEnsemble):
                found = ensemble_result(work, self.published_dir)
            else:
                found = finished(work, self.published_dir)
            if found is None:
                self._absent.add(work.digest)
            else:
                self._results[work.digest] = found
        return self._results.get(work.digest)

    def jobs(self) -> list[Planned]:
        """All jobs that are known by now."""
        return [one for group in self.groups for one in (*group.jobs, *group.pruned)]

    def ensembles(self) -> list[PlannedEnsemble]:
        """All ensembles whose members have ended."""
        return [one for group in self.groups if self._is_whole(group) and (one := self._ensemble(group)) is not None]

    def tidy(self) -> None:
        """Keep of all models only those that are needed: many large ones fill a disk."""
        for group in self.groups:
            self._drop_models(group)

    def ready(self) -> list[Work]:
        """What may start now, longest first."""
        idle = [one for one in self._wanted() if one.digest not in self._running | self._failed]
        return sorted(idle, key=lambda one: -one.cost)

    def progress(self) -> tuple[int, int]:
        """Jobs and ensembles that have ended, and all that are known."""
        known: list[Work] = [*self.jobs(), *self.ensembles()]
        return sum(self.result(one) is not None for one in known), len(known)

    def prepare(self, work: Work) -> None:
        """Before it starts: a result that is repeated is dropped, so that the job does not find itself done."""
        if isinstance(work, Planned) and work.digest in self._repeating:
            work.run_dir.result.unlink(missing_ok=True)

    def started(self, work: Work) -> None:
        """It runs."""
        self._running.add(work.digest)

    def stopped(self, work: Work) -> None:
        """It has ended without a result, and may start again."""
        self._running.discard(work.digest)

    def failed(self, work: Work) -> None:
        """It has failed for good: what needs it does not run."""
        self._running.discard(work.digest)
        self._failed.add(work.digest)

    def ended(self, work: Work, result: dict[str, Any]) -> None:
        """It has its result."""
        self._running.discard(work.digest)
        self._results[work.digest] = result
        if work.digest in self._repeating:
            self._repeated.add(work.digest)
        self.groups = self._grouped()
        if isinstance(work, Planned):
            key = (work.job.encoder_name, work.job.benchmark)
            self._drop_models(next(group for group in self.groups if group.key == key))

    def _grouped(self) -> list[Group]:
        return self.planner.groups(self.result)

    def _is_whole(self, group: Group) -> bool:
        return group.is_decided and all(self.result(one) is not None for one in group.jobs)

    def _ensemble(self, group: Group) -> PlannedEnsemble | None:
        key = tuple(one.digest for one in group.jobs)
        if key not in self._ensembles:
            self._ensembles[key] = plan_ensemble(group, self.result, self._runs_dir)
        return self._ensembles[key]

    def _has_model(self, planned: Planned) -> bool:
        if planned.digest not in self._with_model and model_of(planned, self.published_dir) is not None:
            self._with_model.add(planned.digest)
        return planned.digest in self._with_model

    def _wanted(self) -> list[Work]:
        """Jobs without a result, or whose model or outputs are needed and gone; what needs those waits."""
        wanted: dict[str, Work] = {}
        for one in self.jobs():
            if self.result(one) is None:
                if one.source is not None and not self._has_model(one.source):
                    self._repeat(one.source, wanted)
                else:
                    wanted[one.digest] = one
        for group in self.groups:
            best = best_of(group.jobs, self.result) if self._is_whole(group) else None
            if best is not None and not self._has_model(best):
                self._repeat(best, wanted)
        for ensemble in self.ensembles():
            if self.result(ensemble) is None:
                gone = [one for one in ensemble.members if outputs_of(one, self.published_dir) is None]
                for one in gone:
                    self._repeat(one, wanted)
                if not gone:
                    wanted[ensemble.digest] = ensemble
        return list(wanted.values())

    def _repeat(self, planned: Planned, wanted: dict[str, Work]) -> None:
        """Run a job with a result once more for what it left and was dropped."""
        if planned.digest in self._running | self._failed:
            return
        if planned.digest in self._repeated:
            raise RuntimeError(f"{planned.name} ran again, and what was needed of it is still not there")
        if planned.source is not None and not self._has_model(planned.source):
            self._repeat(planned.source, wanted)
            return
        self._repeating.add(planned.digest)
        wanted[planned.digest] = planned

    def _drop_models(self, group: Group) -> None:
        """Delete the models that cannot become the best.

        Kept are the best of the recipes whose seeds have all ended, the best seed of every other recipe (its mean may
        still become the highest), and, where another benchmark starts from them, the best of each seed.
        """
        recipes: dict[str, list[Planned]] = {}
        for one in group.jobs:
            recipes.setdefault(one.job.recipe.model_dump_json(), []).append(one)
        ended: list[list[Planned]] = []
        others: list[list[Planned]] = []
        for jobs in recipes.values():
            whole = group.is_decided and all(self.result(one) is not None for one in jobs)
            (ended if whole else others).append(jobs)
        keep = {best_of([one for jobs in ended for one in jobs], self.result)}
        keep |= {best_of(jobs, self.result) for jobs in others}
        if self.planner.wants_seeds_of(group.benchmark):
            for seed in self.planner.params.seeds:
                keep.add(best_of([one for one in group.jobs if one.job.seed == seed], self.result))
        for one in (*group.jobs, *group.pruned):
            if one not in keep and one.digest not in self._running and self.result(one) is not None:
                shutil.rmtree(one.run_dir.model, ignore_errors=True)
                self._with_model.discard(one.digest)
