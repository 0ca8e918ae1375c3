"""Commands about what is stored."""

from __future__ import annotations

import sys

import click

from flows.cli.context import EXIT_FAILED, project_here


@click.command()
@click.option("--remote", help="Also read every object of this remote of DVC.")
def verify(remote: str | None) -> None:
    """Read every byte of data/, outputs and the cache, and name each file that is not what was recorded."""
    from tasks.dvc.integrity import verify as find_faults
    from tasks.dvc.remotes import refuse_unsafe
    from tasks.project.progress import say

    project = project_here()
    if remote is not None:
        refuse_unsafe(project)
    faults = find_faults(project, remote, say)
    for fault in faults:
        say(f"cloze: {fault}")
    if faults:
        sys.exit(EXIT_FAILED)
    say("all that is there is what was recorded")


COMMANDS = (verify,)
