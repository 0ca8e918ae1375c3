"""`cloze logs`: find a job by part of its name and print its log."""

from __future__ import annotations

import time

from model.common.errors import UserError
from model.common.run_dir import RunDir
from tasks.project.project import Project

STAGES = ("pretrain", "finetune")


def print_log(project: Project, wanted: str | None, follow: bool) -> None:
    """Print the log of the job whose directory name contains `wanted`; without `wanted`, list the jobs.

    Raises:
        UserError: no job matches, or several do.
    """
    jobs = [RunDir(path) for stage in STAGES for path in sorted((project.runs / stage).glob("*"))]
    jobs = [job for job in jobs if job.log.exists()]
    if wanted is None:
        for job in jobs:
            print(f"{_name(job)}  {job.read_status().get('state', '?')}")
        return
    found = [job for job in jobs if wanted.replace("/", "-") in _name(job).replace("/", "-")]
    if len(found) != 1:
        what = f"{len(found)} jobs match" if found else "no job matches"
        some = ", ".join(job.path.name for job in found[:5])
        raise UserError(f"{what} '{wanted}'{f': {some} …' if found else ''}; `cloze logs` lists all jobs")
    _print(found[0], follow)


def _name(job: RunDir) -> str:
    return f"{job.path.parent.name}/{job.path.name}"


def _print(job: RunDir, follow: bool) -> None:
    with job.log.open(encoding="utf-8", errors="replace") as file:
        while True:
            for line in file:
                print(line, end="", flush=True)
            if not follow or job.read_status().get("state") != "running":
                return
            time.sleep(0.5)
