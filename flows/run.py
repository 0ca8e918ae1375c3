"""How a run begins and ends: the lock, the data's pin, one Prefect server, signals, and where to look afterwards."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from model.common.errors import Paused, UserError
from tasks.dvc.graph import Graph
from tasks.dvc.stage_snapshot import Clock
from tasks.params.root import load_params
from tasks.project import signals
from tasks.project.progress import say
from tasks.project.project import Project
from tasks.project.workspace import run_lock
from tasks.servers.prefect_server import prefect_server
from tasks.tracking.tracking import send_rest


def run_here(project: Project, accept_data: bool, allow_missing: bool, dry_run: bool) -> None:
    """`cloze run`: bring the graph up to date, or say that it is."""
    clock = Clock()
    load_params(project.params_path)
    with run_lock(project, "cloze run"), signals.on_signals():
        stale = _stale(project, accept_data, dry_run)
        if dry_run or not stale:
            if not dry_run:
                send_rest(project)
            show_outcome(project, clock, ran=[])
            return
        with prefect_server(project, meanwhile=_flows):
            ran = run_flow(_flows().pipeline, allow_missing=allow_missing)
        show_outcome(project, clock, ran)


def run_stage(project: Project, stage: str, allow_missing: bool) -> None:
    """`cloze STAGE`: one stage, as dvc.yaml runs it."""
    signals.watch_door()
    load_params(project.params_path)
    with run_lock(project, f"cloze {stage}"), signals.on_signals(), prefect_server(project, meanwhile=_flows):
        options = {"allow_missing": True} if allow_missing else {}
        run_flow(_flows().STAGE_FLOWS[stage], **options)


def say_changes(project: Project) -> None:
    """`cloze corpus --since`: which units of input are new, changed or removed, and which share of the documents."""
    from tasks.corpus.changes import since, table
    from tasks.jobs.resources import num_cores

    settings = load_params(project.params_path).corpus
    cache = project.runs / "corpus" / "files.json"
    for line in table(since(settings, project.data, project.build / "corpus", cache, num_cores())):
        print(line)


def repro_here(project: Project, accept_data: bool, arguments: Sequence[str]) -> int:
    """`cloze repro`: `dvc repro` with one Prefect server for all its stages."""
    clock = Clock()
    load_params(project.params_path)
    with run_lock(project, "cloze repro"):
        if not _stale(project, accept_data, dry_run=False) and not arguments:
            send_rest(project)
            show_outcome(project, clock, ran=[])
            return 0
        with prefect_server(project, meanwhile=lambda: None):
            from tasks.jobs.local_launcher import start

            with signals.on_signals():
                guarded = [
                    sys.executable,
                    "-P",
                    "-m",
                    "model.common.process_guard",
                    sys.executable,
                    "-m",
                    "dvc",
                    "repro",
                ]
                dvc = start([*guarded, *arguments], None, stdin=subprocess.DEVNULL)
                code = _wait(dvc)
        if code == 0:
            show_outcome(project, clock, ran=["dvc repro"])
        return 0 if code == 0 else 1


def run_with_params(project: Project, params_path: Path, accept_data: bool, allow_missing: bool, dry_run: bool) -> int:
    """`cloze run --params FILE`: the same run in a workspace of its own; its exit code."""
    from tasks.project.worktree import prepare

    load_params(params_path)
    with run_lock(project, "cloze run --params"), _graph(project, accept_data):
        pass  # the data is there and pinned
    workspace = prepare(project, params_path)
    say(f"workspace: {os.path.relpath(workspace)}")
    command = [sys.executable, "-P", "-c", "from flows.cli.main import main; main()", "run"]
    command += ["--allow-missing"] * allow_missing + ["--dry-run"] * dry_run
    with signals.on_signals():
        from tasks.jobs.local_launcher import start

        child = start(command, None, stdin=subprocess.DEVNULL, cwd=workspace)
        return _wait(child)


def fetch_here(project: Project, names: Sequence[str], params_path: Path | None, refresh: bool) -> None:
    """`cloze fetch`: bring sources into data/, or say that they are there. The data's pin is left to the user."""
    from tasks.fetch import bring

    path = params_path or project.params_path
    sources = bring.chosen(load_params(path).fetch, names)
    with run_lock(project, "cloze fetch"), signals.on_signals():
        if not bring.stale(bring.open_record(project), sources, refresh):
            say(f"all is up to date: {len(sources)} sources lie in data/ as they came")
            return
        with prefect_server(project, meanwhile=_fetch_flow):
            run_flow(_fetch_flow(), params_path=str(path), names=list(names), refresh=refresh)
    _say_next(project, [source.to for source in sources])


def receive_here(project: Project, to: str, sha256: str) -> None:
    """`cloze fetch --stdin NAME`: what comes through a pipe, as data/NAME."""
    from tasks.fetch import bring
    from tasks.project.progress import bars

    if sys.stdin.isatty():
        raise UserError(f"--stdin {to}: nothing is piped in, as in `bzcat dump.xml.bz2 | cloze fetch --stdin {to}`")
    with run_lock(project, "cloze fetch"), signals.on_signals(), bars() as shown:
        came = bring.receive(project, sys.stdin.buffer, to, sha256, shown.bar(to).update)
    say(f"data/{to}: {came['bytes'] / 1e6:,.1f} MB")
    _say_next(project, [to])


def _say_next(project: Project, targets: Sequence[str]) -> None:
    """What the user has to do before a run takes new data."""
    from tasks.project.yaml_files import read_yaml

    stages = read_yaml(project.root / "dvc.yaml").get("stages", {}).values()
    watched = [Path(dependency) for stage in stages for dependency in stage.get("deps", [])]
    for to in targets:
        path = Path("data") / to
        if not any(path.is_relative_to(place) or place.is_relative_to(path) for place in watched):
            say(f"{path}: no stage of dvc.yaml depends on it; name it among the deps of the stage that reads it")
    say("data/ has changed; `cloze run --accept-data` pins it as it is")


def _fetch_flow() -> Any:
    from flows.cli.fetch import fetch

    return fetch


def run_flow(flow: Callable[..., Any], **options: Any) -> Any:
    """Call a flow; a request to stop that Prefect turned into something else is a pause again."""
    try:
        return flow(**options)
    except BaseException as error:
        if signals.requested.is_set() and not isinstance(error, Paused | UserError):  # a mistake says what it is
            raise Paused("stopped") from error
        raise


def show_outcome(project: Project, clock: Clock, ran: Sequence[str]) -> None:
    """The leaderboard, and the commands that open the pages."""
    from model.common.files import read_json
    from tasks.leaderboard.terminal import print_board

    board = project.build / "leaderboard" / "leaderboard.json"
    if not board.exists():
        return
    if ran:
        print_board(read_json(board))
    say(
        f"\n{'Done' if ran else 'All is up to date'} ({clock.seconds:.1f} s). Where to look next:\n"
        f"  page     {project.relative(board.with_suffix('.html'))}\n"
        "  all runs cloze board\n"
        f"  MLflow   {_mlflow_page(project)}\n"
        f"  Prefect  {_prefect_page(project)}"
    )


def _mlflow_page(project: Project) -> str:
    """The page of a server; where records lie in a database, the command that starts one."""
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


def _stale(project: Project, accept_data: bool, dry_run: bool) -> bool:
    """Whether any stage has to run; with `dry_run`, say which and why."""
    with _graph(project, accept_data) as graph:
        statuses = [graph.status(stage) for stage in graph.stages]
        if dry_run:
            from tasks.servers.dry_run import describe

            for line in describe(project, statuses):
                say(line)
        return any(status.reasons for status in statuses)


@contextmanager
def _graph(project: Project, accept_data: bool) -> Iterator[Graph]:
    graph = Graph(project)
    try:
        graph.check_data(accept_data)
        yield graph
    finally:
        graph.close()


def _flows() -> Any:
    """The module of the flows: it imports Prefect, which a run with nothing to do has no need of."""
    import flows.pipeline

    return flows.pipeline


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for a child run, handing a request to stop on to it."""
    asked = False
    while True:
        try:
            return child.wait(0.2)
        except subprocess.TimeoutExpired:
            if signals.requested.is_set() and not asked:
                asked = True
                os.killpg(child.pid, 15)
