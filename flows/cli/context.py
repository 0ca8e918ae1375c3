"""Parts that several commands share: exit codes, the project, and the options that choose the hardware."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tasks.project.project import Project

if TYPE_CHECKING:
    from model.config.hardware import HardwareOptions
import socket
from urllib.parse import urlsplit

EXIT_FAILED = 1
EXIT_USER = 2
EXIT_PAUSED = 75  # EX_TEMPFAIL in sysexits.h: batch systems requeue on it
EXIT_INTERRUPTED = 130


def project_here() -> Project:
    """Return the project that contains the current directory.

    The process's environment is set up for the project, and its root becomes the current directory.
    """
    from tasks.project.environment import configure

    project = Project.find()
    os.chdir(project.root)  # DVC resolves targets against the current directory
    configure(project)
    _use_running_servers(project)
    return project


def project_for_inference() -> Project:
    """Return the project for a command that forks no processes, so that the tokenizer may use all cores."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    return project_here()


def hardware_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--device`, `--threads` and `--precision`, the arguments of `hardware_of`."""
    options = (
        click.option("--device", type=click.Choice(["auto", "cpu", "gpu"]), default="auto", help="Device to run on."),
        click.option(
            "--threads", type=click.IntRange(min=0), default=0, help="Number of CPU threads; 0 uses all cores."
        ),
        click.option(
            "--precision",
            type=click.Choice(["auto", "fp32", "bf16"]),
            default="auto",
            help="Precision of matrix products; auto picks the faster one.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def hardware_of(device: str, threads: int, precision: str) -> HardwareOptions:
    """Return the hardware settings for the values of `hardware_options`."""
    from model.config.hardware import HardwareOptions
    from tasks.jobs.resources import num_cores

    return HardwareOptions.parse(
        {"accelerator": device, "precision": precision, "num_threads": threads or num_cores()}, "--device, --threads"
    )


def _use_running_servers(project: Project) -> None:
    """Point this process and its children to the servers of `cloze up`. Variables that the user has set are kept."""
    from tasks.servers.server_plan import servers_folder

    for name, variable, suffix in (("prefect", "PREFECT_API_URL", "/api"), ("mlflow", "MLFLOW_TRACKING_URI", "")):
        if os.environ.get(variable) or not (servers_folder(project) / f"{name}.json").exists():
            continue
        from tasks.servers.processes import read_process

        server = read_process(servers_folder(project), name)
        if server is None or server.process is None:
            continue
        address = server.address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        parts = urlsplit(address)
        with contextlib.suppress(OSError):  # it does not answer
            socket.create_connection((parts.hostname or "", parts.port or 0), timeout=1).close()
            os.environ[variable] = address + suffix
