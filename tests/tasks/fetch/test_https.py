"""Files from a web server: resumed, tried again, refused with another digest, never half-written."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest

from model.common.errors import Paused, UserError
from model.common.files import read_json
from tasks.project import signals
from tasks.project.project import Project
from tests.tasks.fetch.conftest import Fetch
from tests.tasks.fetch.servers import Files

CONTENT = random.Random(1).randbytes(5_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def source(files: Files, **more: Any) -> dict[str, Any]:
    files.files = files.files or {"/dump.xml.bz2": CONTENT}
    url = f"{files.url}/dump.xml.bz2?token=secret"
    return {"kind": "https", "url": url, "sha256": DIGEST, "to": "wikipedia/dump.xml.bz2"} | more


def lying(project: Project) -> list[str]:
    """What a fetch left below data/ and in its rooms."""
    both = [project.data, project.runs / "fetch"]
    found = [path for folder in both for path in folder.rglob("*") if path.is_file() and path.name != "seen.json"]
    return sorted(path.relative_to(project.root).as_posix() for path in found)


WHOLE = ["data/FETCHED.json", "data/wikipedia/dump.xml.bz2"]


def test_a_file_comes_once(files: Files, fetch: Fetch, project: Project) -> None:
    assert fetch(source(files)) == {"files": 1, "bytes": len(CONTENT)}
    assert (project.data / "wikipedia" / "dump.xml.bz2").read_bytes() == CONTENT
    assert lying(project) == WHOLE
    entry = read_json(project.data / "FETCHED.json")["sources"]["s"]
    shown = f"{files.url}/dump.xml.bz2"
    assert entry["from"] == shown
    assert entry["files"] == {
        "wikipedia/dump.xml.bz2": {"bytes": len(CONTENT), "sha256": DIGEST, "url": shown, "checked": "sha256"}
    }
    assert "secret" not in (project.data / "FETCHED.json").read_text()
    asked = len(files.requests)
    assert fetch(source(files)) == {}
    (project.runs / "fetch" / "seen.json").unlink()  # as in another clone: read again, not fetched again
    assert fetch(source(files)) == {}
    assert len(files.requests) == asked


def test_a_server_that_vanishes_in_the_middle(files: Files, fetch: Fetch, project: Project) -> None:
    files.cut_after = 0
    asked = source(files)
    with pytest.raises(Paused, match=r"dump\.xml\.bz2: the connection failed .*, repeatedly; downloaded data is"):
        fetch(asked)
    files.cut_after = 1_500_000
    files.files["/dump.xml.bz2"] = CONTENT[:3_000_000]  # 3 MB come, then nothing more
    assert (project.data / "wikipedia").exists() is False
    files.requests.clear()
    with pytest.raises(UserError, match="its sha256 is"):
        fetch(asked)
    assert lying(project) == []


def test_it_goes_on_where_it_stopped(files: Files, fetch: Fetch, project: Project) -> None:
    asked = source(files)
    files.cut_after = 2_000_000
    with pytest.raises(Paused):
        fetch(asked, attempts=1)
    files.cut_after = None
    files.requests.clear()
    fetch(asked)
    [(_, _, wanted)] = files.requests
    assert int(wanted.removeprefix("bytes=").rstrip("-")) >= 1_000_000
    assert lying(project) == WHOLE


@pytest.mark.parametrize("ranges", [True, False])
def test_a_server_that_breaks_off_again_and_again(files: Files, fetch: Fetch, ranges: bool) -> None:
    asked = source(files)
    files.ranges = ranges
    files.cut_after = 1_700_000 if ranges else None
    files.fail_every = 2
    assert fetch(asked)["bytes"] == len(CONTENT)
    assert len(files.requests) >= (4 if ranges else 1)


def test_a_server_without_ranges_that_breaks_off_at_the_same_place(files: Files, fetch: Fetch) -> None:
    asked = source(files)
    files.ranges, files.cut_after = False, 2_000_000
    with pytest.raises(Paused, match="repeatedly"):
        fetch(asked)
    assert len(files.requests) <= 4


def test_another_version_is_begun_anew(files: Files, fetch: Fetch, project: Project) -> None:
    old = random.Random(2).randbytes(len(CONTENT))
    files.files = {"/dump.xml.bz2": old}
    files.cut_after = 2_000_000
    with pytest.raises(Paused):
        fetch(source(files), attempts=1)
    files.cut_after = None
    files.files = {"/dump.xml.bz2": CONTENT}
    fetch(source(files))  # the ETag tells
    assert (project.data / "wikipedia" / "dump.xml.bz2").read_bytes() == CONTENT


def test_halves_of_two_versions_are_seen_by_the_digest(files: Files, fetch: Fetch, project: Project) -> None:
    files.files = {"/dump.xml.bz2": bytes(len(CONTENT))}
    files.cut_after = 2_000_000
    with pytest.raises(Paused):
        fetch(source(files), attempts=1)
    [note] = (project.runs / "fetch").rglob("*.version")
    note.unlink()
    files.cut_after = None
    files.files = {"/dump.xml.bz2": CONTENT}
    fetch(source(files))
    assert (project.data / "wikipedia" / "dump.xml.bz2").read_bytes() == CONTENT


def test_another_digest_is_refused(files: Files, fetch: Fetch, project: Project) -> None:
    with pytest.raises(UserError, match=rf"/dump\.xml\.bz2: its sha256 is {DIGEST}, expected 0000.*it was discarded"):
        fetch(source(files, sha256="0" * 64))
    assert lying(project) == []
    assert len(files.requests) == 1
    sha1 = hashlib.sha1(CONTENT).hexdigest()
    assert fetch(source(files, sha256="", sha1=sha1))["files"] == 1


def test_a_file_that_is_not_there(files: Files, fetch: Fetch) -> None:
    asked = source(files)
    files.files = {"/other": b""}
    with pytest.raises(UserError, match=r"^http://127.0.0.1:\d+/dump\.xml\.bz2: the server returned 404"):
        fetch(asked)


def test_being_asked_to_stop(files: Files, fetch: Fetch) -> None:
    asked = source(files)
    signals.requested.set()
    with pytest.raises(Paused, match="stopped"):
        fetch(asked)


def test_an_archive_is_unpacked(files: Files, fetch: Fetch, project: Project, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("CoLA/dev.tsv", "x")
    content = (tmp_path / "a.zip").read_bytes()
    files.files = {"/dump.xml.bz2": content}
    asked = source(files, sha256=hashlib.sha256(content).hexdigest(), unpack=True, to="glue")
    assert fetch(asked) == {"files": 1, "bytes": 1}
    assert (project.data / "glue" / "CoLA" / "dev.tsv").read_text() == "x"
    assert fetch(asked) == {}
