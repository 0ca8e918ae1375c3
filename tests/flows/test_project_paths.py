"""Projects in directories with odd names: everything works there, or is refused in one line before any work."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
import yaml

from model.common.files import read_json
from tasks.project.project import MAX_PATH_BYTES
from tests.flows.cli.test_server_commands import Up
from tests.flows.clone import Clone, commit
from tests.tasks.project.test_project import REFUSED, USABLE, made

pytestmark = [pytest.mark.slow, pytest.mark.disruption]

COMBINED = "-a b é世#%20;&'\"[x]*(1)"
LONGEST = "as long as possible"
COMMANDS = [
    ["run"],
    ["run", "--params", "params.yaml"],
    ["repro"],
    ["up"],
    ["promote"],
    ["export", "pretrained", "out"],
]


@pytest.mark.parametrize("name", REFUSED)
def test_every_command_refuses_a_path_in_one_line(name: str, tmp_path: Path) -> None:
    clone = Clone(made(tmp_path / name))
    for command, (code, said) in zip(COMMANDS, clone.run_all(*COMMANDS), strict=True):
        assert code == 2 and len(said.splitlines()) == 1, (command, said)
        assert said.startswith("cloze: ") and REFUSED[name] in said
    assert not (clone.root / "build").exists() and not (clone.root / ".cloze").exists()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [COMBINED, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in (*USABLE, LONGEST))]
)
def test_a_project_works_at_an_odd_path_in_the_locale_c(name: str, finished: Clone, tmp_path: Path) -> None:
    root, home = longest(tmp_path) if name == LONGEST else tmp_path / name, tmp_path / "home"
    home.mkdir()
    clone = finished.copy(root)
    clone.environment |= {"LC_ALL": "C", "HOME": str(home)}
    clone.run("git", "worktree", "prune")
    before = clone.board()["notes"]

    note(clone, "run")
    assert "Traceback" not in clone.run("cloze", "run")
    assert "didn't change" in clone.run("dvc", "repro")
    note(clone, "repro")
    clone.run("cloze", "repro")
    commit(clone)

    note(clone, "params")
    (root / "params.yaml").rename(root / "params" / "noted.yaml")
    clone.run("git", "checkout", "params.yaml")
    local = root / ".dvc" / "config.local"
    local.write_text("['remote \"s3\"']\n    url = s3://bucket\n    secret_access_key = planted\n")
    local.chmod(0o644)
    assert "Traceback" not in clone.run("cloze", "run", "--params", "params/noted.yaml")
    [workspace] = (root / ".cloze" / "workspaces").glob("noted-*")
    assert Clone(workspace).board()["notes"] == ["params"]
    copied = workspace / ".dvc" / "config.local"
    assert copied.stat().st_mode & 0o777 == 0o600 and "planted" in copied.read_text(), "it may contain keys"
    local.unlink()
    assert not Clone(workspace).job_times("pretrain"), "DVC's cache has what is unchanged"

    clone.run("cloze", "promote", "--force", "--reason", "odd")
    clone.run("cloze", "export", "pretrained", "out")
    assert read_json(root / "out" / "config.json")

    note(clone, "up")
    servers = Up(clone)
    try:
        servers.up(cron="never")
        state = servers.wait(servers.start("leaderboard/leaderboard"), 120)
        assert state["type"] == "COMPLETED", state
        assert servers.runs("tags.`cloze.kind` = 'pipeline'")
    finally:
        clone.run("cloze", "down")

    pipelines, models = records(clone)
    assert pipelines == dict.fromkeys([*before, "run", "repro", "params", "up"], "FINISHED")
    assert "cloze-encoder" in models
    new = {line.split()[-1] for line in clone.run("git", "status", "--porcelain").splitlines()}
    assert new == {"params.yaml", "params/noted.yaml"}
    elsewhere = {path for path in tmp_path.rglob("*") if not path.is_relative_to(root) and path not in root.parents}
    assert elsewhere == {home}, "nothing is written elsewhere"


def longest(folder: Path) -> Path:
    """The longest path of a project below a folder."""
    path = folder / (("x" * 99 + "/") * ((MAX_PATH_BYTES - len(os.fsencode(folder)) - 2) // 100))
    path /= "x" * (MAX_PATH_BYTES - len(os.fsencode(path)) - 1)
    assert len(os.fsencode(path)) == MAX_PATH_BYTES
    return path


def note(clone: Clone, text: str) -> None:
    """Change the notes of the leaderboard: the run is a new one, and its other stages are cached."""
    clone.params(lambda content: content["leaderboard"].update(notes=[text]))


def records(clone: Clone) -> tuple[dict[str, str], list[str]]:
    """Note and status of each run in MLflow, by the parameters in its artifacts, and the registered models."""
    home = clone.root / ".cloze" / "mlflow"
    with sqlite3.connect(home / "mlflow.db") as database:
        [(location,)] = database.execute("SELECT artifact_location FROM experiments WHERE name = 'cloze'")
        runs = database.execute(
            "SELECT artifact_uri, status FROM runs JOIN tags USING (run_uuid)"
            " WHERE key = 'cloze.kind' AND value = 'pipeline'"
        ).fetchall()
        models = database.execute("SELECT name, source FROM model_versions").fetchall()
    assert location == (home / "artifacts").as_uri()
    found = {}
    for uri, status in runs:
        params = yaml.safe_load((place(uri, home) / "dvc" / "params.yaml").read_text())
        [text] = params["leaderboard"]["notes"]
        assert text not in found
        found[text] = status
    assert all(place(uri, home).is_dir() for _, uri in models)
    return found, [name for name, _ in models]


def place(uri: str, home: Path) -> Path:
    """The directory of artifacts in the home of MLflow."""
    path = Path(url2pathname(urlsplit(uri).path))
    assert path.is_relative_to(home / "artifacts")
    return path
