"""The help of `cloze` and of its commands."""

from __future__ import annotations

import shlex
from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner

from flows.cli.main import CommandGroup, cli
from model.common.errors import UserError


def test_the_version_is_that_of_the_package() -> None:
    shown = CliRunner().invoke(cli, ["--version"], prog_name="cloze")
    assert shown.output == f"cloze {version('cloze')}\n"


def test_every_command_is_listed_under_a_topic() -> None:
    listed = [name for names in CommandGroup.topics.values() for name in names]
    assert sorted(listed) == sorted(cli.commands)


@pytest.mark.parametrize("command", ["", *cli.commands])
def test_the_help_fits_80_columns_and_explains_every_option(command: str) -> None:
    shown = CliRunner().invoke(cli, [*command.split(), "--help"], terminal_width=80)
    assert shown.exit_code == 0
    assert max(map(len, shown.output.splitlines())) <= 80
    assert '""' not in shown.output
    assert "..." not in shown.output.partition("Commands:")[2], "a short description is cut"
    if command:
        options = [one for one in cli.commands[command].params if isinstance(one, click.Option)]
        assert all(option.help for option in options)


@pytest.mark.parametrize("name", [name for name, command in cli.commands.items() if command.epilog])
def test_the_examples_in_the_help_are_accepted(name: str) -> None:
    epilog = cli.commands[name].epilog
    assert epilog is not None
    for line in epilog.splitlines()[2:]:
        _, command, *words = shlex.split(line)
        assert command == name
        cli.commands[name].make_context(name, words)


@pytest.mark.parametrize(("given", "message"), [("rn", "did you mean 'run'"), ("xyzzy", "see `cloze --help`")])
def test_an_unknown_command(given: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        cli.main([given], standalone_mode=False)
