"""The `cloze` command line.

The modules of this package import what a command needs inside the command, so that `cloze --help` is quick.
"""

from __future__ import annotations

import errno
import sys
from typing import Any

import click

from flows.cli import (
    data_commands,
    leaderboard_commands,
    maintenance_commands,
    predict_commands,
    registry_commands,
    run_commands,
    server_commands,
)
from flows.cli.context import EXIT_INTERRUPTED, EXIT_PAUSED, EXIT_USER
from model.common.errors import Paused, UserError


class CommandGroup(click.Group):
    """A group that lists its commands in the order of definition and suggests the nearest name for a misspelled one."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Return the names of the commands in the order of definition."""
        return list(self.commands)

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        """Find a command.

        Raises:
            UserError: no command has this name; the message suggests the nearest one.
        """
        import difflib

        name = args[0]
        if self.get_command(context, name) is None and not name.startswith("-"):
            nearest = difflib.get_close_matches(name, self.commands, n=1)
            raise UserError(f"no command '{name}'" + (f"; did you mean '{nearest[0]}'?" if nearest else ""))
        return super().resolve_command(context, args)


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Pre-train, fine-tune and rank BERT encoders.

    Start with `cloze sample` and `cloze run`.
    """


for _command in (
    data_commands.sample,
    data_commands.fetch,
    run_commands.run,
    run_commands.repro,
    run_commands.corpus,
    run_commands.tokenizer,
    run_commands.tokens,
    run_commands.pretrain,
    run_commands.finetune,
    leaderboard_commands.leaderboard,
    leaderboard_commands.board,
    leaderboard_commands.compare,
    leaderboard_commands.score,
    predict_commands.predict,
    predict_commands.fill_mask,
    predict_commands.embed,
    registry_commands.export,
    registry_commands.promote,
    registry_commands.rollback,
    registry_commands.champion,
    server_commands.up,
    server_commands.down,
    server_commands.status,
    server_commands.deploy,
    maintenance_commands.logs,
    maintenance_commands.verify,
    maintenance_commands.gc,
    maintenance_commands.doctor,
):
    cli.add_command(_command)


def main() -> None:
    """Run the command line. A user's mistake prints one line and exits with 2."""
    from model.common import process_guard
    from tasks.jobs.supervision import JobsFailed

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
        _exit(f"{error}; rerun the same command to resume", EXIT_PAUSED)
    except (KeyboardInterrupt, click.Abort):
        _exit("interrupted", EXIT_INTERRUPTED)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" ({error.filename})" if error.filename else ""
        _exit(f"no space left on the disk{where}; free some space, for example with `cloze gc`", EXIT_USER)


def _exit(message: str, code: int) -> None:
    from model.common.redaction import redacted

    print(redacted(f"cloze: {message}"), file=sys.stderr, flush=True)
    sys.exit(code)
