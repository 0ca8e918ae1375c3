"""Fine-tuning and cleaning on nodes that Slurm provides for the stage: the same results, and no worker is left."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from model.common.files import digest_of_folder
from tests.cluster.slurm import Slurm, why_not
from tests.cluster.training import said
from tests.flows.clone import Clone
from tests.flows.test_pool import new_jobs, owners, slow_jobs, steps
from tests.waiting import wait_for

pytest.importorskip("distributed")
pytestmark = [pytest.mark.slow, pytest.mark.disruption, pytest.mark.skipif(bool(why_not()), reason=str(why_not()))]


@pytest.fixture(scope="module")
def local(on_login: Clone, slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone after a run on the login host alone."""
    clone = on_login.copy(tmp_path_factory.mktemp("local") / "clone")
    clone.prefix = slurm.login.enter(clone.root)
    clone.params(new_jobs)
    clone.run("cloze", "run")
    return clone


@pytest.fixture
def pooled(on_slurm: Clone) -> Clone:
    """A project on the login host that fine-tunes on two nodes."""
    on_slurm.params(new_jobs)
    resources = {"nodes": 2, "cpus": 1, "options": ["--exclusive"]}
    on_slurm.params(lambda content: content.update(cluster={"launcher": "slurm", "finetune": resources}))
    return on_slurm


def job_ids(slurm: Slurm) -> set[str]:
    """Ids of the jobs in the queue, each array once."""
    return {line.split("_")[0] for line in slurm.jobs()}


def test_slurm_provides_the_hosts(pooled: Clone, slurm: Slurm, local: Clone) -> None:
    clone = pooled
    planned = clone.run("cloze", "run", "--dry-run")
    assert "#SBATCH --array=0-1\n" in planned and "tasks.cluster.dask_worker" in planned
    process = clone.start("cloze", "run")
    connection = clone.root / "build" / "runs" / "nodes" / "finetune" / "connection.json"
    clone.wait_for(connection.exists, process)
    assert connection.stat().st_mode & 0o777 == 0o600
    assert process.wait(300) == 0, said(clone)
    assert len({owner["id"] for owner in owners(clone)}) == 2
    assert clone.board() == local.board()
    assert not connection.exists()
    wait_for(lambda: not slurm.jobs(), 15)


def test_workers_end_with_the_run(pooled: Clone, slurm: Slurm) -> None:
    clone = pooled
    clone.params(slow_jobs)
    process = clone.start("cloze", "finetune")
    clone.wait_for(lambda: len([step for step in steps(clone) if step > 10]) >= 2, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 75, said(clone)
    wait_for(lambda: not slurm.jobs(), 15)
    process = clone.start("cloze", "finetune")
    clone.wait_for(lambda: len([step for step in steps(clone) if step > 10]) >= 2, process)
    first = job_ids(slurm)
    assert len(first) == 1
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process = clone.start("cloze", "finetune")
    clone.wait_for(lambda: len(job_ids(slurm) - first) == 1, process)
    clone.wait_for(lambda: len([step for step in steps(clone) if step > 10]) >= 2, process)
    slurm.ask("scancel", *(job_ids(slurm) - first))
    assert process.wait(60) == 75, said(clone)
    assert "has left the queue; run the same command again" in said(clone)
    assert not slurm.jobs()


def test_the_corpus_has_the_same_bytes(pooled: Clone, slurm: Slurm, local: Clone) -> None:
    clone = pooled
    shutil.rmtree(clone.root / "build" / "corpus")
    shutil.rmtree(clone.root / "build" / "runs" / "corpus")
    clone.params(lambda content: content["cluster"].update(corpus={"nodes": 2}))
    said = clone.run("cloze", "corpus")
    assert "starts workers on 2 nodes" in said
    assert digest_of_folder(clone.root / "build" / "corpus") == digest_of_folder(local.root / "build" / "corpus")
    wait_for(lambda: not slurm.jobs(), 15)
