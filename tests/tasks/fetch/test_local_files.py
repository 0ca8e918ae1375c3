"""Folders and archives of this machine, pipes, and what data/ holds already."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.common.errors import UserError
from model.common.files import read_json
from tasks.fetch import fetch_sources
from tasks.project import workspace
from tasks.project.project import Project
from tests.tasks.fetch.conftest import Fetch

Bend = Callable[[tarfile.TarInfo], None]


@pytest.fixture
def books(tmp_path: Path) -> Path:
    folder = tmp_path / "books"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "one.txt").write_text("One.")
    (folder / "two.txt").write_text("Two.")
    return folder


def below(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


BOTH = {"a/one.txt": "One.", "two.txt": "Two."}


def tar(path: Path, files: dict[str, bytes], bend: Bend = lambda _: None, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            bend(entry)
            archive.addfile(entry, io.BytesIO(content) if entry.isreg() else None)
    return path


def test_a_folder(books: Path, fetch: Fetch, project: Project) -> None:
    source = {"kind": "local", "path": str(books), "to": "books/mine"}
    assert fetch(source) == {"files": 2, "bytes": 8}
    assert below(project.data / "books" / "mine") == BOTH
    assert fetch(source) == {}
    (books / "two.txt").write_text("TWO.")  # as long as before
    (books / "a" / "one.txt").unlink()
    assert fetch(source) == {}
    assert fetch(source, refresh=True)["files"] == 1
    assert below(project.data / "books" / "mine") == {"two.txt": "TWO."}


def test_a_file(books: Path, fetch: Fetch, project: Project) -> None:
    fetch({"kind": "local", "path": str(books / "two.txt"), "to": "books/second.txt"})
    assert below(project.data / "books") == {"second.txt": "Two."}


@pytest.mark.parametrize("mode", ["zip", "w", "w:gz", "w:bz2", "w:xz"])
def test_archives(tmp_path: Path, fetch: Fetch, project: Project, mode: str) -> None:
    path = tmp_path / {"zip": "b.zip", "w": "b.tar"}.get(mode, f"b.tar.{mode[2:]}")
    if mode == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.mkdir("a")
            for name, text in BOTH.items():
                archive.writestr(name, text)
    else:
        tar(path, {name: text.encode() for name, text in BOTH.items()}, mode=mode)
    source = {"kind": "local", "path": str(path), "to": "books/mine"}
    assert fetch(source)["files"] == 2
    assert below(project.data / "books" / "mine") == BOTH
    path.write_bytes(path.read_bytes()[:-700] if mode == "w" else path.read_bytes()[: path.stat().st_size // 2])
    if mode != "w":
        with pytest.raises(UserError, match=r"b\.\S+: (not an archive, or )?the archive is damaged"):
            fetch(source, refresh=True)
    assert below(project.data / "books" / "mine") == BOTH


@pytest.mark.parametrize("name", ["../out.txt", "/abs.txt", "a/../../out.txt", "..\\out.txt", "C:out.txt"])
def test_names_that_lead_out(tmp_path: Path, fetch: Fetch, project: Project, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("good.txt", "x")
        archive.writestr(name, "x")
    for path in (tmp_path / "b.zip", tar(tmp_path / "b.tar.gz", {"good.txt": b"x", name: b"x"})):
        with pytest.raises(UserError, match="is outside its folder"):
            fetch({"kind": "local", "path": str(path), "to": "books/mine"})
    assert not project.data.exists()
    assert not list(tmp_path.rglob("out.txt"))


def test_links_and_devices_stay_out(tmp_path: Path, fetch: Fetch, project: Project) -> None:
    def bend(entry: tarfile.TarInfo) -> None:
        if entry.name.startswith("link"):
            entry.type, entry.linkname, entry.size = tarfile.SYMTYPE, "/etc/passwd", 0
        if entry.name.startswith("device"):
            entry.type, entry.size = tarfile.CHRTYPE, 0

    path = tar(tmp_path / "b.tar.gz", {"link": b"", "device": b"", "good.txt": b"x"}, bend)
    try:
        fetch({"kind": "local", "path": str(path), "to": "books/mine"})
    except UserError as error:
        assert "special" in str(error) or "device" in str(error)
        assert not project.data.exists()
    else:
        assert below(project.data / "books" / "mine") == {"good.txt": "x"}
    assert not any(path.is_symlink() for path in project.root.rglob("*"))


def test_a_bomb(tmp_path: Path, fetch: Fetch, project: Project) -> None:
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.txt", bytes(20_000_000))
    for path in (tmp_path / "b.zip", tar(tmp_path / "b.tar.xz", {"zeros.txt": bytes(20_000_000)}, mode="w:xz")):
        with pytest.raises(UserError, match=r"more than 1,000,000 bytes in it; it was discarded"):
            fetch({"kind": "local", "path": str(path), "to": "books"}, max_unpacked_bytes=1_000_000)
    assert not project.data.exists()
    assert sum(path.stat().st_size for path in project.root.rglob("*") if path.is_file()) < 3_000_000


def test_what_others_put_there_is_never_touched(books: Path, fetch: Fetch, project: Project) -> None:
    source = {"kind": "local", "path": str(books), "to": "books"}
    project.data.joinpath("books").mkdir(parents=True)
    project.data.joinpath("books", "mine.txt").write_text("Mine.")
    with pytest.raises(
        UserError, match=r"^data/books/mine\.txt: exists, but fetch source 's' did not create it; move it away"
    ):
        fetch(source)
    assert below(project.data) == {"books/mine.txt": "Mine."}
    fetch(source | {"to": "books/theirs"})
    assert below(project.data / "books") == {"mine.txt": "Mine.", "theirs/a/one.txt": "One.", "theirs/two.txt": "Two."}
    with pytest.raises(UserError, match=r"^data/books/mine\.txt: is a file"):
        fetch(source | {"to": "books/mine.txt/below"})


def test_what_was_changed_after_it_came_is_never_overwritten(books: Path, fetch: Fetch, project: Project) -> None:
    source = {"kind": "local", "path": str(books), "to": "books"}
    fetch(source)
    (project.data / "books" / "two.txt").write_text("Two!")
    with pytest.raises(UserError, match=r"^data/books/two\.txt: was changed since `cloze fetch` brought it"):
        fetch(source)
    (project.data / "books" / "two.txt").unlink()
    assert fetch(source)["files"] == 2
    (project.data / "books" / "mine.txt").write_text("Mine.")
    assert fetch(source) == {}
    with pytest.raises(UserError, match=r"^data/books/mine\.txt: exists"):
        (books / "two.txt").unlink()
        fetch(source, refresh=True)


def test_another_place(books: Path, fetch: Fetch, project: Project) -> None:
    source = {"kind": "local", "path": str(books), "to": "books/a"}
    fetch(source)
    fetch(source | {"to": "books/b"})
    assert below(project.data / "books") == {f"b/{name}": text for name, text in BOTH.items()}
    fetch(source | {"path": str(books / "two.txt"), "to": "books/b"})  # a file where the folder was
    assert below(project.data / "books") == {"b": "Two."}
    fetch(source | {"to": "books/b"})
    assert below(project.data / "books" / "b") == BOTH


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_while_a_source_is_put_in_its_place(
    books: Path, fetch: Fetch, project: Project, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    source = {"kind": "local", "path": str(books), "to": "books"}
    fetch(source)
    (books / "two.txt").write_text("TWO.")
    move = fetch_sources.publish

    def dies(origin: Path, target: Path) -> None:
        if moment == "after":
            move(origin, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch_sources, "publish", dies)
    with pytest.raises(KeyboardInterrupt):
        fetch(source, refresh=True)
    expected = "TWO." if moment == "after" else "Two."
    assert (project.data / "books" / "two.txt").read_text() == expected  # the one or the other, whole
    monkeypatch.setattr(fetch_sources, "publish", move)
    assert bool(fetch(source)) == (moment == "before")
    assert below(project.data / "books") == BOTH | {"two.txt": "TWO."}
    assert "replaces" not in read_json(project.data / "FETCHED.json")["sources"]["s"]
    assert fetch(source) == {}


def test_data_on_another_disk(books: Path, fetch: Fetch, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    move = workspace._move

    def far(origin: Path, target: Path) -> None:
        if not origin.is_relative_to(project.data):
            raise OSError(18, os.strerror(18))
        move(origin, target)

    monkeypatch.setattr(workspace, "_move", far)
    fetch({"kind": "local", "path": str(books), "to": "books"})
    assert below(project.data / "books") == BOTH
    assert sorted(path.name for path in project.data.iterdir()) == ["FETCHED.json", "books"]


def test_mistakes(books: Path, fetch: Fetch, project: Project) -> None:
    with pytest.raises(UserError, match="missing; the fetch source 's' reads it"):
        fetch({"kind": "local", "path": str(books / "none"), "to": "books"})
    (books / "empty").mkdir()
    with pytest.raises(UserError, match="a folder without files"):
        fetch({"kind": "local", "path": str(books / "empty"), "to": "books"})
    project.data.mkdir()
    (project.data / "FETCHED.json").write_text("{")
    with pytest.raises(UserError, match=r"^data/FETCHED\.json: not a record"):
        fetch({"kind": "local", "path": str(books), "to": "books"})


def receive(project: Project, content: bytes, to: str = "wikipedia/d.xml", sha256: str = "") -> Any:
    return fetch_sources.receive(project, io.BytesIO(content), to, sha256, lambda *_: None)


def test_a_pipe(project: Project) -> None:
    dump = b"<mediawiki>" + b"x" * 3_000_000 + b"</mediawiki>\n"
    for content, sha256, message in [
        (b"", "", "the input is empty"),
        (dump[:-5], "", "ends without </mediawiki>"),
        (dump, "0" * 64, "its sha256 is"),
    ]:
        with pytest.raises(UserError, match=f"^--stdin wikipedia/d.xml: {message}"):
            receive(project, content, sha256=sha256)
    assert not project.data.exists()
    assert receive(project, dump, sha256=hashlib.sha256(dump).hexdigest())["bytes"] == len(dump)
    assert (project.data / "wikipedia" / "d.xml").read_bytes() == dump
    with pytest.raises(UserError, match=r"^data/wikipedia/d\.xml: exists"):
        receive(project, dump)
    with pytest.raises(UserError, match="expected a path below data/"):
        receive(project, dump, to="../d.xml")
    assert not (project.runs / "fetch" / "stdin").exists()
