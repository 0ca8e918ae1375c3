from __future__ import annotations

from pathlib import Path

import pytest

from model.common.errors import UserError
from tasks.dvc.stage_snapshot import Snapshot, check_declared
from tasks.project.project import Project

DVC = """
stages:
  tokens:
    cmd: "true"
    deps: [build/corpus]
    params: [tokens, {versions.yaml: [tokens]}]
    outs: [build/tokens]
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "dvc.yaml").write_text(DVC)
    (tmp_path / "params.yaml").write_text("tokens: {a: 1}\nother: 1\n")
    (tmp_path / "versions.yaml").write_text("tokens: 1\nother: 1\n")
    (tmp_path / "build" / "corpus").mkdir(parents=True)
    (tmp_path / "build" / "corpus" / "shard").write_text("text")
    return Project(tmp_path, tmp_path)


def edit(project: Project, name: str, content: str) -> None:
    (project.root / name).write_text(content)


def test_what_the_stage_does_not_read_may_change(project: Project) -> None:
    snapshot = Snapshot.take(project, "tokens")
    edit(project, "params.yaml", "# a comment\ntokens: {a: 1}\nother: 2\n")
    edit(project, "versions.yaml", "tokens: 1\nother: 2\n")
    snapshot.verify(project)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("params.yaml", "tokens: {a: 2}\n", "params.yaml: 'tokens' was edited while tokens ran"),
        ("versions.yaml", "tokens: 2\n", "versions.yaml: 'tokens' was edited"),
        ("build/corpus/shard", "other", "build/corpus/shard was changed"),
        ("build/corpus/more", "text", "build/corpus/more was changed"),
    ],
)
def test_what_it_reads_may_not(project: Project, name: str, content: str, message: str) -> None:
    snapshot = Snapshot.take(project, "tokens")
    edit(project, name, content)
    with pytest.raises(UserError, match=message):
        snapshot.verify(project)


def test_a_missing_input_is_named(project: Project) -> None:
    (project.root / "build" / "corpus" / "shard").unlink()
    (project.root / "build" / "corpus").rmdir()
    with pytest.raises(UserError, match="build/corpus is missing, and tokens reads it"):
        Snapshot.take(project, "tokens")


def test_an_input_that_dvc_does_not_see_is_refused(project: Project) -> None:
    check_declared(project, "tokens", project.build / "corpus" / "shard")
    check_declared(project, "tokens", project.build / "corpus")
    (project.data / "encoders" / "mini").mkdir(parents=True)
    (project.data / "mini").mkdir()
    with pytest.raises(UserError, match=r"tokens reads data/encoders/mini; add `- data/encoders` to the deps"):
        check_declared(project, "tokens", project.data / "encoders" / "mini")
    with pytest.raises(UserError, match=r"add `- data/mini` to the deps"):
        check_declared(project, "tokens", project.data / "mini")


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("mytexts", "did you mean data/mytext?"),
        ("task/tickets.yaml", "did you mean data/tasks/tickets.yaml?"),
        ("tasks/ticket.yaml", "did you mean data/tasks/tickets.yaml?"),
        ("other/tickets.yaml", "data contains mytext, tasks"),
        ("tasks/tickets.yaml/rows.csv", "data/tasks/tickets.yaml contains nothing"),
    ],
)
def test_an_input_that_does_not_exist_is_refused_with_the_nearest(project: Project, path: str, advice: str) -> None:
    (project.data / "mytext").mkdir(parents=True)
    (project.data / "tasks").mkdir()
    edit(project, "data/tasks/tickets.yaml", "head: classes")
    with pytest.raises(UserError) as caught:
        check_declared(project, "tokens", project.data / path)
    assert str(caught.value) == f"tokens reads data/{path}, which does not exist; {advice}"
