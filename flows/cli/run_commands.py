"""Commands that bring the pipeline up to date: `run`, `repro`, and one command for each stage.

The command of the leaderboard stage is in flows/cli/leaderboard_commands.py.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from flows.cli.context import project_here
from model.common.errors import Paused, UserError
from model.common.files import read_json, write_json
from model.common.run_dir import RunDir
from tasks.dvc.stage_snapshot import code_version
from tasks.project import signals
from tasks.project.progress import echo
from tasks.project.project import Project
from tasks.project.workspace import run_lock
from tasks.servers.prefect_server import prefect_server

_ACCEPT_DATA = click.option("--accept-data", is_flag=True, help="Pin the current content of data/.")


@click.command()
@click.option(
    "--params",
    "params_path",
    type=click.Path(path_type=Path),
    help="Run with this parameter file, in a separate workspace.",
)
@_ACCEPT_DATA
@click.option("--allow-missing", is_flag=True, help="Publish a leaderboard even if some jobs failed.")
@click.option("--dry-run", is_flag=True, help="Print which stages would run and why; run nothing.")
def run(params_path: Path | None, accept_data: bool, allow_missing: bool, dry_run: bool) -> None:
    """Run every stage that is out of date, as one Prefect flow."""
    from tasks.dvc.graph import Graph
    from tasks.jobs.local_launcher import start
    from tasks.params.root import load_params
    from tasks.project.worktree import prepare
    from tasks.tracking.tracking import send_rest

    project = project_here()
    if params_path is not None:
        load_params(params_path)
        with run_lock(project, "cloze run --params"), closing(Graph(project)) as graph:
            graph.check_data(accept_data)
        workspace = prepare(project, params_path)
        echo(f"workspace: {os.path.relpath(workspace)}")
        command = [sys.executable, "-P", "-c", "from flows.cli.main import main; main()", "run"]
        command += ["--allow-missing"] * allow_missing + ["--dry-run"] * dry_run
        with signals.handle_signals():
            sys.exit(_wait(start(command, None, stdin=subprocess.DEVNULL, cwd=workspace)))
    begin = time.monotonic()
    load_params(project.params_path)
    with run_lock(project, "cloze run"), signals.handle_signals():
        if not _is_stale(project, accept_data, dry_run) or dry_run:
            if not dry_run:
                send_rest(project)
            show_outcome(project, begin, ran=[])
            return
        with prefect_server(project, meanwhile=lambda: import_module("flows.pipeline")):
            from flows.pipeline import pipeline

            ran = run_flow(pipeline, allow_missing=allow_missing)
        show_outcome(project, begin, ran)


@click.command(context_settings={"ignore_unknown_options": True})
@_ACCEPT_DATA
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def repro(accept_data: bool, arguments: tuple[str, ...]) -> None:
    """Run `dvc repro` with one Prefect server for all stages.

    ARGUMENTS are passed to `dvc repro`.
    """
    from tasks.jobs.local_launcher import start
    from tasks.params.root import load_params
    from tasks.tracking.tracking import send_rest

    project = project_here()
    begin = time.monotonic()
    load_params(project.params_path)
    with run_lock(project, "cloze repro"):
        if not _is_stale(project, accept_data, dry_run=False) and not arguments:
            send_rest(project)
            show_outcome(project, begin, ran=[])
            return
        with prefect_server(project, meanwhile=lambda: None), signals.handle_signals():
            guard = [sys.executable, "-P", "-m", "model.common.process_guard"]
            dvc = [sys.executable, "-m", "dvc", "repro", *arguments]
            code = _wait(start([*guard, *dvc], None, stdin=subprocess.DEVNULL))
        if code:
            sys.exit(1)
        show_outcome(project, begin, ran=["dvc repro"])


@click.command()
@click.option("--since", is_flag=True, help="Only list the changes of the input since the last corpus.")
def corpus(since: bool) -> None:
    """Extract documents from raw dumps, tables and books (stage)."""
    if not since:
        run_stage("corpus")
        return
    from tasks.corpus import changes
    from tasks.jobs.resources import num_cores
    from tasks.params.root import load_params

    project = project_here()
    settings = load_params(project.params_path).corpus
    cache = project.runs / "corpus" / "files.json"
    for line in changes.table(changes.since(settings, project.data, project.build / "corpus", cache, num_cores())):
        print(line)


@click.command()
def tokenizer() -> None:
    """Train the WordPiece vocabulary on the corpus (stage)."""
    run_stage("tokenizer")


@click.command()
def tokens() -> None:
    """Turn documents into arrays of token ids (stage)."""
    run_stage("tokens")


@click.command()
@click.option("--write-jobs", is_flag=True, help="Only write RUN.json for each untrained encoder, for a cluster.")
def pretrain(write_jobs: bool) -> None:
    """Pre-train every encoder in params.yaml (stage).

    With --write-jobs, Slurm or Kubernetes can run the jobs; see docs/cluster.md.
    """
    if not write_jobs:
        run_stage("pretrain")
        return
    from tasks.params.root import load_params
    from tasks.pretrain.pretrain import finished, plan_encoders

    project = project_here()
    build = project.build
    planned = plan_encoders(
        load_params(project.params_path).pretrain,
        build / "tokens",
        build / "tokenizer",
        project.data,
        project.runs / "pretrain",
        code_version(project, "pretrain"),
    )
    todo = [one for one in planned if finished(one, build / "pretrain") is None]
    for one in todo:
        path = RunDir(one.run_dir).pretrain_config
        write_json(path, one.model_dump(mode="json"))
        print(project.relative(path))
    if not todo:
        echo("every encoder is trained already; no jobs were written")


@click.command()
@click.option("--allow-missing", is_flag=True, help="Publish the finished jobs even if others failed.")
def finetune(allow_missing: bool) -> None:
    """Fine-tune every encoder on every benchmark (stage)."""
    run_stage("finetune", allow_missing)


def run_stage(name: str, allow_missing: bool = False) -> None:
    """Run one stage as its own Prefect flow, as dvc.yaml does."""
    from tasks.params.root import load_params

    project = project_here()
    signals.exit_with_dvc()
    load_params(project.params_path)
    with (
        run_lock(project, f"cloze {name}"),
        signals.handle_signals(),
        prefect_server(project, meanwhile=lambda: import_module("flows.pipeline")),
    ):
        from flows.pipeline import STAGE_FLOWS

        run_flow(STAGE_FLOWS[name], **({"allow_missing": True} if allow_missing else {}))


def run_flow(flow: Callable[..., Any], **options: Any) -> Any:
    """Call a flow.

    Raises:
        Paused: the run was asked to stop, and Prefect turned that into another exception.
    """
    try:
        return flow(**options)
    except BaseException as error:
        if signals.requested.is_set() and not isinstance(error, Paused | UserError):
            raise Paused("stopped") from error
        raise


def show_outcome(project: Project, start: float, ran: Sequence[str]) -> None:
    """Print the leaderboard if anything ran since `start` (monotonic), and how to open the pages of the project."""
    from tasks.leaderboard.schema import Leaderboard
    from tasks.leaderboard.terminal import print_board

    board = project.build / "leaderboard" / "leaderboard.json"
    if not board.exists():
        return
    if ran:
        print_board(Leaderboard.parse(read_json(board), str(board)))
    echo(
        f"\n{'Done' if ran else 'Everything is up to date'} ({time.monotonic() - start:.1f} s). Where to look next:\n"
        f"  page     {project.relative(board.with_suffix('.html'))}\n"
        "  all runs cloze board\n"
        f"  MLflow   {_mlflow_page(project)}\n"
        f"  Prefect  {_prefect_page(project)}"
    )


def _mlflow_page(project: Project) -> str:
    """Return the URL of the MLflow server, or the command that starts one if the records are in a database."""
    uri = project.tracking_uri
    if uri.startswith("sqlite:"):
        uri = f"sqlite:///{os.path.relpath(project.mlflow_home / 'mlflow.db')}"
    else:
        uri = _without_password(uri)
    return uri if uri.startswith("http") else f"mlflow ui --backend-store-uri {shlex.quote(uri)}"


def _prefect_page(project: Project) -> str:
    api = os.environ.get("PREFECT_API_URL")
    if api:
        return _without_password(api.removesuffix("/api"))
    return f"PREFECT_HOME={shlex.quote(os.path.relpath(project.prefect_home))} prefect server start"


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _is_stale(project: Project, accept_data: bool, dry_run: bool) -> bool:
    """Check whether any stage has to run. With `dry_run`, print which ones and why."""
    from tasks.dvc.graph import Graph

    with closing(Graph(project)) as graph:
        graph.check_data(accept_data)
        statuses = [graph.status(stage) for stage in graph.stages]
    if dry_run:
        from tasks.servers.dry_run import describe

        for line in describe(project, statuses):
            echo(line)
    return any(status.reasons for status in statuses)


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for a child run and return its exit code, passing a request to stop on to it."""
    asked = False
    while True:
        try:
            return child.wait(0.2)
        except subprocess.TimeoutExpired:
            if signals.requested.is_set() and not asked:
                asked = True
                os.killpg(child.pid, 15)
