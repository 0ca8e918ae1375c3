"""Commands that inspect and clean a project: `logs`, `verify`, `gc` and `doctor`."""

from __future__ import annotations

import sys
import time

import click

from flows.cli.context import EXIT_FAILED, project_here
from model.common.errors import UserError
from model.common.run_dir import RunDir
from tasks.dvc.integrity import verify as find_faults
from tasks.dvc.remotes import refuse_unsafe
from tasks.project.progress import echo
from tasks.servers.doctor import examine
from tasks.servers.gc import collect


@click.command()
@click.argument("job", required=False)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines as they are written.")
def logs(job: str | None, follow: bool) -> None:
    """Print the log of a job, or list the jobs.

    JOB is any part of a job's name.
    """
    project = project_here()
    jobs = [RunDir(path) for stage in ("pretrain", "finetune") for path in sorted((project.runs / stage).glob("*"))]
    jobs = [one for one in jobs if one.log.exists()]
    if job is None:
        for one in jobs:
            print(f"{one.path.parent.name}/{one.path.name}  {one.read_status().get('state', '?')}")
        return
    found = [one for one in jobs if job.replace("/", "-") in f"{one.path.parent.name}-{one.path.name}"]
    if len(found) != 1:
        what = f"{len(found)} jobs match" if found else "no job matches"
        some = ", ".join(one.path.name for one in found[:5])
        raise UserError(f"{what} '{job}'{f': {some} …' if found else ''}; `cloze logs` lists all jobs")
    with found[0].log.open(encoding="utf-8", errors="replace") as file:
        while True:
            for line in file:
                print(line, end="", flush=True)
            if not follow or found[0].read_status().get("state") != "running":
                return
            time.sleep(0.5)


@click.command()
@click.option("--remote", help="Also read every object in this DVC remote.")
def verify(remote: str | None) -> None:
    """Check all files against their recorded hashes.

    Reads every byte of data/, the outputs and the DVC cache.
    """
    project = project_here()
    if remote is not None:
        refuse_unsafe(project)
    faults = find_faults(project, remote, echo)
    for fault in faults:
        echo(f"cloze: {fault}")
    if faults:
        sys.exit(EXIT_FAILED)
    echo("all files match their recorded hashes")


@click.command()
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also delete unfinished jobs that params.yaml no longer lists, and cleaned corpus partitions.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted; delete nothing.")
def gc(everything: bool, dry_run: bool) -> None:
    """Delete files that no current run, branch or setting uses."""
    collect(project_here(), everything, dry_run)


@click.command()
def doctor() -> None:
    """Check the installation and print a remedy for each problem.

    Checks Python, pinned packages, torch, disk space, git, DVC and ports.
    """
    sys.exit(0 if examine(project_here()) else EXIT_FAILED)
