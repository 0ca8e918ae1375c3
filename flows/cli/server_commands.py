"""Commands for the servers of this machine and the deployments on them: `up`, `down`, `status` and `deploy`."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from flows.cli.context import EXIT_FAILED, examples, json_option, project_here
from model.common.errors import UserError
from model.common.state_files import write_state
from tasks.jobs.local_launcher import last_line
from tasks.project.progress import VERBOSITY_VARIABLE, console, echo, print_json, show
from tasks.project.project import Project
from tasks.project.workspace import LOCK_VARIABLE
from tasks.servers import processes
from tasks.servers.processes import (
    PRIVATE_UMASK,
    ServerProcess,
    log_path,
    private_directory,
    read_process,
    wait_until,
)
from tasks.servers.server_plan import (
    MLFLOW_APP,
    ORDER,
    POOL,
    PREFECT_AUTH,
    SETTINGS,
    ServerSettings,
    ServerSpec,
    ServerState,
    get,
    make_schemas,
    other_artifact_location,
    recorded_settings,
    server_specs,
    server_states,
    servers_folder,
    webhook,
    worker_is_online,
)
from tasks.tracking.tracking import create_database, follow_move

START_SECONDS = 180.0  # the first start creates the databases, possibly on a slow disk
SAY_EVERY_SECONDS = 3.0
_DATABASE = "CLOZE_DATABASE"  # the servers that need it get it in variables of their own
_NOT_INHERITED = (LOCK_VARIABLE, VERBOSITY_VARIABLE, _DATABASE)
_COLORS = {"up": "green", "does not answer": "yellow", "dead": "red"}


@click.command(epilog=examples("up", 'up --cron "0 3 * * 1"'))
@click.option("--host", default="127.0.0.1", help="Address to listen on; any but localhost needs passwords.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Further name or address in the URLs of Prefect and MLflow, such as that of a proxy. Repeatable.",
)
@click.option("--prefect-port", default=4200, help="Port of the Prefect UI and API.")
@click.option("--mlflow-port", default=5000, help="Port of the MLflow UI and API.")
@click.option("--pages-port", default=4201, help="Port of the start page.")
@click.option("--database", default="", envvar=_DATABASE, help="PostgreSQL URL for both servers (default: SQLite).")
@click.option("--artifacts", default="", help="s3://… where the MLflow server stores artifacts.")
@click.option("--pool", default=POOL, help="Work pool that the worker polls.")
@click.option("--limit", default=4, help="Maximum number of flow runs that the worker runs at once.")
@click.option(
    "--cron",
    help="Schedule of retraining until `cloze down`: five fields in the time zone of retrain.timezone, such as"
    " '0 3 * * *' (daily at 3:00); 'never' runs it on demand only.",
)
def up(**values: Any) -> None:
    """Start Prefect, MLflow, the start page and a worker on this machine.

    Also creates the deployments. Servers that are already running are kept.
    """
    from tasks.params.root import load_params

    settings = ServerSettings.parse(values, "cloze up")
    on_command_line = click.get_current_context().get_parameter_source("database") is ParameterSource.COMMANDLINE
    if on_command_line and urlsplit(settings.database).password:
        raise UserError(f"--database: all users of this machine can read the password; set {_DATABASE} instead")
    project = project_here()
    settings.require_safe()
    webhook()  # mistakes show before a server starts
    load_params(project.params_path)
    for package in ("prefect", "mlflow"):  # of the extra "pipeline"; the servers would only say so in their logs
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)
    if not entry_points(group="mlflow.app", name=MLFLOW_APP):
        raise UserError("the installation of Cloze is older than its code; run `pip install` again as you installed it")
    folder = servers_folder(project)
    with _exclusive(folder):
        if settings.cron is None and (earlier := recorded_settings(project)) is not None:
            settings = settings.model_copy(update={"cron": earlier.cron})
        specs = server_specs(project, settings)
        servers = {name: found for name, spec in specs.items() if (found := _find_running(folder, spec))}
        missing = [name for name in ORDER if name not in servers]
        os.environ["PREFECT_API_URL"] = settings.prefect_api  # before Prefect, which reads it, is imported
        if os.environ.get(PREFECT_AUTH):
            os.environ["PREFECT_API_AUTH_STRING"] = os.environ[PREFECT_AUTH]
        if settings.cron is not None:
            from flows.deployments import schedule_of

            schedule_of(project, settings.cron)  # a mistake in it shows before a server starts
        if faults := [fault for name in missing if (fault := _port_fault(settings.host, specs[name]))]:
            raise UserError("\n".join(faults))
        if settings.database and "prefect" in missing:
            make_schemas(settings.database)
        private_directory(project.prefect_home)
        project.mlflow_home.mkdir(parents=True, exist_ok=True)
        if "mlflow" in missing and not settings.database:
            create_database(project.mlflow_home)
            follow_move(project.mlflow_home)
        write_state(folder / SETTINGS, settings.model_dump() | {"database": settings.shown_database})
        servers |= {name: _start(project, specs[name]) for name in missing if name != "worker"}
        for name in ORDER[:-1]:  # wait only after all were started
            _wait(folder, servers[name], f"{name} to respond", specs[name].answers, START_SECONDS)
        from flows.deployments import deploy as make_deployments
        from flows.deployments import next_retraining

        echo("creating the deployments")
        num_deployments = make_deployments(project, settings.pool, cron=settings.cron)
        moment = next_retraining(project, settings.cron)
        if "worker" in missing:
            servers["worker"] = _start(project, specs["worker"])
        _wait(folder, servers["worker"], "the worker to report to Prefect", lambda: worker_is_online(settings), 60.0)
    for name in ORDER:
        echo(f"{name:8} {'started' if name in missing else 'already running'}  {specs[name].address}".rstrip())
    echo(f"{num_deployments} deployments. Start page: {specs['pages'].address}")
    if moment is None:
        echo("retraining: on demand only")
    else:
        echo(f"next retraining: {moment:%Y-%m-%d %H:%M %Z}; `cloze up --cron never` disables the schedule")
    location = other_artifact_location(settings)
    if location:
        echo(
            f"MLflow stores artifacts in {location}, not in {settings.artifacts}: "
            "the location is fixed when the database is created"
        )


@click.command()
def down() -> None:
    """Stop the servers and the worker of `cloze up`.

    Active runs save their state first.
    """
    folder = servers_folder(project_here())
    with _exclusive(folder):
        stopped = [name for name in reversed(ORDER) if processes.stop(folder, name)]
        num_left = processes.sweep(folder)
        (folder / SETTINGS).unlink(missing_ok=True)
    if num_left:
        echo(f"stopped {num_left} processes whose worker had exited")
    echo(f"stopped {', '.join(stopped)}" if stopped else "no server was running")


@click.command()
@json_option
def status(as_json: bool) -> None:
    """Show the state of the local servers and of active runs."""
    project = project_here()
    folder, settings = servers_folder(project), recorded_settings(project)
    states = server_states(project, settings) if settings else []
    runs = active_runs(settings) if settings else []
    if as_json:
        servers = [dataclasses.asdict(one) | {"log": str(log_path(folder, one.name))} for one in states]
        print_json({"servers": servers, "runs": runs})
    elif not states:
        show("no server is running; start Prefect, MLflow and a worker with `cloze up`")
    else:
        _print_status(folder, states, runs)
    if not states or any(one.state != "up" for one in states):
        if states:
            echo("restart with `cloze up`")
        sys.exit(EXIT_FAILED)


def _print_status(folder: Path, states: Sequence[ServerState], runs: Sequence[Mapping[str, str]]) -> None:
    from rich.table import Table

    table = Table("member", "state", "process", "since", "address", box=None, pad_edge=False)
    table.add_column("log", overflow="fold")
    for one in states:
        state = f"[{_COLORS[one.state]}]{one.state}[/]"
        since = time.strftime("%d %b %H:%M:%S", time.localtime(one.since)) if one.since else ""
        table.add_row(
            one.name, state, str(one.pid or ""), since, one.address, os.path.relpath(log_path(folder, one.name))
        )
    console(160).print(table)
    for run in runs:
        act = "running" if run["state_type"] in ("RUNNING", "CANCELLING") else "waiting for another run"
        show(f"{act}: {run['name']} ({run['state']})")


def active_runs(settings: ServerSettings) -> list[dict[str, str]]:
    """Ask Prefect for the runs that are running or waiting for another run."""
    states_of_active = {"type": {"any_": ["RUNNING", "CANCELLING"]}, "name": {"any_": ["AwaitingConcurrencySlot"]}}
    active = {"state": {"operator": "or_", **states_of_active}, "parent_task_run_id": {"is_null_": True}}
    found = get(f"{settings.prefect_api}/flow_runs/filter", {"flow_runs": active}) or []
    return [{"name": run["name"], "state": run["state_name"], "state_type": run["state_type"]} for run in found]


@click.command()
@click.option("--pool", required=True, help="Existing work pool for the deployments.")
@click.option("--overlay", type=click.Choice(["process", "kubernetes"]), default="process", help="Work pool type.")
@click.option("--image", default="", help="Container image, for kubernetes.")
@click.option("--cron", help="Schedule of retraining; 'never' runs it on demand only.")
def deploy(pool: str, overlay: str, image: str, cron: str | None) -> None:
    """Create or update the Prefect deployments.

    Uses the Prefect server at PREFECT_API_URL.
    """
    project = project_here()
    if not os.environ.get("PREFECT_API_URL"):
        raise UserError(
            "PREFECT_API_URL is not set; set it, or use `cloze up`, which starts a server and creates the deployments"
        )
    from flows.deployments import deploy as make_deployments

    show(f"{make_deployments(project, pool, overlay=overlay, image=image, cron=cron)} deployments")


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Allow one `cloze up` or `cloze down` at a time."""
    private_directory(folder)
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError("another `cloze up` or `cloze down` is active; wait until it ends") from None
        yield


def _find_running(folder: Path, spec: ServerSpec) -> ServerProcess | None:
    """Return the process of a server that runs and responds; stop a server that hangs, so that it is restarted."""
    server = read_process(folder, spec.name)
    if server is None or server.process is None:
        if spec.port:  # a killed server's children keep its port; a killed worker's runs continue by themselves
            processes.sweep(folder, spec.name)
        return None
    if server.digest != spec.digest:
        raise UserError(f"{spec.name} runs with other settings; stop it with `cloze down` first")
    if not wait_until(spec.answers, server, 10.0):
        echo(f"{spec.name}: process {server.pid} does not answer; restarting it")
        processes.stop(folder, spec.name)
        return None
    return server


def _port_fault(host: str, spec: ServerSpec) -> str:
    """Say why a server cannot use its port; empty if it can, or needs none."""
    if not spec.port:
        return ""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, spec.port))
        except OSError as error:
            reason = "is used by another program" if "in use" in str(error) else f"cannot be used ({error.strerror})"
            return f"{host}:{spec.port} {reason}; choose another port with --{spec.name}-port"
    return ""


def _start(project: Project, spec: ServerSpec) -> ServerProcess:
    environment = {
        name: value
        for name, value in (os.environ | spec.environment).items()
        if value and name not in _NOT_INHERITED  # empty means unset
    }
    record = {"address": spec.address, "digest": spec.digest}
    umask = -1 if spec.name == "worker" else PRIVATE_UMASK  # the worker's runs write the outputs of the project
    folder = servers_folder(project)
    return processes.launch(folder, spec.name, spec.command, environment, project.root, umask, **record)


def _wait(folder: Path, server: ServerProcess, what: str, ready: Callable[[], bool], seconds: float) -> None:
    """Wait until `ready()`, and print every few seconds what for.

    Raises:
        UserError: the process has ended, or the time is over.
    """
    start = time.monotonic()
    while not wait_until(ready, server, min(SAY_EVERY_SECONDS, seconds)):
        waited = time.monotonic() - start
        if server.process is None or waited >= seconds:
            reason = "its process has ended" if server.process is None else f"not after {waited:.0f} s"
            raise UserError(f"waited for {what}: {reason}: {_last_words(folder, server.name)}")
        echo(f"waiting for {what} ({waited:.0f} s; log: {os.path.relpath(log_path(folder, server.name))})")


def _last_words(folder: Path, name: str) -> str:
    log = log_path(folder, name)
    return f"{last_line(log) or 'its log is empty'} (log: {os.path.relpath(log)})"
