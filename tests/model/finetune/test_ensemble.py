"""Ensembles of seeds: the mean of what they gave, judged like one of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError
from model.common.files import write_json
from model.common.run_dir import RunDir
from model.common.state_files import read_state
from model.engine.process import run_guarded
from model.finetune.job import EnsembleJob, Job, Member, read_work
from model.finetune.run import mean_outputs, run_job

MakeJob = Callable[..., Job]


@pytest.fixture(autouse=True)
def _as_it_was(torch_as_it_was: None) -> None:
    """Jobs in this process leave torch as it was."""


def together(jobs: list[Job], run_dir: Path) -> EnsembleJob:
    members = [Member(digest=job.digest, seed=job.seed, outputs=RunDir(job.run_dir).outputs) for job in jobs]
    return EnsembleJob(digest="e", run_dir=run_dir, job=jobs[0], members=members)


@pytest.mark.parametrize("name", ["sst2", "stsb", "swag", "squad1", "squad2", "ner"])
def test_one_member_alone_scores_what_its_job_scored(make_job: MakeJob, tmp_path: Path, name: str) -> None:
    job = make_job(name, judge_share=0.5, num_epochs=2)
    run_job(job)
    ensemble = together([job], tmp_path / "ensemble")
    run_job(ensemble)
    single, result = read_state(job.result_path), read_state(ensemble.result_path)
    assert result["scores"] == pytest.approx(single["scores"], abs=0.5 if name in ("squad1", "squad2", "ner") else 1e-6)
    assert result["headline"]["metric"] == BENCHMARKS[name].headline
    assert result["seeds"] == [1] and result["members"] == [job.digest]


def test_three_seeds_are_no_worse_than_they_are_on_average(make_job: MakeJob, tmp_path: Path) -> None:
    jobs = [make_job("stsb", folder=f"s{seed}", digest=f"d{seed}", seed=seed, num_epochs=3) for seed in (1, 2, 3)]
    for job in jobs:
        run_job(job)
    ensemble = together(jobs, tmp_path / "ensemble")
    run_job(ensemble)
    first = ensemble.result_path.read_bytes()
    singles = [read_state(job.result_path)["headline"]["value"] for job in jobs]
    assert read_state(ensemble.result_path)["headline"]["value"] > statistics.fmean(singles) - 1
    run_job(ensemble)
    assert ensemble.result_path.read_bytes() == first


def test_votes_are_of_probabilities() -> None:
    sure, unsure = np.array([[10.0, 0.0]]), np.array([[0.0, 0.1]])
    assert mean_outputs("classes", [sure, unsure, unsure]).argmax() == 0
    shifted = mean_outputs("classes", [sure + 500.0, unsure - 500.0, unsure])
    assert shifted == pytest.approx(mean_outputs("classes", [sure, unsure, unsure]))
    assert np.exp(shifted).sum() == pytest.approx(1)
    assert mean_outputs("regression", [np.array([[1.0]]), np.array([[2.0]])]).item() == 1.5
    assert np.isfinite(mean_outputs("tags", [np.array([[1e4, -1e4]])])).all()


def test_outputs_of_other_rows_are_refused(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job(num_epochs=1, max_dev_rows=20)
    run_job(job)
    other = job.model_copy(update={"recipe": job.recipe.model_copy(update={"max_dev_rows": 30})})
    ensemble = together([job], tmp_path / "ensemble").model_copy(update={"job": other})
    with pytest.raises(UserError, match="20 outputs, the dev set asks for 30"):
        run_job(ensemble)
    path = tmp_path / "ensemble" / "JOB.json"
    write_json(path, ensemble.model_dump(mode="json"))
    assert read_work(path) == ensemble
    assert run_guarded(lambda: read_work(path), lambda job, _: run_job(job)) == 2


def test_a_chained_job_starts_from_the_weights_and_if_asked_from_the_head(make_job: MakeJob, tmp_path: Path) -> None:
    first = make_job("squad1", folder="first", num_epochs=6)
    run_job(first)
    start = first.run_dir / "model"
    options = {"folder": "kept", "encoder_dir": start, "num_epochs": 1, "learning_rate": 1e-9, "seed": 2}
    kept = make_job("squad1", **options).model_copy(update={"after": "squad1", "keep_head": True})
    fresh = make_job("squad1", **{**options, "folder": "fresh"}).model_copy(update={"after": "squad1"})
    for job in (kept, fresh):
        run_job(job)
    before = read_state(first.result_path)["headline"]["value"]
    assert read_state(kept.result_path)["headline"]["value"] == pytest.approx(before, abs=1e-6)
    assert read_state(fresh.result_path)["headline"]["value"] < before - 20
    assert read_state(kept.result_path)["after"] == "squad1" and "after" not in read_state(first.result_path)
    other = make_job("stsb", folder="other", encoder_dir=start).model_copy(
        update={"after": "squad1", "keep_head": True}
    )
    with pytest.raises(UserError, match="classifier"):
        run_job(other)
    assert torch.get_num_threads() >= 1
