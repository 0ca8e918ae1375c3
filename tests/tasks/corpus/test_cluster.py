"""The same bytes from a Dask cluster, over a folder or over S3, also when S3 fails and workers die."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from model.common import files
from model.common.errors import UserError
from tasks.cluster.dask_cluster import DaskEndpoint
from tasks.corpus.build_corpus import build_corpus
from tasks.corpus.executors import DaskCluster
from tasks.corpus.partitions import source_files
from tasks.corpus.sources import books
from tasks.params.corpus import BooksSource
from tasks.s3 import shared_objects
from tests.dask_hosts import DaskHosts
from tests.tasks.corpus.conftest import corpus_settings as settings

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """An S3 server on this machine; the environment names it."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        shared_objects.shared_client.cache_clear()
        shared_objects.shared_client().boto.create_bucket(Bucket="corpora")
        yield "s3://corpora"
        shared_objects.shared_client.cache_clear()
    server.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, root: Path, s3: str) -> Iterator[DaskHosts]:
    pytest.importorskip("distributed")
    started = DaskHosts(tmp_path_factory.mktemp("dask"), root)
    yield started
    started.end()


def endpoint(address: str) -> Callable[[], DaskEndpoint]:
    return lambda: DaskEndpoint(address, "corpus.scheduler")


def build(data: Path, out: Path, **options: Any) -> str:
    changes = options.pop("settings", {})
    build_corpus(settings(unit_bytes=5_000, **changes), data, out, **options)
    return files.digest_of_folder(out)


def test_same_bytes_from_a_cluster(data: Path, tmp_path: Path, cluster: DaskHosts, s3: str) -> None:
    local = build(data, tmp_path / "local", num_workers=2)
    executor = DaskCluster(endpoint(cluster.address))
    assert build(data, tmp_path / "dask", partitions_dir=tmp_path / "units", executor=executor) == local
    exchange = {"exchange": f"{s3}/units/"}
    assert build(data, tmp_path / "s3", executor=executor, settings=exchange) == local
    assert build(data, tmp_path / "again", settings=exchange) == local  # nobody cleans: what lies there is taken
    names = [entry.location for entry in shared_objects.shared_client().list(f"{s3}/units/")]
    part = next(name for name in names if name.endswith("-00000.parquet"))
    shared_objects.shared_client().boto.put_object(Bucket="corpora", Key=part.removeprefix("s3://corpora/"), Body=b"")
    assert build(data, tmp_path / "mended", executor=executor, settings=exchange) == local


def test_a_prefect_task_for_each_unit(data: Path, tmp_path: Path, cluster: DaskHosts) -> None:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.testing.utilities import prefect_test_harness

    from tasks.prefect_tasks import step

    address = cluster.address

    @flow(name="built-by-a-cluster")
    def run() -> str:
        return build(data, tmp_path / "dask", executor=DaskCluster(endpoint(address), step(name="clean-unit")))

    with prefect_test_harness(server_startup_timeout=120):
        assert run() == build(data, tmp_path / "local")
        with get_client(sync_client=True) as client:
            deadline = time.monotonic() + 30
            while not any(one.name.startswith("clean-unit") for one in client.read_task_runs(limit=200)):
                assert time.monotonic() < deadline, "the server heard of no task"
                time.sleep(0.5)


def test_a_worker_may_die(data: Path, tmp_path: Path, cluster: DaskHosts) -> None:
    killed = False

    def kill(done: int, total: int, _text: str) -> None:
        nonlocal killed
        if not killed and done > total // 4:
            cluster.processes[-1].send_signal(signal.SIGKILL)
            killed = True

    found = build(data, tmp_path / "dask", executor=DaskCluster(endpoint(cluster.address)), report=kill)
    cluster.add_worker()
    assert killed
    assert found == build(data, tmp_path / "local")


def test_faults_of_a_worker_are_one_line(data: Path, tmp_path: Path, cluster: DaskHosts) -> None:
    (data / "wikipedia" / "dump.xml.bz2").write_bytes((data / "wikipedia" / "dump.xml.bz2").read_bytes()[:-40])
    with pytest.raises(UserError, match=r"data/wikipedia/dump\.xml\.bz2: ends in the middle"):
        build(data, tmp_path / "dask", executor=DaskCluster(endpoint(cluster.address)))


def test_no_scheduler_is_one_line(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.cluster.dask_cluster.CONNECT_SECONDS", 1)
    with pytest.raises(UserError, match=r"no Dask scheduler at tcp://127\.0\.0\.1:9 "):
        build(data, tmp_path / "dask", executor=DaskCluster(endpoint("tcp://127.0.0.1:9")))


def test_sources_on_s3(data: Path, tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in ranges, though every third call fails."""
    for path in data.rglob("*.*"):
        shared_objects.shared_client().boto.upload_file(
            str(path), "corpora", f"raw/{path.relative_to(data).as_posix()}"
        )
    calls = itertools.count(1)

    def fail(**_: Any) -> None:
        if next(calls) % 3 == 0:
            raise OSError("the third call")

    monkeypatch.setattr(shared_objects, "READ_BYTES", 1000)
    monkeypatch.setattr(shared_objects, "WAIT_SECONDS", 0.001)
    shared_objects.shared_client().boto.meta.events.register("before-send.s3", fail)
    sources = [
        {"name": "wiki", "kind": "mediawiki", "path": f"{s3}/raw/wikipedia"},
        {"name": "rows", "kind": "jsonl", "path": f"{s3}/raw/rows.jsonl"},
        {"name": "books", "kind": "books", "path": f"{s3}/raw/books/*.txt"},
    ]
    changes = {"sources": sources, "exchange": f"{s3}/failing"}
    try:
        build(data, tmp_path / "s3", settings=changes)
    finally:
        shared_objects.shared_client().boto.meta.events.unregister("before-send.s3", fail)
    assert next(calls) > 30
    build(data, tmp_path / "local")
    one, other = (files.read_json(tmp_path / name / "index.json") for name in ("s3", "local"))
    assert one["documents"] == other["documents"]
    assert [s["file"]["sha256"] for s in one["shards"]][:2] == [s["file"]["sha256"] for s in other["shards"]][:2]
    with pytest.raises(UserError, match=r"s3://corpora/none: no \.txt, \.zip or \.tar object for .* 'a'"):
        build(data, tmp_path / "none", settings={"sources": [{"name": "a", "kind": "books", "path": f"{s3}/none"}]})
    with pytest.raises(UserError, match=r"s3://nobody/x: missing"):
        build(data, tmp_path / "none", settings={"sources": [{"name": "a", "kind": "books", "path": "s3://nobody/x"}]})


@pytest.mark.parametrize("name", ["b.zip", "b.tar"])
def test_archives_on_s3(tmp_path: Path, s3: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"A book. " * 1000
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "One.txt").write_bytes(content)
    path = shutil.make_archive(str(tmp_path / "b"), name[2:], tmp_path / "in")
    shared_objects.shared_client().boto.upload_file(path, "corpora", f"archives/{name}")
    monkeypatch.setattr(shared_objects, "READ_BYTES", 1000)
    source = BooksSource(name="a", kind="books", path="a")
    [chunk] = source_files(BooksSource(name="a", kind="books", path=f"{s3}/archives/{name}"), Path())
    [(identifier, found)] = books.read(source, chunk, Counter())
    assert found == content
    assert identifier.startswith(f"{s3}/archives/{name}/")
    assert identifier.endswith("One.txt")


def test_an_object_that_changes_is_named(s3: str) -> None:
    client = shared_objects.shared_client().boto
    client.put_object(Bucket="corpora", Key="a/x.jsonl", Body=json.dumps({"text": "x"}).encode())
    [chunk] = source_files(BooksSource(name="a", kind="books", path=f"{s3}/a/*.jsonl"), Path())
    client.put_object(Bucket="corpora", Key="a/x.jsonl", Body=json.dumps({"text": "y"}).encode())
    with chunk.open() as file, pytest.raises(UserError, match="changed after it was listed"):
        file.read()
    client.delete_object(Bucket="corpora", Key="a/x.jsonl")
    with chunk.open() as file, pytest.raises(UserError, match="missing, or no longer there"):
        file.read()
