"""The commands about models that are handed on: export, promote, rollback, champion."""

from __future__ import annotations

import sys
from pathlib import Path

import click

EXIT_REFUSED = 1


@click.command()
@click.argument("what", metavar="ENCODER|TASK|champion")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--encoder", help="Of a TASK: whose model; otherwise the best on dev.")
@click.option("--task", help="Of the champion: its fine-tuned model for this task.")
@click.option("--onnx", is_flag=True, help="Also model.onnx, whose outputs are compared with ours.")
@click.option("--fill-mask", is_flag=True, help="Also fill_mask.onnx, of an encoder with its masked language model.")
def export(what: str, directory: Path, encoder: str | None, task: str | None, onnx: bool, fill_mask: bool) -> None:
    """Write an encoder or a fine-tuned model to DIRECTORY, as `transformers` loads it, with its card."""
    from flows.cli.registry import export_here

    export_here(what, directory.resolve(), encoder, task, onnx, fill_mask)


@click.command()
@click.argument("what", metavar="[RUN|ENCODER|VERSION]", default="")
@click.option("--reason", default="", help="Kept in the history beside the gate's.")
@click.option("--force", is_flag=True, help="Whatever the gate says; needs --reason.")
@click.option("--dry-run", is_flag=True, help="Register and judge; promote nothing.")
@click.option("--json", "as_json", is_flag=True, help="The verdict as JSON.")
def promote(what: str, reason: str, force: bool, dry_run: bool, as_json: bool) -> None:
    """Register the best encoder (or this one) and make it the champion, if the gate lets it pass."""
    from flows.cli.registry import promote_here

    sys.exit(0 if promote_here(what, reason, force, dry_run, as_json) else EXIT_REFUSED)


@click.command()
@click.option("--reason", required=True, help="Kept in the history.")
def rollback(reason: str) -> None:
    """Make the champion before the present one champion again."""
    from flows.cli.registry import rollback_here

    rollback_here(reason)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The history as JSON.")
def champion(as_json: bool) -> None:
    """Who is champion, and how that came about."""
    from flows.cli.registry import show_champion

    show_champion(as_json)


COMMANDS = (export, promote, rollback, champion)
