"""The `cloze` command line.

The modules of this package import what a command needs inside the command, so that `cloze --help` is quick.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import errno
import gc
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import click

from flows.cli import (
    data_commands,
    leaderboard_commands,
    maintenance_commands,
    predict_commands,
    project_commands,
    registry_commands,
    run_commands,
    server_commands,
)
from flows.cli.context import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PAUSED, EXIT_USER, add_verbosity
from model.common import process_guard
from model.common.errors import Paused, UserError, missing_package, printable
from model.common.redaction import redacted
from tasks.jobs.supervision import JobsFailed


class CommandGroup(click.Group):
    """A group that lists its commands by topic and suggests the nearest name for a misspelled one."""

    topics: ClassVar[dict[str, list[str]]] = {}

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section of the help for each topic."""
        width = formatter.width - 6 - max(map(len, self.commands))
        for topic, names in self.topics.items():
            with formatter.section(topic):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(width)) for name in names])

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(context, name) is None and not name.startswith("-"):
            nearest = difflib.get_close_matches(name, self.commands, n=1)
            hint = f"did you mean '{nearest[0]}'?" if nearest else "see `cloze --help`"
            raise UserError(f"no command '{name}'; {hint}")
        return super().resolve_command(context, args)


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="cloze", message="%(prog)s %(version)s")
def cli() -> None:
    """Pre-train, fine-tune and rank BERT encoders.

    Start with `cloze sample` and `cloze run`.
    """


for _topic, _module in {
    "Project": project_commands,
    "Data": data_commands,
    "Run the pipeline": run_commands,
    "Results": leaderboard_commands,
    "Use models": predict_commands,
    "Registry": registry_commands,
    "Servers": server_commands,
    "Maintenance": maintenance_commands,
}.items():
    _commands = {one.name: one for one in vars(_module).values() if isinstance(one, click.Command)}
    CommandGroup.topics[_topic] = [name for name in _commands if name]
    for _command in _commands.values():
        cli.add_command(_command)
        for _option in _command.params:
            if isinstance(_option, click.Option) and _option.default == "":
                _option.show_default = False  # click would show ""
add_verbosity(cli)


_FREE, _PERMIT = "free some space (or inodes, see `df -i`), for example with `cloze gc`", "make the project writable"
_REMEDIES = {
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
    errno.EROFS: _PERMIT,
    errno.EACCES: _PERMIT,
    errno.EPERM: _PERMIT,
    errno.EFBIG: "raise the limit of the size of files (`ulimit -f`)",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
}
"""Remedy for an error of the operating system, by its number."""


def main() -> None:
    """Run the command line. User errors print one line and exit with 2."""
    process_guard.guard()  # a run in a workspace ends with the command that started it
    atexit.register(gc.freeze)  # the last collections of a process that imported torch take seconds and free nothing
    try:
        cli.main(prog_name="cloze", standalone_mode=False)
    except UserError as error:
        _exit(str(error), EXIT_USER)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "cloze"
        _exit(f"{error.format_message().rstrip('.')}; see `{path} --help`", EXIT_USER)
    except JobsFailed as error:
        _exit(str(error), error.exit_code)
    except Paused as error:
        _exit(f"{error}; rerun the same command to resume", EXIT_PAUSED)
    except (KeyboardInterrupt, click.Abort):
        _exit("interrupted", EXIT_INTERRUPTED)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("flows", "model", "tasks"):
            raise
        _exit(str(missing_package(error, f"`cloze {sys.argv[1]}`")), EXIT_USER)
    except _loaded("prefect.exceptions", "PrefectHTTPStatusError") as error:
        _exit(f"Prefect's server: {str(error).splitlines()[0]}; its log says more (`cloze status`)", EXIT_FAILED)
    except Exception as error:
        line = _system_error(error)
        if not line:
            raise
        _exit(line, EXIT_USER)


def _system_error(error: BaseException | None) -> str:
    """Describe what the operating system or SQLite refused, if that has caused an exception, with a remedy."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _REMEDIES:
            place = error.filename2 or error.filename or "a file in build/, .cloze/ or .dvc/"  # the target, of a copy
            return f"{os.fsdecode(place)}: {error.strerror}; {_REMEDIES[error.errno]}"
        if isinstance(error, _loaded("sqlite3", "OperationalError")):
            others = f"{_PERMIT}, {_REMEDIES[errno.EFBIG]}, or {_FREE}"
            remedy = _FREE if error.sqlite_errorname == "SQLITE_FULL" else others
            return f"a database in .cloze/ or .dvc/: {error}; {remedy}"
        if isinstance(error, OSError) and error.errno == errno.ENOENT and not error.filename:  # of os.getcwd
            return "the current directory was deleted"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return ""


def _loaded(module: str, name: str) -> Any:
    """Return an exception class of a module for `except`, which catches nothing if the module is not loaded."""
    return getattr(sys.modules.get(module), name, ())


def _exit(message: str, code: int) -> None:
    with contextlib.suppress(FileNotFoundError):  # the directory was deleted
        message = message.replace(f"{Path.cwd()}/", "")
    lines = [printable(line) for line in message.split("\n") if line]  # from outside may come other ends of lines
    for line in lines if code == EXIT_USER else ["\n".join(lines)]:
        print(redacted(f"cloze: {line}"), file=sys.stderr, flush=True)
    sys.exit(code)
