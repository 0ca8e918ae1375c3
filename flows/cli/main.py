"""The command line. Commands import what they need when they run, so that `cloze --help` is quick."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import click

from flows.cli import operate_commands, registry_commands, stages, storage, use
from flows.cli.context import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PAUSED, EXIT_USER, project_here
from model.common.errors import Paused, UserError


class Commands(click.Group):
    """Commands in the order they are written, with the nearest name for a misspelt one."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Names in the order of this file."""
        return list(self.commands)

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        """Find a command, or refuse with the nearest name."""
        import difflib

        name = args[0]
        if self.get_command(context, name) is None and not name.startswith("-"):
            nearest = difflib.get_close_matches(name, self.commands, n=1)
            raise UserError(f"no command '{name}'" + (f"; did you mean '{nearest[0]}'?" if nearest else ""))
        return super().resolve_command(context, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Cloze takes raw text to a ranked, registered, reproducible encoder.

    Start with `cloze sample` and `cloze run`.
    """


@cli.command()
@click.option("--seed", type=int, help="Another world.")
@click.option("--small", is_flag=True, help="A cut-down world, for tests.")
def sample(seed: int | None, small: bool) -> None:
    """Write the small invented world into data/."""
    from flows.cli.sample import write_sample

    write_sample(project_here(), seed, small)


@cli.command()
@click.argument("names", nargs=-1)
@click.option(
    "--params",
    "params_path",
    type=click.Path(path_type=Path),
    help="The sources of this file instead of params.yaml's.",
)
@click.option("--refresh", is_flag=True, help="Look for what is new in S3 prefixes and local folders.")
@click.option("--stdin", "to", metavar="FILE", help="Write what is piped in to data/FILE.")
@click.option("--sha256", default="", help="With --stdin: the digest that it must have.")
def fetch(names: tuple[str, ...], params_path: Path | None, refresh: bool, to: str | None, sha256: str) -> None:
    """Bring sources (all of params.yaml's fetch.sources, or those of these NAMES) into data/."""
    from flows.run import fetch_here, receive_here

    if to is not None and (names or params_path or refresh):
        raise UserError("--stdin brings one file and takes no source names, --params or --refresh")
    if sha256 and to is None:
        raise UserError("--sha256 goes with --stdin; a source states its own in params.yaml")
    params_path = params_path and params_path.resolve()
    project = project_here()
    if to is not None:
        receive_here(project, to, sha256)
    else:
        fetch_here(project, names, params_path, refresh)


@cli.command()
@click.option(
    "--params",
    "params_path",
    type=click.Path(path_type=Path),
    help="Run with these parameters, in a workspace of their own.",
)
@click.option("--accept-data", is_flag=True, help="Pin data/ as it is.")
@click.option("--allow-missing", is_flag=True, help="Publish a leaderboard though some jobs failed.")
@click.option("--dry-run", is_flag=True, help="Say what would run and why; run nothing.")
def run(params_path: Path | None, accept_data: bool, allow_missing: bool, dry_run: bool) -> None:
    """Bring every stage up to date, as one Prefect flow."""
    from flows.run import run_here, run_with_params

    project = project_here()
    if params_path is not None:
        sys.exit(run_with_params(project, params_path, accept_data, allow_missing, dry_run))
    run_here(project, accept_data, allow_missing, dry_run)


@cli.command(context_settings={"ignore_unknown_options": True})
@click.option("--accept-data", is_flag=True, help="Pin data/ as it is.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def repro(accept_data: bool, arguments: tuple[str, ...]) -> None:
    """`dvc repro` with one Prefect server held open for all its stages."""
    from flows.run import repro_here

    sys.exit(repro_here(project_here(), accept_data, arguments))


for _command in (
    *stages.COMMANDS,
    *use.COMMANDS,
    *registry_commands.COMMANDS,
    *storage.COMMANDS,
    *operate_commands.COMMANDS,
):
    cli.add_command(_command)


@cli.command()
@click.option("--champion", default="", help="The system that the others are compared with.")
@click.option(
    "--forget", "forgotten", multiple=True, metavar="RUN", help="Drop a run's record (the start of its name)."
)
@click.option("--from-mlflow", is_flag=True, help="Also take up runs that other machines recorded in MLflow.")
def board(champion: str, forgotten: tuple[str, ...], from_mlflow: bool) -> None:
    """The leaderboard across all recorded runs, those of workspaces among them."""
    from flows.cli.board import show

    project = project_here()
    page = show(project, champion, forgotten, from_mlflow)
    print(f"page  {os.path.relpath(page)}")


@cli.command()
@click.argument("task")
@click.argument("gold", type=click.Path(path_type=Path))
@click.argument("predictions", type=click.Path(path_type=Path))
@click.option(
    "--na-prob", type=click.Path(path_type=Path), help="SQuAD v2.0: odds or probabilities of no answer, JSON by id."
)
@click.option("--na-threshold", type=float, help="SQuAD v2.0: unanswered above this (1.0, as the official script).")
def score(task: str, gold: Path, predictions: Path, na_prob: Path | None, na_threshold: float | None) -> None:
    """Score a file of PREDICTIONS against a GOLD file of TASK by its official rules, as JSON."""
    from flows.cli.score import print_scores

    print_scores(task, gold, predictions, na_prob, na_threshold)


@cli.command()
@click.argument("encoder_a")
@click.argument("encoder_b")
@click.argument("tasks", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Everything that was computed, as JSON.")
def compare(encoder_a: str, encoder_b: str, tasks: tuple[str, ...], as_json: bool) -> None:
    """Is ENCODER_A better than ENCODER_B? Tests over dev rows and seeds, on TASKS or all."""
    from flows.cli.compare import print_comparison

    print_comparison(project_here(), encoder_a, encoder_b, list(tasks), as_json)


@cli.command()
@click.argument("job", required=False)
@click.option("--follow", "-f", is_flag=True, help="Keep printing what is added.")
def logs(job: str | None, follow: bool) -> None:
    """Print the log of a JOB (part of its name); without one, list the jobs."""
    from tasks.jobs.job_logs import print_log

    print_log(project_here(), job, follow)


@cli.command()
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also unfinished jobs that params.yaml does not ask for, and cleaned units.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def gc(everything: bool, dry_run: bool) -> None:
    """Remove what nothing asks for any more: old job folders, workspaces, cache files of no commit."""
    from tasks.servers.gc import collect

    collect(project_here(), everything, dry_run)


@cli.command()
def doctor() -> None:
    """Check Python, pins, torch, disk, git, DVC and ports, and say what to do about each fault."""
    from tasks.servers.doctor import examine

    sys.exit(0 if examine(project_here()) else EXIT_FAILED)


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    from model.common import process_guard
    from tasks.jobs.faults import JobsFailed

    process_guard.guard()  # a run in a workspace ends with the command that started it
    try:
        cli.main(standalone_mode=False)
    except UserError as error:
        _exit(str(error), EXIT_USER)
    except click.UsageError as error:
        _exit(error.format_message(), EXIT_USER)
    except JobsFailed as error:
        _exit(str(error), error.exit_code)
    except Paused as error:
        _exit(f"{error}; the same command goes on from here", EXIT_PAUSED)
    except (KeyboardInterrupt, click.Abort):
        _exit("interrupted", EXIT_INTERRUPTED)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _exit(
            f"no space left on the disk{f' ({error.filename})' if error.filename else ''}; free some (`cloze gc`)",
            EXIT_USER,
        )


def _exit(message: str, code: int) -> None:
    from model.common.redaction import redacted

    print(redacted(f"cloze: {message}"), file=sys.stderr, flush=True)
    sys.exit(code)
