"""Commands about what is stored."""

from __future__ import annotations

import sys

import click

from flows.command import EXIT_FAILED, project_here


@click.command()
@click.option("--remote", help="Also read every object of this remote of DVC.")
def verify(remote: str | None) -> None:
    """Read every byte of data/, outputs and the cache, and name each file that is not what was recorded."""
    from tasks.progress import say
    from tasks.storage.integrity import verify as find_faults
    from tasks.storage.remotes import refuse_unsafe

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
