"""`cloze up`, `down` and `status`: the servers of this machine, started once, looked at, and ended without a rest."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from tasks.jobs.local_launcher import last_line
from tasks.params.servers import ServiceSettings
from tasks.project.progress import say
from tasks.project.project import Project
from tasks.servers import processes
from tasks.servers.databases import make_schemas
from tasks.servers.processes import Member, log_path, read_member
from tasks.servers.server_plan import ORDER, Part, get, kept_elsewhere, parts, servers_folder

START_SECONDS = 180.0  # a first start makes the databases, on a slow disk
_SETTINGS = "settings.json"


def up(project: Project, settings: ServiceSettings, cron: str | None = None) -> None:
    """Start what does not run, wait until it answers, and make the deployments; a second call changes nothing.

    Raises:
        UserError: the address is open to others, a port is taken, the servers run with other settings, or one does
            not start.
    """
    from model.common.files import write_json

    settings.require_safe()
    folder = servers_folder(project)
    with _alone(folder):
        wanted = parts(project, settings)
        running = {name: _running(folder, part) for name, part in wanted.items()}
        for part in wanted.values():
            if part.port and running[part.name] is None:
                _require_free(settings.host, part)
        if settings.database and running["prefect"] is None:
            make_schemas(settings.database)
        for home in (project.prefect_home, project.mlflow_home):
            home.mkdir(parents=True, exist_ok=True)
        write_json(folder / _SETTINGS, settings.model_dump() | {"database": settings.shown_database})
        servers = [wanted["prefect"], wanted["mlflow"]]
        started = {part.name: _start(project, part) for part in servers if running[part.name] is None}
        for part in servers:  # they have started side by side
            member = started.get(part.name) or running[part.name]
            _require_answer(folder, part, member)
        os.environ["PREFECT_API_URL"] = settings.prefect_api
        if os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
            os.environ["PREFECT_API_AUTH_STRING"] = os.environ["PREFECT_SERVER_API_AUTH_STRING"]
        from flows.deployments import deploy

        num_deployments = deploy(project, settings.pool, cron=cron)
        if running["worker"] is None:
            started["worker"] = _start(project, wanted["worker"])
        _wait_for_worker(folder, settings, started.get("worker") or running["worker"])
    for name in ORDER:
        say(f"{name:8} {'started' if name in started else 'was up'}")
    pages = f"Prefect's page: {wanted['prefect'].address}  MLflow's: {wanted['mlflow'].address}"
    say(f"{num_deployments} deployments. {pages}")
    place = kept_elsewhere(settings)
    if place:
        say(f"MLflow keeps artifacts in {place}, where this database began, not in {settings.artifacts}")


def down(project: Project) -> None:
    """End the worker with its runs, then the servers, then whatever they left; a second call finds nothing."""
    folder = servers_folder(project)
    with _alone(folder):
        ended = [name for name in reversed(ORDER) if processes.stop(folder, name)]
        num_left = processes.sweep(folder)
        (folder / _SETTINGS).unlink(missing_ok=True)
    if num_left:
        say(f"ended {num_left} processes that had lost their worker")
    say(f"ended {', '.join(ended)}" if ended else "nothing was up")


def status(project: Project) -> bool:
    """Print what is up, the pages and the runs under way; True when all members run and answer."""
    from rich.console import Console
    from rich.table import Table

    folder = servers_folder(project)
    settings = recorded_settings(folder)
    if settings is None:
        say("nothing is up; `cloze up` starts Prefect, MLflow and a worker")
        return False
    table = Table("member", "state", "process", "since", "address", box=None, pad_edge=False)
    table.add_column("log", overflow="fold")
    fine = True
    for name, part in parts(project, settings).items():
        member = read_member(folder, name)
        process = member.process if member else None
        answers = process is not None and (_worker_is_online(settings) if name == "worker" else part.answers())
        fine = fine and answers
        state = "[green]up[/]" if answers else "[yellow]does not answer[/]" if process else "[red]dead[/]"
        since = time.strftime("%d %b %H:%M:%S", time.localtime(member.started)) if member and process else ""
        shown = os.path.relpath(log_path(folder, name))
        table.add_row(name, state, str(member.pid) if member and process else "", since, part.address, shown)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for run in _runs_under_way(settings):
        say(f"running: {run['name']} ({run['state_name']})")
    if not fine:
        say("`cloze up` starts again what is dead")
    return fine


def recorded_settings(folder: Path) -> ServiceSettings | None:
    """What the servers were started with, as far as it is not secret; None when they are down."""
    from tasks.project.workspace import read_record

    record = read_record(folder / _SETTINGS)
    if not record:
        return None
    if record["database"] == "SQLite":
        record["database"] = ""
    return ServiceSettings.parse(record, str(folder / _SETTINGS))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One `cloze up` or `down` at a time."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError("another `cloze up` or `cloze down` is at work here; wait for it") from None
        yield


def _running(folder: Path, part: Part) -> Member | None:
    """The part's process if it runs and answers; one that hangs is ended, so that it starts anew.

    Raises:
        UserError: it runs with other settings.
    """
    member = read_member(folder, part.name)
    if member is None or member.process is None:
        if part.port:  # killed, it leaves processes that hold its port; a killed worker's runs go on by themselves
            processes.sweep(folder, part.name)
        return None
    if member.digest != part.digest:
        raise UserError(f"{part.name} runs with other settings; `cloze down` first")
    if not processes.wait_until(part.answers, member, 10.0):
        say(f"{part.name}: process {member.pid} does not answer; starting it again")
        processes.stop(folder, part.name)
        return None
    return member


def _require_free(host: str, part: Part) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, part.port))
        except OSError as error:
            reason = "is taken by another program" if "in use" in str(error) else f"cannot be used ({error.strerror})"
            raise UserError(f"{host}:{part.port} {reason}; choose another with {part.option}") from None


def _start(project: Project, part: Part) -> Member:
    environment = {name: value for name, value in os.environ.items() if name != "CLOZE_RUN_LOCK"}
    environment |= part.environment
    environment = {name: value for name, value in environment.items() if value}  # an empty one is left out
    facts = {"address": part.address, "digest": part.digest}
    return processes.launch(servers_folder(project), part.name, part.command, environment, project.root, **facts)


def _require_answer(folder: Path, part: Part, member: Member | None) -> None:
    if member is not None and processes.wait_until(part.answers, member, START_SECONDS):
        return
    log = log_path(folder, part.name)
    raise UserError(f"{part.name} does not answer: {last_line(log) or 'it said nothing'} (log: {os.path.relpath(log)})")


def _wait_for_worker(folder: Path, settings: ServiceSettings, member: Member | None) -> None:
    if member is not None and processes.wait_until(lambda: _worker_is_online(settings), member, 60.0):
        return
    log = log_path(folder, "worker")
    raise UserError(f"the worker does not report: {last_line(log) or 'it said nothing'} (log: {os.path.relpath(log)})")


def _worker_is_online(settings: ServiceSettings) -> bool:
    found = get(f"{settings.prefect_api}/work_pools/{settings.pool}/workers/filter", {})
    return any(worker.get("status") == "ONLINE" for worker in found or [])


def _runs_under_way(settings: ServiceSettings) -> list[dict[str, Any]]:
    body = {
        "flow_runs": {
            "state": {"type": {"any_": ["RUNNING", "CANCELLING"]}},
            "parent_task_run_id": {"is_null_": True},
        }
    }
    return get(f"{settings.prefect_api}/flow_runs/filter", body) or []
