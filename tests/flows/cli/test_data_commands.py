"""`cloze fetch`: its messages, kill -9, a server that disappears, and files that it must not touch."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model.common.files import read_json
from tasks.project.template import create
from tests.flows.clone import Clone
from tests.tasks.fetch.servers import Files, Server, reply

pytestmark = pytest.mark.slow

CONTENT = random.Random(1).randbytes(6_000_000)


class Slow(Server):
    """Sends the first half of a file, and the rest only after `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        super().__init__(self._answer)

    def _answer(self, request: Any) -> None:
        begin = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        headers = {"Content-Range": f"bytes {begin}-{len(CONTENT) - 1}/{len(CONTENT)}"} if begin else {}
        if self.go.is_set():
            return reply(request, 206 if begin else 200, CONTENT[begin:], headers)
        request.send_response(206 if begin else 200)
        for name, value in ({"Content-Length": str(len(CONTENT) - begin)} | headers).items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(CONTENT[begin : len(CONTENT) // 2])
        self.go.wait(60)
        request.close_connection = True


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """A project without data."""
    create(tmp_path / "clone")
    return Clone(tmp_path / "clone")


@pytest.fixture
def files() -> Iterator[Files]:
    server = Files({"/b.txt": b"A book.", "/dump.xml": CONTENT})
    yield server
    server.close()


def asks(clone: Clone, *sources: dict[str, Any], **settings: Any) -> None:
    settings = {"wait_seconds": 0.1, "attempts": 2, "sources": list(sources)} | settings
    clone.params(lambda content: content.update(fetch=settings))


def https(url: str, name: str, to: str, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    return {"name": name, "door": "https", "url": f"{url}/{Path(to).name}", "sha256": digest, "to": to}


def last_line(said: str) -> str:
    assert "Traceback" not in said, said
    lines = [line for line in said.splitlines() if line.startswith("cloze: ")]
    assert len(lines) == 1, said
    return lines[0]


def test_fetching(clone: Clone, files: Files) -> None:
    assert "no fetch.sources; docs/fetch.md" in last_line(clone.run("cloze", "fetch", code=2))
    book, dump = (
        https(files.url, *args) for args in [("b", "books/b.txt", b"A book."), ("d", "other/dump.xml", CONTENT)]
    )
    asks(clone, book, {**dump, "sha256": ""})
    assert "fetch source 'd': sha256 is missing" in last_line(clone.run("cloze", "fetch", code=2))
    asks(clone, book, {**dump, "door": "ftp"})
    assert "'ftp'" in last_line(clone.run("cloze", "fetch", code=2))
    asks(clone, book, dump)
    assert "no fetch source 'c' in params.yaml, only b, d" in last_line(clone.run("cloze", "fetch", "c", code=2))
    said = clone.run("cloze", "fetch")
    assert "b: 1 files, 0.0 MB in data/books/b.txt" in said
    assert "data/other/dump.xml: no stage in dvc.yaml depends on it" in said
    assert "run `cloze run --accept-data` to pin" in said
    assert (clone.root / "data" / "other" / "dump.xml").read_bytes() == CONTENT
    asked = len(files.requests)
    begun = time.monotonic()
    assert "Everything is up to date: data/ contains all 2 sources, unchanged" in clone.run("cloze", "fetch")
    assert time.monotonic() - begun < 10 and len(files.requests) == asked  # no server is started, none is asked
    assert "did not create" in last_line(clone.run("cloze", "sample", code=2))
    (clone.root / "data" / "books" / "b.txt").write_text("My book")
    assert "data/books/b.txt: was changed since" in last_line(clone.run("cloze", "fetch", code=2))
    assert (clone.root / "data" / "books" / "b.txt").read_text() == "My book"


@pytest.mark.disruption
def test_kill_9_and_a_server_that_disappears(clone: Clone, files: Files) -> None:
    slow, gone = Slow(), Files({})
    gone.close()
    try:
        asks(
            clone,
            https(gone.url, "v", "other/v.txt", b"v"),
            https(slow.url, "d", "wikipedia/dump.xml", CONTENT),
            https(files.url, "b", "books/b.txt", b"A book."),
        )
        process = clone.start("cloze", "fetch", "d")
        rooms = clone.root / "build" / "runs" / "fetch"
        clone.wait_for(lambda: any(path.stat().st_size > 2_000_000 for path in rooms.rglob("parts/*")), process)
        clone.kill(process)
        assert not [path for path in (clone.root / "data").rglob("*") if path.is_file()]
        slow.go.set()
        line = last_line(clone.run("cloze", "fetch", code=75))
    finally:
        slow.go.set()
        slow.close()
    assert "/v.txt: the connection failed (ConnectionError), repeatedly; downloaded data is kept" in line
    assert line.endswith("rerun the same command to resume")
    [(_, _, first), (_, _, second)] = slow.requests
    assert first == "" and int(second.removeprefix("bytes=").rstrip("-")) > 2_000_000
    assert (clone.root / "data" / "wikipedia" / "dump.xml").read_bytes() == CONTENT
    assert sorted(read_json(clone.root / "data" / "FETCHED.json")["sources"]) == ["b", "d"]  # the others have come
    assert not (clone.root / "data" / "other").exists()


def test_standard_input(clone: Clone) -> None:
    command = "printf '<mediawiki></mediawiki>' | cloze fetch --stdin wikipedia/d.xml"
    environment = clone.environment | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(command, shell=True, cwd=clone.root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (clone.root / "data" / "wikipedia" / "d.xml").read_text() == "<mediawiki></mediawiki>"
    again = subprocess.run(command, shell=True, cwd=clone.root, env=environment, capture_output=True, text=True)
    assert again.returncode == 2
    assert "data/wikipedia/d.xml: exists" in last_line(again.stderr)
    assert "--stdin writes one file" in last_line(clone.run("cloze", "fetch", "b", "--stdin", "x", code=2))


def test_a_dry_run_lists_what_pins_each_source(clone: Clone) -> None:
    revision = "0123456789abcdef0123456789abcdef01234567"
    hub = {"name": "hub", "kind": "dataset", "repo": "a/b", "revision": revision, "to": "hub"}
    local = {"name": "own", "kind": "local", "path": "/nowhere", "to": "own"}
    asks(clone, https("http://127.0.0.1:9", "b", "books/b.txt", b"A book."), hub, local)
    digest = hashlib.sha256(b"A book.").hexdigest()
    assert clone.run("cloze", "fetch", "--dry-run").splitlines() == [
        f"b: https, http://127.0.0.1:9/b.txt, sha256 {digest}, to data/books/b.txt",
        f"hub: dataset, hub:a/b:train, revision {revision}, to data/hub",
        "own: local, /nowhere, not pinned, to data/own",
    ]
    assert not (clone.root / "build" / "runs").exists()
