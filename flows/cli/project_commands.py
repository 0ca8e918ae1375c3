"""Commands that create a project and bring it up to date with the installed release: `init` and `upgrade`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from flows.cli.context import ABSOLUTE_PATH, examples, project_here, seen_by_user
from tasks.project.progress import show
from tasks.project.workspace import run_lock


@click.command(epilog=examples("init my-encoder"))
@click.argument("directory", type=ABSOLUTE_PATH, default=".")
def init(directory: Path) -> None:
    """Create a project in DIRECTORY, by default the current one.

    A project has parameters, the pipeline's graph, data and outputs; several projects share one installation of Cloze.
    """
    from tasks.project.template import create

    is_new = create(directory)
    name = os.path.relpath(directory)
    show(f"created a project in {name}{', a new git repository' if is_new else ''}")
    steps = ["cloze sample    # a small synthetic dataset; README.md shows how to use your own text", "cloze run"]
    if name != ".":
        steps.insert(0, f"cd {name}")
    show("\n".join(["next:", *(f"  {step}" for step in steps)]))


@click.command()
def upgrade() -> None:
    """Bring the project up to date with the installed release.

    Records the release and the code versions of the stages in versions.yaml, and names the stages that will run again.
    """
    from tasks.project import template

    project = project_here()
    with run_lock(project, "cloze upgrade"):
        found = template.upgrade(project)
    show(f"Cloze {found.before or '(not recorded)'} → {found.after}")
    for stage, (before, after) in found.versions.items():
        show(f"  {stage} will run again: its code version changed{f' from {before}' if before else ''} to {after}")
    if not found.versions:
        show("  no stage has changed")
    for entry in found.missing:
        show(f"  dvc.yaml lacks an entry of this release: {entry}; add it unless you have removed it")
    if found.versions or found.before != found.after:
        show(f"commit {seen_by_user(project.root / 'versions.yaml')}; `cloze run --dry-run` shows what will run")
