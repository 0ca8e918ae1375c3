"""Parts that several commands share: exit codes, the project, and the options that choose the hardware."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from tasks.project.progress import VERBOSITY_VARIABLE, detail
from tasks.project.project import Project

EXIT_FAILED = 1
EXIT_USER = 2
EXIT_PAUSED = 75  # EX_TEMPFAIL in sysexits.h: batch systems requeue on it
EXIT_INTERRUPTED = 130

_USER_DIR = "CLOZE_USER_DIR"  # where the command was started, also for its children in workspaces

PATH = click.Path(path_type=Path)
ABSOLUTE_PATH = click.Path(path_type=Path, resolve_path=True)
"""A path that is resolved before the current directory changes."""
INPUT_PATH = click.Path(path_type=Path, resolve_path=True, allow_dash=True)
"""An absolute path, or - for standard input."""

_HARDWARE = (
    click.option("--device", type=click.Choice(["auto", "cpu", "gpu"]), default="auto", help="Device to run on."),
    click.option("--threads", type=click.IntRange(min=0), default=0, help="Number of CPU threads; 0 uses all cores."),
    click.option(
        "--precision",
        type=click.Choice(["auto", "fp32", "bf16"]),
        default="auto",
        help="Precision of matrix products; auto picks the faster one.",
    ),
)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")


def add_verbosity(command: click.Command) -> None:
    """Add `-q` and `-v` to a command and to all of its subcommands."""
    for flag, name, text in (
        ("-q", "quiet", "Show only results, warnings and errors."),
        ("-v", "verbose", "Show more."),
    ):
        option = click.Option([flag, f"--{name}"], is_flag=True, expose_value=False, callback=_set_verbosity, help=text)
        command.params.append(option)
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        add_verbosity(subcommand)


def _set_verbosity(context: click.Context, option: click.Parameter, is_given: bool) -> None:
    if not is_given:
        return
    if context.meta.setdefault("cloze.verbosity", option.name) != option.name:
        raise click.UsageError("-q and -v cannot be combined", context)
    os.environ[VERBOSITY_VARIABLE] = str(option.name)


def examples(*lines: str) -> str:
    """Format command lines as the end of a command's help."""
    return "\n".join(["\b", "Examples:", *(f"  cloze {line}" for line in lines)])


def project_here() -> Project:
    """Return the project that contains the current directory.

    The process's environment is set up for the project, and its root becomes the current directory.
    """
    from tasks.project.environment import configure

    project = Project.find()
    os.environ.setdefault(_USER_DIR, str(Path.cwd()))
    os.chdir(project.root)  # DVC resolves targets against the current directory
    configure(project)
    _use_running_servers(project)
    return project


def seen_by_user(path: Path) -> str:
    """Return `path` relative to the directory in which the user has started the command."""
    return os.path.relpath(path, os.environ.get(_USER_DIR, Path.cwd()))


def this_program() -> str:
    """Return how the user can call this program: `cloze`, or its path if that is not found."""
    return "cloze" if shutil.which("cloze") else seen_by_user(Path(sys.argv[0]))


def project_for_inference() -> Project:
    """Return the project for a command that forks no processes, so that the tokenizer may use all cores."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    return project_here()


def hardware_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--device`, `--threads` and `--precision`, which `command` receives as `machine`, a HardwareOptions."""

    @functools.wraps(command)
    def run(*arguments: Any, device: Any, threads: int, precision: Any, **options: Any) -> Any:
        from model.config.hardware import HardwareOptions
        from tasks.jobs.resources import num_cores

        machine = HardwareOptions(accelerator=device, precision=precision, num_threads=threads or num_cores())
        return command(*arguments, machine=machine, **options)

    return functools.reduce(lambda function, option: option(function), reversed(_HARDWARE), run)


def _use_running_servers(project: Project) -> None:
    """Connect this process and its children to the servers of `cloze up`. Keeps variables that the user has set."""
    from tasks.servers.server_plan import running_address

    for name, variable, suffix in (("prefect", "PREFECT_API_URL", "/api"), ("mlflow", "MLFLOW_TRACKING_URI", "")):
        address = "" if os.environ.get(variable) else running_address(project, name)
        if not address:
            continue
        parts = urlsplit(address)
        with contextlib.suppress(OSError):  # the server does not respond
            socket.create_connection((parts.hostname or "", parts.port or 0), timeout=1).close()
            os.environ[variable] = address + suffix
            detail(f"using {name} of `cloze up`: {address}")
