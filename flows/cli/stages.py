"""The commands of the stages, in their order: each brings one of them up to date as its own Prefect flow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from flows.cli.context import EXIT_USER, project_here
from flows.cli.use import compute_options, machine_of, project_that_predicts
from model.common.errors import UserError


def _stage_command(name: str, help_text: str, takes_missing: bool = False) -> click.Command:
    def command(allow_missing: bool = False) -> None:
        from flows.run import run_stage

        run_stage(project_here(), name, allow_missing)

    command.__doc__ = help_text
    made: Callable[..., Any] = command
    if takes_missing:
        made = click.option("--allow-missing", is_flag=True, help="Go on though some jobs failed.")(made)
    return click.command(name)(made)


@click.command()
@click.option("--since", is_flag=True, help="Only say what has changed since the last corpus.")
def corpus(since: bool) -> None:
    """Stage: raw dumps, tables and books to documents."""
    from flows.run import run_stage, say_changes

    if since:
        say_changes(project_here())
        return
    run_stage(project_here(), "corpus", allow_missing=False)


tokenizer = _stage_command("tokenizer", "Stage: a WordPiece vocabulary.")
tokens = _stage_command("tokens", "Stage: documents to token arrays.")


@click.command()
@click.option("--write-jobs", is_flag=True, help="Only write RUN.json of each encoder that is to train, for a cluster.")
def pretrain(write_jobs: bool) -> None:
    """Stage: train every encoder of params.yaml. Or its jobs as files, for Slurm and Kubernetes."""
    if write_jobs:
        from flows.cli.pretrain_jobs import write_here

        write_here(project_here())
        return
    from flows.run import run_stage

    run_stage(project_here(), "pretrain", allow_missing=False)


finetune = _stage_command("finetune", "Stage: fine-tune every encoder on every benchmark.", takes_missing=True)


@click.command()
@click.option("--allow-missing", is_flag=True, help="Go on though some jobs failed.")
@click.option("--submission", type=click.Path(path_type=Path), help="Only write this zip for GLUE's server.")
@click.option("--check-submission", type=click.Path(path_type=Path), help="Only check a zip for GLUE's server.")
@click.option("--encoder", help="With --submission: whose models answer; otherwise the best encoder's.")
@click.option("--partial", is_flag=True, help="With both: let other numbers of rows pass, as the sample's.")
@click.option(
    "--wnli",
    type=click.Choice(["majority", "model"]),
    default="majority",
    help="With --submission: what answers WNLI; GLUE and the paper advise the majority.",
)
@compute_options
def leaderboard(
    allow_missing: bool,
    submission: Path | None,
    check_submission: Path | None,
    encoder: str | None,
    partial: bool,
    wnli: str,
    **compute: Any,
) -> None:
    """Stage: rank and draw. Or the zip for GLUE's server."""
    if check_submission is not None:
        from flows.cli.submission import check_here

        sys.exit(EXIT_USER if check_here(check_submission, partial) else 0)
    if submission is not None:
        from flows.cli.submission import submit_here

        submission, project = submission.resolve(), project_that_predicts()
        submit_here(project, submission, encoder=encoder, partial=partial, wnli=wnli, machine=machine_of(**compute))
        return
    if encoder is not None or partial:
        raise UserError("--encoder and --partial go with --submission")
    from flows.run import run_stage

    run_stage(project_here(), "leaderboard", allow_missing)


COMMANDS = (corpus, tokenizer, tokens, pretrain, finetune, leaderboard)
