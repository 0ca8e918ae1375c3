"""The graph as DVC tells it, on a small pipeline of shell commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model.common.errors import UserError
from tasks.dvc.graph import Graph
from tasks.dvc.integrity import pinned_data
from tasks.project.project import Project
from tests.tasks.dvc.conftest import DVC, dvc, run_stale, write_version


def stale(graph: Graph, after: frozenset[str] = frozenset()) -> list[str]:
    return [stage for stage in graph.stages if graph.status(stage, after).reasons]


def test_both_doors_agree(project: Project) -> None:
    graph = Graph(project)
    assert graph.stages == ["one", "two"]
    assert stale(graph) == ["one", "two"]
    dvc("repro", "-q")
    assert stale(Graph(project)) == []

    Path("params.yaml").write_text("a: 2\n")
    graph = Graph(project)
    assert graph.status("one").reasons == ("a: 1 → 2",)
    Path("build/one").write_text("made by cloze run")
    graph.record("one")
    assert stale(graph, after=frozenset(["one"])) == ["two"]
    (project.build / "two" / "out").write_text("made by cloze run")
    graph.record("two")
    assert dvc("status").strip() == "Data and pipelines are up to date."
    assert "Running stage" not in dvc("repro")


def test_a_stage_is_restored_from_the_run_cache(project: Project) -> None:
    dvc("repro", "-q")
    first = Path("build/one").read_text()
    Path("params.yaml").write_text("a: 2\n")
    dvc("repro", "-q")
    Path("params.yaml").write_text("a: 1\n")
    graph = Graph(project)
    assert graph.restore(graph.status("one"))
    assert Path("build/one").read_text() == first
    assert not graph.status("one", after=frozenset(["one"])).reasons
    Path("params.yaml").write_text("a: 3\n")
    graph = Graph(project)
    assert not graph.restore(graph.status("one"))


def test_a_missing_input_or_section_is_no_fault_of_the_run_cache(project: Project) -> None:
    Path("params.yaml").write_text("b: 1\n")
    graph = Graph(project)
    with pytest.raises(UserError, match=r"one: Parameters 'a' are missing .* Add the section"):
        graph.restore(graph.status("one"))
    Path("dvc.yaml").write_text(DVC.replace("deps: [data/x]", "deps: [data/x, data/encoders]"))
    Path("params.yaml").write_text("a: 1\n")
    graph = Graph(project)
    assert not graph.restore(graph.status("one"))


def test_going_back_restores_every_stage_and_is_foretold(
    persistent: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    dvc("repro", "-q")
    first = Path("build/two/out").read_text()
    Path("params.yaml").write_text("a: 2\n")
    Path("other.yaml").write_text("a: 1\n")
    graph = Graph(persistent, may_write=False)
    assert graph.would_restore(graph.status("one"), {}) is None
    assert run_stale(persistent) == {"one": False, "two": False}
    assert Path("build/two/out").read_text() != first
    capfd.readouterr()
    elsewhere = Graph(persistent, params_path=Path("other.yaml").resolve(), may_write=False)
    assert elsewhere.would_restore(elsewhere.status("one"), {}) is not None

    Path("params.yaml").write_text("a: 1\n")
    graph = Graph(persistent, may_write=False)
    found = graph.would_restore(graph.status("one"), {})
    assert found is not None
    assert not graph.status("two").reasons, "with the files as they are"
    status = graph.status("two", upstream=found)
    assert status.reasons == ("deps: build/one modified",)
    assert graph.would_restore(status, found) is not None
    assert capfd.readouterr() == ("", ""), "DVC prints nothing of its own"
    assert Path("build/two/out").read_text() != first
    assert run_stale(persistent) == {"one": True, "two": True}
    assert Path("build/two/out").read_text() == first
    assert dvc("status").strip() == "Data and pipelines are up to date."


def test_results_that_persist_are_brought_for_other_inputs(persistent: Project) -> None:
    project = persistent
    dvc("repro", "-q")
    shutil.rmtree("build/two")
    write_version(2)
    graph = Graph(project)
    assert not graph.restore(graph.status("two"))  # to be run again, beside what it made before
    assert Path("build/two/out").exists()
    [cached] = [path for path in Path(".dvc/cache/files/md5").glob("*/*") if path.read_bytes() == b"xa: 1\n"]
    cached.chmod(0o644)
    cached.write_text("damaged")
    cached.chmod(0o444)
    shutil.rmtree("build/two")
    graph = Graph(project)
    with pytest.raises(UserError, match="damaged"):
        graph.restore(graph.status("two"))


def test_data_as_pinned_is_taken_though_the_cache_is_empty(project: Project) -> None:
    shutil.rmtree(".dvc/cache")
    graph = Graph(project)
    graph.check_data(accept=False)
    assert graph.status("one").reasons
    assert "data" not in dvc("status", "data.dvc").replace("Data and pipelines", "")


def test_changed_data_is_refused_unless_accepted(project: Project) -> None:
    Path("data/folder").mkdir()
    for name in ("gone", "kept"):
        Path("data/folder", name).write_text(name)
    dvc("add", "-q", "data")
    Graph(project).check_data(accept=False)
    before = pinned_data(project)
    Path("data/x").write_text("y")
    Path("data/folder/gone").unlink()
    for name in "abcd":
        Path("data/folder", name).write_text("new")
    names = "1 changed: x; 4 added: folder/a, folder/b, folder/c, ...; 1 deleted: folder/gone; pass --accept-data"
    with pytest.raises(UserError, match=f"^data/ differs from its pin in data.dvc: {names}"):
        Graph(project).check_data(accept=False)
    graph = Graph(project)
    graph.check_data(accept=True)
    assert pinned_data(project) != before
    Graph(project).check_data(accept=False)
