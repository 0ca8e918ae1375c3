"""Objects of a real S3 server (moto's) behind a door that fails at every third call."""

from __future__ import annotations

import hashlib
import io
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from model.common.errors import Paused, UserError
from model.common.files import read_json
from tasks.fetch import s3_download
from tasks.fetch.s3_download import checksums_of
from tasks.project.project import Project
from tests.tasks.fetch.conftest import Fetch
from tests.tasks.fetch.servers import FailingDoor

moto_server = pytest.importorskip("moto.server", reason="moto is not installed (pip install -e '.[dev]')")

MEBIBYTE = 1 << 20
LARGE = random.Random(1).randbytes(7 * MEBIBYTE + 5)
KEY, SECRET = "AKIAFAMOUSKEY", "wJalrXUtnFEMISECRET"


@pytest.fixture(scope="module")
def bucket() -> Iterator[tuple[str, int, Any]]:
    """A server with a bucket: (host, port, a client)."""
    import boto3
    from boto3.s3.transfer import TransferConfig

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys)
    client.create_bucket(Bucket="corpora")
    parts = TransferConfig(multipart_threshold=5 * MEBIBYTE, multipart_chunksize=5 * MEBIBYTE)
    client.upload_fileobj(io.BytesIO(LARGE), "corpora", "en/books/large.txt", Config=parts)
    for number in range(6):
        client.put_object(Bucket="corpora", Key=f"en/books/{number}.txt", Body=f"book {number}".encode())
    client.put_object(Bucket="corpora", Key="en/books/empty.txt", Body=b"")
    client.put_object(Bucket="corpora", Key="en/books/folder/", Body=b"")
    client.put_object(Bucket="corpora", Key="en/books/cover.png", Body=b"png", ChecksumAlgorithm="SHA256")
    yield host, port, client
    server.stop()


@pytest.fixture
def door(
    bucket: tuple[str, int, Any], closing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> FailingDoor:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr("random.random", lambda: 0.01)  # boto waits a random time up to seconds
    return closing(FailingDoor(*bucket[:2]))


def source(door: FailingDoor, **more: Any) -> dict[str, Any]:
    settings = {"kind": "s3", "url": "s3://corpora/en/books/", "to": "books/s3", "include": "*.txt"}
    return settings | {"endpoint_url": door.url, "part_bytes": MEBIBYTE, "num_connections": 3} | more


def test_every_third_call_fails(door: FailingDoor, fetch: Fetch, project: Project) -> None:
    assert fetch(source(door), attempts=4) == {"files": 8, "bytes": len(LARGE) + 6 * 6}
    assert door.num_failures >= 8
    folder = project.data / "books" / "s3"
    assert (folder / "large.txt").read_bytes() == LARGE
    assert (folder / "3.txt").read_text() == "book 3"
    assert (folder / "empty.txt").read_bytes() == b""
    files = read_json(project.data / "FETCHED.json")["sources"]["s"]["files"]
    row = files["books/s3/large.txt"]
    assert row["sha256"] == hashlib.sha256(LARGE).hexdigest()
    assert (row["checked"], row["url"]) == ("etag", "s3://corpora/en/books/large.txt")
    assert row["etag"].endswith("-2")
    count = door.count
    assert fetch(source(door)) == {}
    assert door.count == count


def test_a_kill_in_the_middle(
    door: FailingDoor, fetch: Fetch, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranges that have come are not asked for again."""
    door.fail_every = 0
    came: list[int] = []
    note = s3_download.ObjectDownload.range_done

    def dies(thing: s3_download.ObjectDownload, number: int) -> None:
        note(thing, number)
        came.append(number)
        if len(came) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(s3_download.ObjectDownload, "range_done", dies)
    with pytest.raises(KeyboardInterrupt):
        fetch(source(door, include="large.txt"))
    monkeypatch.setattr(s3_download.ObjectDownload, "range_done", note)
    assert not project.data.exists()
    door.requests.clear()
    fetch(source(door, include="large.txt"))
    asked = sorted(wanted for method, _, wanted in door.requests if method == "GET" and wanted)
    assert len(asked) == 4
    assert not {f"bytes={number * MEBIBYTE}-{(number + 1) * MEBIBYTE - 1}" for number in came} & set(asked)
    assert (project.data / "books" / "s3" / "large.txt").read_bytes() == LARGE


def test_a_server_that_vanishes(door: FailingDoor, fetch: Fetch, project: Project) -> None:
    door.fail_every = 1
    with pytest.raises(Paused, match="s3://corpora/en/books/: .*downloaded data is kept") as caught:
        fetch(source(door), attempts=2)
    assert KEY not in str(caught.value) and SECRET not in str(caught.value)
    assert not project.data.exists()
    with pytest.raises(Paused, match="the connection failed"):
        fetch(source(door, endpoint_url="http://127.0.0.1:1"), attempts=2)
    door.fail_every = 0
    assert fetch(source(door))["files"] == 8


def test_new_objects_come_when_asked_for(
    door: FailingDoor, bucket: tuple[str, int, Any], fetch: Fetch, project: Project
) -> None:
    door.fail_every = 0
    client = bucket[2]
    for name in "ab":
        client.put_object(Bucket="corpora", Key=f"new/{name}.txt", Body=name.encode())
    asked = source(door, url="s3://corpora/new/")
    fetch(asked)
    assert fetch(asked, refresh=True) == {"files": 0, "bytes": 0}
    before = (project.data / "FETCHED.json").read_bytes()
    assert fetch(asked, refresh=True) == {"files": 0, "bytes": 0}
    assert (project.data / "FETCHED.json").read_bytes() == before
    client.put_object(Bucket="corpora", Key="new/b.txt", Body=b"other")
    client.put_object(Bucket="corpora", Key="new/c.txt", Body=b"c")
    client.delete_object(Bucket="corpora", Key="new/a.txt")
    assert fetch(asked) == {}
    door.requests.clear()
    assert fetch(asked, refresh=True)["files"] == 2
    assert {path.name: path.read_text() for path in (project.data / "books" / "s3").iterdir()} == {
        "b.txt": "other",
        "c.txt": "c",
    }


def test_an_object_changed_while_it_is_read(
    door: FailingDoor, bucket: tuple[str, int, Any], fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    door.fail_every = 0
    client = bucket[2]
    client.put_object(Bucket="corpora", Key="moving.txt", Body=bytes(3 * MEBIBYTE))
    note = s3_download.ObjectDownload.range_done

    def changes(thing: s3_download.ObjectDownload, number: int) -> None:
        note(thing, number)
        client.put_object(Bucket="corpora", Key="moving.txt", Body=b"x" * 3 * MEBIBYTE)

    monkeypatch.setattr(s3_download.ObjectDownload, "range_done", changes)
    asked = source(door, url="s3://corpora/moving.txt", to="books/moving.txt", num_connections=1)
    with pytest.raises(UserError, match=r"moving\.txt: the file changed while it was being read; fetch it again"):
        fetch(asked)
    monkeypatch.setattr(s3_download.ObjectDownload, "range_done", note)
    assert fetch(asked) == {"files": 1, "bytes": 3 * MEBIBYTE}


def test_checksums(
    door: FailingDoor, bucket: tuple[str, int, Any], fetch: Fetch, project: Project, tmp_path: Path
) -> None:
    door.fail_every = 0
    one = source(door, url="s3://corpora/en/books/cover.png", to="books/cover.png")
    fetch(one)
    [row] = read_json(project.data / "FETCHED.json")["sources"]["s"]["files"].values()
    assert row["checked"] == "sha256"
    with pytest.raises(UserError, match=r"cover\.png: its sha256 is \w{64}, expected 0{64}; it was discarded"):
        fetch(one | {"sha256": "0" * 64})
    secret = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "k", "ChecksumAlgorithm": "SHA1"}
    bucket[2].put_object(Bucket="corpora", Key="secret.txt", Body=b"x", **secret)  # its ETag is no digest
    fetch(source(door, url="s3://corpora/secret.txt", to="books/secret.txt"))
    [row] = read_json(project.data / "FETCHED.json")["sources"]["s"]["files"].values()
    assert row["checked"] == "size"
    path = tmp_path / "x"
    path.write_bytes(LARGE)
    halves = [hashlib.md5(LARGE[: 5 * MEBIBYTE]).digest(), hashlib.md5(LARGE[5 * MEBIBYTE :]).digest()]
    assert checksums_of(path, 5 * MEBIBYTE)["etag"] == f"{hashlib.md5(b''.join(halves)).hexdigest()}-2"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"url": "s3://corpora/nothing/"}, "no object below this prefix"),
        ({"include": "*.parquet"}, r"no object below this prefix matches include '\*\.parquet'"),
        ({"url": "s3://elsewhere/x/"}, r"no such bucket \(NoSuchBucket\)"),
        ({"url": "s3://corpora/en/books"}, r"not there \(404\); end a prefix with a slash"),
    ],
)
def test_mistakes(door: FailingDoor, fetch: Fetch, more: dict[str, Any], message: str) -> None:
    door.fail_every = 0
    with pytest.raises(UserError, match=rf"^s3://\S+: {message}"):
        fetch(source(door, **more))


def test_no_credentials(door: FailingDoor, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserError, match="no credentials; set AWS_PROFILE"):
        fetch(source(door))
