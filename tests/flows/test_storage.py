"""Whole runs on a real S3 server: restored from it alone, resumed from it, and nothing damaged believed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model.files import read_json
from tests.flows.clone import Clone, commit
from tests.s3 import KEY, S3, SECRET

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.xdist_group("pipeline")]
ENCODER = "build/pretrain/pretrained/model.safetensors"
TOKEN = "hf_PLANTEDtokenFORtests"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    server = S3("storage")
    yield server
    server.close()


@pytest.fixture(scope="module")
def pushed(finished: Clone, s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A finished clone whose default remote is on S3, pushed."""
    folder = tmp_path_factory.mktemp("pushed")
    clone = with_keys(finished.copy(folder / "origin"), s3)
    clone.run("dvc", "remote", "add", "-q", "-d", "s3", "s3://storage/dvc")
    clone.run("dvc", "remote", "modify", "-q", "s3", "verify", "true")
    commit(clone)
    clone.run("dvc", "push", "-q")
    return clone


def with_keys(clone: Clone, s3: S3) -> Clone:
    clone.environment |= s3.environment(clone.root)
    return clone


def fresh(pushed: Clone, s3: S3, target: Path) -> Clone:
    """A git clone of it, which has nothing that git does not hold."""
    pushed.run("git", "clone", "-q", str(pushed.root), str(target))
    return with_keys(Clone(target), s3)


def object_of(clone: Clone, path: str) -> str:
    """The MD5 that names a file of a stage's output in the cache and the remote."""
    import yaml

    lock = yaml.safe_load((clone.root / "dvc.lock").read_text())
    stage = path.split("/")[1]
    [out] = lock["stages"][stage]["outs"]
    listing = read_json(clone.root / ".dvc" / "cache" / "files" / "md5" / out["md5"][:2] / out["md5"][2:])
    [found] = [file["md5"] for file in listing if f"build/{stage}/{file['relpath']}" == path]
    return str(found)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(content))


def test_restored_in_another_folder_from_s3_alone(pushed: Clone, s3: S3, tmp_path: Path) -> None:
    other = fresh(pushed, s3, tmp_path / "other")
    hidden = pushed.root.with_name("hidden")
    pushed.root.rename(hidden)
    try:
        other.run("dvc", "pull", "-q")
        assert "All is up to date" in other.run("cloze", "run")
        assert "Data and pipelines are up to date" in other.run("dvc", "status")
    finally:
        hidden.rename(pushed.root)
    assert other.board() == pushed.board()
    assert (other.root / ENCODER).read_bytes() == (pushed.root / ENCODER).read_bytes()


def test_a_bit_flipped_in_the_remote(pushed: Clone, s3: S3, tmp_path: Path) -> None:
    md5 = object_of(pushed, ENCODER)
    key = f"dvc/files/md5/{md5[:2]}/{md5[2:]}"
    s3.flip(key)
    try:
        other = fresh(pushed, s3, tmp_path / "other")
        said = other.run("dvc", "pull", code=1)
        assert "build/pretrain" in said, "DVC names the output, `cloze verify` the file"
        assert not (other.root / ENCODER).exists()
        said = pushed.run("cloze", "verify", "--remote", "s3", code=1)
        assert f"the object of {ENCODER} is damaged in the remote 's3'" in said
    finally:
        s3.flip(key)
    assert "all that is there is what was recorded" in pushed.run("cloze", "verify", "--remote", "s3")


def test_a_remote_that_does_not_verify_is_a_fault(pushed: Clone, s3: S3, tmp_path: Path) -> None:
    other = fresh(pushed, s3, tmp_path / "other")
    other.run("dvc", "remote", "modify", "-q", "s3", "verify", "false")
    other.run("dvc", "remote", "modify", "-q", "--local", "s3", "secret_access_key", SECRET)
    said = other.run("cloze", "verify", "--remote", "s3", code=2)
    assert "`dvc remote modify s3 verify true`" in said and SECRET not in said
    said = " ".join(other.run("cloze", "doctor", code=1).split())
    assert "remote s3" in said and "secret_access_key lies in" in said and SECRET not in said


def test_a_bit_flipped_in_the_cache(finished: Clone, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "clone")
    vocabulary = "build/tokenizer/vocab.txt"
    md5 = object_of(clone, vocabulary)
    cached = clone.root / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]
    flip(cached)
    cached.chmod(0o444)  # DVC trusts what is read-only
    line = f"{cached.relative_to(clone.root)}: the cached object of {vocabulary} is damaged"
    assert line in clone.run("cloze", "verify", code=1)
    shutil.rmtree(clone.root / "build" / "tokenizer")
    assert line in clone.run("cloze", "run", code=2)
    cached.unlink()
    clone.run("cloze", "run")
    assert (clone.root / vocabulary).read_bytes() == (finished.root / vocabulary).read_bytes()
    clone.run("cloze", "verify")


def test_a_bit_flipped_in_a_published_encoder(finished: Clone, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "clone")
    flip(clone.root / ENCODER)
    assert f"{ENCODER} is not what was recorded" in clone.run("cloze", "verify", code=1)
    said = clone.run("cloze", "run", code=2)
    assert f"{ENCODER} is not what dvc.lock records" in said and "`dvc checkout --force pretrain`" in said
    clone.run("dvc", "checkout", "-q", "--force", "pretrain")
    assert "All is up to date" in clone.run("cloze", "run")


def test_pre_training_goes_on_elsewhere_and_keys_are_nowhere(finished: Clone, s3: S3, tmp_path: Path) -> None:
    """A machine is lost in mid-training; another folder with the same inputs and the mirror ends at the same bytes."""
    planted = {"HF_TOKEN": TOKEN, "MLFLOW_TRACKING_PASSWORD": TOKEN, "MLFLOW_TRACKING_USERNAME": "ann"}

    def begin(name: str, **recipe: Any) -> Clone:
        clone = with_keys(finished.copy(tmp_path / name), s3)
        clone.environment |= planted
        for folder in ("build/pretrain", "build/runs"):
            shutil.rmtree(clone.root / folder)

        def change(content: dict[str, Any]) -> None:
            content["mirror"] = {"url": "s3://storage/mirror"}
            content["pretrain"]["recipe"] |= recipe

        clone.params(change)
        return clone

    first = begin("first", pause_after_seconds=0.01)
    first.run("cloze", "pretrain", code=75)
    [job] = {key.split("/")[1] for key in s3.names("mirror/.*/digests.json")}
    assert job.startswith("pretrained-")
    # what a broken S3 makes of it: no traceback, and nothing of the keys
    keys = {name: first.environment.pop(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    said = first.run("cloze", "pretrain", code=2)
    first.environment |= keys
    assert "mirror: s3://storage/mirror" in said and "no credentials" in said
    shutil.rmtree(first.root / "build" / "runs" / "pretrain")

    second = begin("second")
    said = second.run("cloze", "pretrain")
    assert f"comes from s3://storage/mirror/{job}" in said
    assert (second.root / ENCODER).read_bytes() == (finished.root / ENCODER).read_bytes()
    assert len(s3.names(f"mirror/{job}/step-.*/digests.json")) == 2
    log = (second.root / "build" / "runs" / "pretrain" / job / "log.txt").read_text()
    assert "going on from step-" in log

    written = [path for clone in (first, second) for path in clone.root.rglob("*") if path.is_file()]
    assert len(written) > 300
    for path in written:
        content = path.read_bytes()
        for secret in (KEY, SECRET, TOKEN):
            assert secret.encode() not in content, path
    for key in s3.names("mirror/.*"):
        body = s3.client.get_object(Bucket=s3.bucket, Key=key)["Body"].read()
        assert SECRET.encode() not in body, key


def test_training_processes_have_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from tasks.launch.local import start

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    program = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
    for with_secrets in (True, False):
        path = tmp_path / f"{with_secrets}.json"
        start([sys.executable, "-c", program, str(path)], tmp_path / "log.txt", with_secrets=with_secrets).wait(60)
        environment = json.loads(path.read_text())
        assert ("AWS_SECRET_ACCESS_KEY" in environment) is with_secrets
        assert environment["PATH"] == os.environ["PATH"]
