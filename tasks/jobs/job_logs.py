"""`cloze logs`: finding a job by a part of its name and printing what it wrote."""

from __future__ import annotations

import time
from pathlib import Path

from model.common.errors import UserError
from tasks.jobs.local_launcher import LOG, status_of
from tasks.project.project import Project

STAGES = ("pretrain", "finetune")


def print_log(project: Project, wanted: str | None, follow: bool) -> None:
    """Print the log of the job whose folder's name holds `wanted`; list the jobs without it.

    Raises:
        UserError: no job, or several, have such a name.
    """
    folders = [path.parent for stage in STAGES for path in sorted((project.runs / stage).glob(f"*/{LOG}"))]
    if wanted is None:
        for folder in folders:
            status = status_of(folder)
            print(f"{folder.parent.name}/{folder.name}  {status.get('state', '?')}")
        return
    found = [folder for folder in folders if wanted.replace("/", "-") in f"{folder.parent.name}-{folder.name}"]
    if len(found) != 1:
        what = f"{len(found)} jobs are named like" if found else "no job is named like"
        some = ", ".join(folder.name for folder in found[:5])
        raise UserError(f"{what} '{wanted}'{f': {some} …' if found else ''}; `cloze logs` lists them")
    _print(found[0], follow)


def _print(folder: Path, follow: bool) -> None:
    with (folder / LOG).open(encoding="utf-8", errors="replace") as file:
        while True:
            for line in file:
                print(line, end="", flush=True)
            if not follow or status_of(folder).get("state") != "running":
                return
            time.sleep(0.5)
