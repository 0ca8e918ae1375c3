"""The fine-tuning stage on a terminal: counts, and a line for each running job from its status file."""

from __future__ import annotations

import pytest

from model.common.files import write_json
from tasks.finetune.results import summary
from tasks.finetune.scheduler import JobQueue, JobScheduler, MemoryEstimator
from tasks.jobs.resources import ResourcePool
from tasks.project.progress import Bar
from tests.tasks.finetune.conftest import World


def test_running_jobs_have_epoch_and_score(world: World) -> None:
    scheduler = JobScheduler(world.planner(seeds=[1], recipe={"num_epochs": 4}), world.runs, world.published)
    queue = JobQueue(scheduler, ResourcePool(2, 10**12), MemoryEstimator())
    bar = Bar("finetune", "loading")
    names = [queue.take(), queue.take()]
    queue.progress.show(bar)
    first, *rows = bar.lines(80)
    assert first == "  finetune  0/2 new (0 cached)  (0 s)", "nothing is done, which is not 0 %"
    assert rows == [f"    {name}  loading" for name in names]

    headline = {"metric": "accuracy", "value": 57.81}
    work, _ = queue.work(names[0])
    write_json(work.run_dir.status, {"step": 50, "num_steps": 100, "loss": 0.51234, "headline": headline})
    queue.progress.show(bar)
    first, *rows = bar.lines(80)
    assert rows == [f"    {names[0]}  epoch 3/4  loss 0.512  accuracy 57.8", f"    {names[1]}  loading"]
    share = 50 * work.cost / sum(one.cost for one in scheduler.jobs())
    assert int(first.split()[1]) == pytest.approx(share, abs=0.5)
    write_json(work.run_dir.status, {"step": 100, "num_steps": 100})
    queue.progress.show(bar)
    assert bar.lines(80)[1] == f"    {names[0]}  evaluating"

    result = world.end(work, 57.81)
    write_json(work.run_dir.timing, {"seconds": 12.3})
    queue.ended(names[0], result)
    queue.progress.show(bar)
    assert "1/2 new (0 cached)" in bar.lines(80)[0]
    assert summary(result, work.run_dir) == "accuracy 57.8, 12 s"
