"""Fine-tuning survives kill -9, and trains on several ranks with the same batches and losses as on one."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from model.common.files import write_json
from model.common.run_dir import RunDir
from model.common.state_files import read_state
from model.config.finetuning import FinetuneRecipe
from model.finetune.job import Job
from model.finetune.run import run_job
from model.finetune.training import FinetuneLoader
from model.heads.task_model import HEADS
from tests.model.finetune.test_finetune import bytes_of
from tests.model.heads.test_task_model import features_of
from tests.model.pretraining import one_thread

MakeJob = Callable[..., Job]


def command(job: Job, num_ranks: int = 1) -> list[str]:
    """Write JOB.json, and return the command of the job's process."""
    path = RunDir(job.run_dir).finetune_config
    write_json(path, job.model_dump(mode="json"))
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}", "--max-restarts=0")
    return [sys.executable, "-P", *(torchrun if num_ranks > 1 else ()), "-m", "model.finetune", str(path)]


@pytest.mark.slow
@pytest.mark.disruption
def test_a_job_killed_at_random_steps_ends_with_the_same_bytes(make_job: MakeJob) -> None:
    recipe = {"num_epochs": 30, "dropout": 0.1, "evaluate_every_epoch": True}
    whole, killed = make_job(folder="whole", **recipe), make_job(folder="killed", **recipe)
    killed = killed.model_copy(update={"checkpoint_every_seconds": 0.0})
    run_job(whole)
    chance, steps = random.Random(1), [0]
    files = RunDir(killed.run_dir)
    for _ in range(3):
        process = subprocess.Popen(command(killed), env=one_thread(), stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while files.saved_step() <= steps[-1] + 5:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(chance.random() * 0.3)
        process.kill()
        process.wait()
        steps.append(files.saved_step())
        assert not files.result.exists()
    assert subprocess.run(command(killed), env=one_thread(), check=False).returncode == 0
    assert steps == sorted(set(steps)), "every attempt resumed where the one before was killed"
    assert bytes_of(killed) == bytes_of(whole)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "strategy"), [("sst2", "ddp"), ("sst2", "sharded"), ("ner", "ddp")])
def test_two_ranks_learn_what_one_learns(make_job: MakeJob, name: str, strategy: str) -> None:
    recipe = {"num_epochs": 3, "dropout": 0.1, "evaluate_every_epoch": True}
    one, two = make_job(name, folder="one", **recipe), make_job(name, folder="two", **recipe)
    two = two.model_copy(update={"machine": two.machine.model_copy(update={"num_devices": 2, "strategy": strategy})})
    run_job(one)
    subprocess.run(command(two, num_ranks=2), check=True, timeout=300, env=one_thread())
    expected, found = read_state(one.result_path), read_state(two.result_path)
    for first, second in zip(expected["curve"], found["curve"], strict=True):
        # Sums over ranks round in another order, and each step carries that on.
        assert second["loss"] == pytest.approx(first["loss"], rel=2e-3, abs=2e-4)
    assert found["best_epoch"] == expected["best_epoch"]
    assert found["headline"]["value"] == pytest.approx(expected["headline"]["value"], abs=2.0)
    weights = [load_file(job.run_dir / "model" / "model.safetensors") for job in (one, two)]
    for tensor, values in weights[0].items():
        torch.testing.assert_close(weights[1][tensor], values, atol=5e-3, rtol=0)


def test_ranks_share_the_rows_of_each_batch() -> None:
    features, recipe = features_of("sst2"), FinetuneRecipe(batch_size=3, num_epochs=2)
    whole = FinetuneLoader(features, recipe, HEADS["classes"], 1, 0)
    ranks = [FinetuneLoader(features, recipe, HEADS["classes"], 1, 0, rank, 2) for rank in range(2)]
    assert whole.num_steps > 2
    for step in range(whole.num_steps):
        expected, parts = whole.at(step), [rank.at(step) for rank in ranks]
        weights = [part.weights[0][0] for part in parts]
        samples = [part.batches[0].samples.numpy() for part, weight in zip(parts, weights) if weight]
        assert np.concatenate(samples).tolist() == expected.batches[0].samples.tolist()
        assert sum(weights) / len(ranks) == pytest.approx(1.0)
        assert all(part.counts == expected.counts for part in parts)
