"""Commands that bring the pipeline up to date: `run`, `repro`, and one command for each stage.

A run uses the configured or running Prefect server, else a temporary one. The command of the leaderboard stage is in
flows/cli/leaderboard_commands.py.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pkgutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import click

from flows.cli.context import ABSOLUTE_PATH, examples, json_option, project_here, seen_by_user, this_program
from model.common.errors import Paused, UserError
from model.common.files import read_json
from model.common.redaction import redacted
from tasks.project import signals
from tasks.project.progress import detail, echo, print_json, show, warn, working
from tasks.project.project import Project
from tasks.project.workspace import (
    checked_name,
    follow,
    name_of,
    prepare,
    refuse_full,
    run_label,
    run_lock,
    workspace_of,
)
from tasks.project.yaml_files import read_yaml

_ANSWER_SECONDS = 30.0
_API, _AUTH = "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"
_ACCEPT_DATA = click.option("--accept-data", is_flag=True, help="Pin the current content of data/.")


@click.command(
    epilog=examples(
        "run --dry-run", "run", "run --params params/sample-seeds.yaml --name seeds", "run --set 'finetune.seeds=[1,2]'"
    )
)
@click.option(
    "--params", "params_path", type=ABSOLUTE_PATH, help="Run with this parameter file, in a separate workspace."
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SETTING=VALUE",
    help="Change a setting, such as finetune.seeds=[1,2], and run in a separate workspace. May be given repeatedly.",
)
@click.option("--name", default="", help="Name of the run, in front of its id; by default that of the parameter file.")
@_ACCEPT_DATA
@click.option("--allow-missing", is_flag=True, help="Publish a leaderboard even if some jobs failed.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Print which stages would run and why; run nothing.")
@json_option
def run(
    params_path: Path | None,
    overrides: tuple[str, ...],
    name: str,
    accept_data: bool,
    allow_missing: bool,
    is_dry: bool,
    as_json: bool,
) -> None:
    """Run every stage that is out of date, as one Prefect flow."""
    from tasks import preflight
    from tasks.dvc.graph import Graph
    from tasks.params.forms import params_file, with_overrides
    from tasks.params.root import load_params
    from tasks.tracking.tracking import pipeline_key

    if as_json and not is_dry:
        raise UserError("--json needs --dry-run")
    project = project_here()
    begin = time.monotonic()
    if name:
        checked_name(name)
    if overrides:
        base = params_path or project.params_path
        values = with_overrides(read_yaml(base), overrides, seen_by_user(base))
        folder = Path(click.get_current_context().with_resource(TemporaryDirectory())) if is_dry else None
        params_path = params_file(project, values, name or name_of(base), folder)
    params = load_params(params_path or project.params_path)
    if is_dry:
        workspace = project.root
        if params_path is not None:
            workspace = workspace_of(project, params_path, pipeline_key(project, read_yaml(params_path)))
        place = Project(workspace, project.home) if workspace.is_dir() else project
        from tasks.dry_run import dry_run

        plan = dry_run(place, params_path, accept_data)
        if as_json:
            print_json(plan.record())
        else:
            show("\n".join(plan.lines()))
        return
    if params_path is not None:
        with (
            run_lock(project, "cloze run --params"),
            contextlib.closing(Graph(project)) as graph,
            working("checking data/"),
        ):
            if project.data.is_dir():
                preflight.check(project, params)
            graph.check_data(accept_data)
        with working("preparing the workspace"):
            workspace, kept_name = prepare(project, params_path, pipeline_key(project, read_yaml(params_path)), name)
        echo(f"workspace: {seen_by_user(workspace)}")
        if name not in ("", kept_name):
            echo(f"a run with these parameters exists already; it keeps its name {kept_name}")
        command = [sys.executable, "-P", "-c", "from flows.cli.main import main; main()", "run", "--name", kept_name]
        sys.exit(_run_child(command + ["--allow-missing"] * allow_missing, cwd=workspace))
    with run_lock(project, "cloze run"), signals.handle_signals():
        is_stale = _is_stale(project, accept_data)
        ran = []
        if is_stale:
            ran = run_flow(project, "flows.pipeline:pipeline", allow_missing=allow_missing, name=name)
        show_outcome(project, begin, ran)


@click.command(context_settings={"ignore_unknown_options": True}, epilog=examples("repro", "repro tokens --downstream"))
@_ACCEPT_DATA
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def repro(accept_data: bool, arguments: tuple[str, ...]) -> None:
    """Run `dvc repro` with one Prefect server for all stages.

    ARGUMENTS are passed to `dvc repro`.
    """
    from tasks.params.root import load_params

    project = project_here()
    begin = time.monotonic()
    load_params(project.params_path)
    with run_lock(project, "cloze repro"):
        is_stale = _is_stale(project, accept_data) or bool(arguments)
        if is_stale:
            with _prefect_server(project, meanwhile=lambda: None):
                guard = [sys.executable, "-P", "-m", "model.common.process_guard"]
                if _run_child([*guard, sys.executable, "-m", "dvc", "repro", *arguments]):
                    sys.exit(1)
        show_outcome(project, begin, ran=["dvc repro"] if is_stale else [])


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
def pretrain() -> None:
    """Pre-train every encoder in params.yaml (stage), on this machine or on a cluster."""
    run_stage("pretrain")


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
    with run_lock(project, f"cloze {name}"), signals.handle_signals():
        run_flow(project, f"flows.pipeline:{name}", **({"allow_missing": True} if allow_missing else {}))


def run_flow(project: Project, path: str, **options: Any) -> Any:
    """Call the flow `path` (module:function), which is imported while the Prefect server starts.

    Raises:
        Paused: the run was asked to stop, and Prefect turned that into another exception.
    """
    with (
        working("working", is_fallback=True),
        _prefect_server(project, lambda: import_module(path.partition(":")[0])),
        _deletions_named(project),
    ):
        from prefect import tags
        from prefect.exceptions import PrefectHTTPStatusError

        from tasks.servers.server_plan import ANY_RUN

        try:
            with tags(ANY_RUN):
                return pkgutil.resolve_name(path)(**options)
        except BaseException as error:
            if signals.requested.is_set() and not isinstance(error, Paused | UserError):
                raise Paused("stopped") from error
            if isinstance(error, PrefectHTTPStatusError):  # by a server that cannot write to its database
                refuse_full(project.prefect_home)
            raise


@contextlib.contextmanager
def _deletions_named(project: Project) -> Iterator[None]:
    """Turn the consequences of a deletion during the block into a UserError that names what was deleted."""
    with contextlib.ExitStack() as stack:
        watched = {path: stack.enter_context(follow(path)) for path in (project.root, project.build) if path.is_dir()}
        try:
            yield
        except Exception as error:
            deleted = next((path for path, is_at in watched.items() if not is_at(path)), None)
            if deleted is None or isinstance(error, Paused):
                raise
            raise UserError(f"{deleted} was deleted during the run; run the same command again") from error


@contextlib.contextmanager
def _prefect_server(project: Project, meanwhile: Callable[[], object]) -> Iterator[str]:
    """Provide a Prefect API during the block, at PREFECT_API_URL for flows and children, and yield its URL.

    Args:
        meanwhile: called while the server starts, for example to import flows.

    Raises:
        UserError: the configured server does not respond or rejects the request, or the temporary one does not start.
    """
    if os.environ.get(_API):
        _require_answer(os.environ[_API])
        meanwhile()
        yield os.environ[_API]
        return
    from tasks.servers.temporary_server import TemporaryServer

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(TemporaryServer(project.prefect_home / "server.log"))
        try:
            os.environ[_API] = server.url
            with working("starting Prefect's server"):
                meanwhile()
                server.wait_until_healthy()
            yield server.url
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("prefect", "httpx"):
                server.refuse_deleted()
            raise
        finally:
            os.environ.pop(_API, None)
            stack.enter_context(working("stopping Prefect's server"))
            _drain()


def _require_answer(url: str) -> None:
    """Check that the configured server responds, waiting up to 30 s for one that is restarting."""
    request = urllib.request.Request(f"{url.rstrip('/')}/admin/version")
    if os.environ.get("PREFECT_API_KEY"):
        request.add_header("Authorization", f"Bearer {os.environ['PREFECT_API_KEY']}")
    elif os.environ.get(_AUTH):
        request.add_header("Authorization", f"Basic {base64.b64encode(os.environ[_AUTH].encode()).decode()}")
    deadline, said = time.monotonic() + _ANSWER_SECONDS, False
    while True:
        try:
            urllib.request.urlopen(request, timeout=10).close()
            return
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise UserError(
                    f"{_API}: the server at {redacted(url)} rejects the request ({error.code}); set"
                    f" {_AUTH} (user:password), or PREFECT_API_KEY"
                ) from None
            return  # it responds; Prefect's client handles other errors
        except OSError as error:
            reason = redacted(str(getattr(error, "reason", error)))
        if time.monotonic() > deadline:
            raise UserError(
                f"{_API}: no server responds at {redacted(url)} ({reason}); start it (`cloze up`), or unset {_API}"
                " to let the run start a temporary server"
            )
        if not said:
            said = True
            echo(f"cloze: waiting for Prefect's server at {redacted(url)} ({reason})")
        time.sleep(1)


def _drain() -> None:
    """Let Prefect send its last logs and events before the server ends."""
    if "prefect" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        try:
            worker.drain_all(timeout=5)
        except Exception as error:  # only log lines are lost, not results
            warn(f"cloze: the last Prefect messages were not sent ({type(error).__name__})")


def show_outcome(project: Project, start: float, ran: Sequence[str]) -> None:
    """Print the leaderboard if anything ran since `start` (monotonic), and where the pages of the project are."""
    from tasks.leaderboard import history
    from tasks.leaderboard.schema import Leaderboard
    from tasks.leaderboard.terminal import print_board
    from tasks.tracking.tracking import current_run

    path = project.build / "leaderboard" / "leaderboard.json"
    if not path.exists():
        return
    board = Leaderboard.parse(read_json(path), str(path))
    if ran:
        print_board(board)
    label = run_label(*current_run(project))
    recorded = history.note_repeat(project, board)
    servers, page = _servers(project), history.page_of(project.leaderboards, board) or path.with_suffix(".html")
    lines = [f"  page     {seen_by_user(page)}", f"  all runs {this_program()} board"]
    lines += [f"  {name:<8} {url}" for name, url in servers.items()]
    if not {"MLflow", "Prefect"} <= set(servers):
        lines.append(f"  servers  {this_program()} up    (the pages of MLflow and Prefect, with every metric and log)")
    outcome = "Done" if ran else "Everything is up to date"
    same = f", with the same results as {recorded}" if recorded not in ("", label) else ""
    show(f"\n{outcome} ({time.monotonic() - start:.1f} s), run {label}{same}")
    echo("\n".join(["Where to look next:", *lines]))


def _servers(project: Project) -> dict[str, str]:
    """URLs of the configured or running servers: the start page, this run in MLflow, and Prefect."""
    from tasks.servers.server_plan import running_address
    from tasks.tracking.tracking import pipeline_key, run_page

    mlflow = run_page(project, pipeline_key(project)) or project.tracking_uri
    prefect = os.environ.get("PREFECT_API_URL", "").removesuffix("/api")
    found = {"start": running_address(project, "pages"), "MLflow": mlflow, "Prefect": prefect}
    return {name: _without_password(url) for name, url in found.items() if url.startswith("http")}


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _is_stale(project: Project, accept_data: bool) -> bool:
    """Check data/ and whether any stage has to run; if none has, send pending records to MLflow."""
    from tasks import preflight
    from tasks.tracking.tracking import send_rest

    with working("checking what is out of date"):
        statuses = preflight.statuses(project, accept_data)
    for status in statuses:
        detail(f"{status.name}: {'; '.join(status.reasons) or 'up to date'}")
    is_stale = any(status.reasons for status in statuses)
    if not is_stale:
        send_rest(project)
    return is_stale


def _run_child(command: Sequence[str], cwd: Path | None = None) -> int:
    """Run a command in a new session, forward requests to stop, and return its exit code."""
    from tasks.jobs.local_launcher import start

    with signals.handle_signals():
        child = start(command, None, stdin=subprocess.DEVNULL, cwd=cwd)
        while not signals.requested.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(0.2)
        os.killpg(child.pid, 15)
        return child.wait()
