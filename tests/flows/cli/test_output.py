"""Where commands write: results to stdout, notes to stderr; -q and -v, JSON, and colors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from flows.cli.main import cli
from tests.flows.clone import CLOZE, Clone, new_clone
from tests.terminal import COLOR, ESCAPE, on_terminal


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A project with data and nothing built."""
    return new_clone(tmp_path_factory.mktemp("project"))


def cloze(clone: Clone, *words: str, code: int = 0, **variables: str) -> tuple[str, str]:
    """Run a command and return its stdout and stderr."""
    given = {**clone.environment, **variables}
    done = subprocess.run([*CLOZE, *words], cwd=clone.root, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def documented(root: Path, command: str) -> set[str]:
    """Top-level JSON keys of a command in docs/command-line.md."""
    text = (root / "docs" / "command-line.md").read_text(encoding="utf-8")
    [row] = [line for line in text.splitlines() if line.startswith(f"| `{command} --json`")]
    return {part.split("`")[1] for part in row.split("|")[2].split(";")}


def test_every_command_has_the_verbosity_options() -> None:
    for command in (cli, *cli.commands.values()):
        options = {flag for one in command.params for flag in one.opts}
        assert {"-q", "--quiet", "-v", "--verbose"} <= options, command.name


@pytest.mark.parametrize("words", [["-q", "board", "-v"], ["board", "-q", "-v"]])
def test_quiet_and_verbose_cannot_be_combined(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOZE_VERBOSITY", "")
    with pytest.raises(click.UsageError, match="-q and -v cannot be combined"):
        cli.main(words, standalone_mode=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code"), [("run --dry-run", 0), ("status", 1), ("logs", 0), ("doctor", 0), ("verify", 0)]
)
def test_json_is_one_document_with_the_documented_keys(root: Path, clone: Clone, command: str, code: int) -> None:
    out, _ = cloze(clone, *command.split(), "--json", code=code)
    content: dict[str, Any] = json.loads(out)
    assert set(content) == documented(root, command)


@pytest.mark.slow
def test_json_of_a_dry_run(clone: Clone) -> None:
    content = json.loads(cloze(clone, "run", "--dry-run", "--json")[0])
    assert [one["stage"] for one in content["stages"]][-2:] == ["finetune", "leaderboard"]
    assert {one["action"] for one in content["stages"]} == {"run"} and all(one["reasons"] for one in content["stages"])
    assert content["pretrain"] == ["pretrained", "scratch"]
    assert content["num_finetune_jobs"] == 26 and content["seconds"] is None


@pytest.mark.slow
def test_a_damaged_file_fails_verify_also_as_json(clone: Clone, tmp_path: Path) -> None:
    copy = clone.copy(tmp_path / "copy")
    damaged = min(path for path in (copy.root / "data" / "books").rglob("*") if path.is_file())
    damaged.unlink()  # perhaps a link to the cache
    damaged.write_text("something else")
    [fault] = json.loads(cloze(copy, "verify", "--json", code=1)[0])["faults"]
    assert damaged.name in fault
    assert cloze(copy, "verify", "-q", code=1) == (f"{fault}\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--json"], "cloze: --json needs --dry-run"),
        (
            ["logs", "rte", "--json"],
            "cloze: --json lists the jobs; the log of a job is text, whose path is in the list",
        ),
    ],
)
def test_where_json_is_refused(clone: Clone, words: list[str], message: str) -> None:
    assert cloze(clone, *words, code=2) == ("", f"{message}\n")


@pytest.mark.slow
def test_quiet_hides_notes_and_keeps_results(clone: Clone) -> None:
    out, err = cloze(clone, "verify")
    assert out == "all files match their recorded hashes\n" and "files are recorded" in err
    assert cloze(clone, "verify", "-q") == cloze(clone, "-q", "verify") == (out, "")
    assert cloze(clone, "verify", CLOZE_VERBOSITY="quiet") == (out, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "is_colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colors_on_a_terminal(clone: Clone, variables: dict[str, str], is_colored: bool) -> None:
    written = on_terminal([*CLOZE, "doctor"], clone.root, environment=clone.environment, **variables)
    assert bool(COLOR.search(written)) == is_colored
    assert any(line.startswith("ok ") for line in ESCAPE.sub("", written).splitlines())


@pytest.mark.parametrize(("variables", "is_colored"), [({}, False), ({"FORCE_COLOR": "1"}, True)])
def test_colors_of_a_table_in_a_file(root: Path, variables: dict[str, str], is_colored: bool) -> None:
    program = (
        "from flows.cli.maintenance_commands import _print_findings, Finding; _print_findings([Finding('a', 'b')])"
    )
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    given = {**inherited, "TERM": "xterm", **variables}
    done = subprocess.run([sys.executable, "-c", program], cwd=root, env=given, capture_output=True, text=True)
    assert done.returncode == 0 and bool(COLOR.search(done.stdout)) == is_colored


@pytest.mark.slow
def test_a_file_gets_no_colors(clone: Clone) -> None:
    assert "\x1b" not in cloze(clone, "doctor")[0]
