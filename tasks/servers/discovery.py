"""Find the servers of `cloze up`, so that commands use them. Environment variables set by the user take precedence."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

from tasks.project.project import Project
from tasks.project.workspace import read_record
from tasks.servers.server_plan import servers_folder

_VARIABLES = {"prefect": ("PREFECT_API_URL", "/api"), "mlflow": ("MLFLOW_TRACKING_URI", "")}


def use_running(project: Project) -> None:
    """Point this process and its children to the running servers."""
    folder = servers_folder(project)
    for name, (variable, suffix) in _VARIABLES.items():
        if os.environ.get(variable) or not (folder / f"{name}.json").exists():
            continue
        address = str(read_record(folder / f"{name}.json").get("address", ""))
        if address and _is_ours(project, name) and _answers(address):
            os.environ[variable] = _reached(address) + suffix


def _is_ours(project: Project, name: str) -> bool:
    from tasks.servers.processes import read_process

    member = read_process(servers_folder(project), name)
    return member is not None and member.process is not None


def _reached(address: str) -> str:
    return address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _answers(address: str) -> bool:
    parts = urlsplit(_reached(address))
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=1).close()
    except OSError:
        return False
    return True
