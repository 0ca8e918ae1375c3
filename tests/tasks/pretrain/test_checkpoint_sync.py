"""Checkpoints reach S3 whole, are taken from there whole, and S3's faults reach nobody."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest
import torch

from model.common.checkpoint_files import tensor_file
from model.common.errors import Paused, UserError
from model.common.files import digest_of_file, write_json
from model.engine.checkpoint import Checkpoints, load_checkpoint
from model.engine.tensor_files import write_tensors
from tasks.params.root import CheckpointSyncSettings
from tasks.pretrain.pretrain import CheckpointBucket, mirrored
from tests.s3 import KEY, S3, SECRET
from tests.tasks.fetch.servers import FailingDoor
from tests.tasks.pretrain.conftest import NAME, Save
from tests.waiting import wait_for

FILES = ["digests.json", "model.safetensors", "optimizer.safetensors", "state.json"]


def whole_steps(settings: CheckpointSyncSettings) -> list[str]:
    return [step for step, whole in CheckpointBucket(settings, NAME).steps().items() if whole]


def same(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in FILES)


def test_new_checkpoints_arrive_and_the_newest_stay(
    settings: CheckpointSyncSettings, s3: S3, tmp_path: Path, save: Save, stop: threading.Event
) -> None:
    here = tmp_path / "here"
    with mirrored(settings, NAME, here, stop):
        for step in (10, 20, 30):
            save(here, step)
            wait_for(lambda step=step: whole_steps(settings)[:1] == [f"step-{step:08d}"])  # type: ignore[misc]
    assert whole_steps(settings) == ["step-00000030", "step-00000020"]
    assert s3.names() == [f"runs/{NAME}/{step}/{name}" for step in ("step-00000020", "step-00000030") for name in FILES]
    there = tmp_path / "there"
    with mirrored(settings, NAME, there, stop):
        assert same(there / "step-00000030", here / "step-00000030")
        assert [path.name for path in there.iterdir()] == ["step-00000030"]
    assert load_checkpoint(there / "step-00000030").state == {"step": 30}


def test_parts_of_a_sharded_encoder_are_mirrored(
    settings: CheckpointSyncSettings, s3: S3, tmp_path: Path, save: Save, stop: threading.Event
) -> None:
    """A checkpoint of parts replaces a whole one of its step, and the other way around; one without a part is none."""
    here, there, again = tmp_path / "here", tmp_path / "there", tmp_path / "again"
    whole, weights = save(here, 10), torch.arange(10.0)
    expected = ["digests.json", "state.json"]
    with mirrored(settings, NAME, here, stop):
        pass
    shutil.rmtree(whole)
    whole.mkdir()
    for part in range(2):
        shard, offsets = weights[5 * part : 5 * part + 5], {"w": (5 * part,), "exp_avg.w": (5 * part,)}
        for kind, name in (("model", "w"), ("optimizer", "exp_avg.w")):
            expected.append(tensor_file(kind, part, 2))
            write_tensors(whole / expected[-1], {name: shard}, offsets)
    write_json(whole / "state.json", {"step": 10})
    write_json(whole / "digests.json", {name: digest_of_file(whole / name) for name in expected[1:]})
    with mirrored(settings, NAME, here, stop):
        pass
    assert [key.rpartition("/")[2] for key in s3.names()] == sorted(expected)
    with mirrored(settings, NAME, there, stop):
        found = load_checkpoint(there / whole.name)
        assert torch.equal(found.weights["w"], weights) and torch.equal(found.moments["exp_avg.w"], weights)
    s3.client.delete_object(Bucket=s3.bucket, Key=f"runs/{NAME}/{whole.name}/model-00002-of-00002.safetensors")
    with mirrored(settings, NAME, again, stop):
        assert not again.exists() or not list(again.iterdir())
        save(again, 20)
        wait_for(lambda: "step-00000020" in whole_steps(settings))
    assert [key for key in s3.names() if whole.name in key] == []


def test_the_digests_come_last_and_what_lacks_them_is_no_checkpoint(
    settings: CheckpointSyncSettings, door: FailingDoor, s3: S3, tmp_path: Path, save: Save, stop: threading.Event
) -> None:
    here = tmp_path / "here"
    save(here, 10)
    with mirrored(settings, NAME, here, stop):
        pass
    puts = [path.rpartition("/")[2] for method, path, _ in door.requests if method == "PUT"]
    assert puts[-1] == "digests.json" and sorted(puts) == FILES
    for name in FILES[1:]:  # a sender that was killed in the middle of the next one
        s3.client.put_object(Bucket=s3.bucket, Key=f"runs/{NAME}/step-00000020/{name}", Body=b"half")
    there = tmp_path / "there"
    with mirrored(settings, NAME, there, stop):
        assert [path.name for path in there.iterdir()] == ["step-00000010"]
        save(there, 30)
    assert [key for key in s3.names() if "step-00000020" in key] == []


def test_nothing_is_sent_twice_and_what_is_newer_here_stays(
    settings: CheckpointSyncSettings, door: FailingDoor, tmp_path: Path, save: Save, stop: threading.Event
) -> None:
    here = tmp_path / "here"
    save(here, 10)
    with mirrored(settings, NAME, here, stop):
        pass
    save(here, 20)
    shutil.copytree(here / "step-00000020", tmp_path / "kept")
    door.requests.clear()
    with mirrored(settings, NAME, here, stop):
        wait_for(lambda: "step-00000020" in whole_steps(settings))
    assert same(here / "step-00000020", tmp_path / "kept")
    assert not [path for method, path, _ in door.requests if method == "PUT" and "step-00000010" in path]
    door.requests.clear()
    with mirrored(settings, NAME, here, stop):
        pass
    assert not [path for method, path, _ in door.requests if method in ("PUT", "DELETE")]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_one_is_refused_by_name_and_the_one_before_is_taken(
    settings: CheckpointSyncSettings,
    s3: S3,
    tmp_path: Path,
    save: Save,
    stop: threading.Event,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = tmp_path / "here"
    with mirrored(settings, NAME, here, stop):
        for step in (10, 20):
            save(here, step)
            wait_for(lambda step=step: whole_steps(settings)[:1] == [f"step-{step:08d}"])  # type: ignore[misc]
    s3.flip(f"runs/{NAME}/step-00000020/{name}")
    there = tmp_path / "there"
    with mirrored(settings, NAME, there, stop):
        assert [path.name for path in there.iterdir()] == ["step-00000010"]
    said = capsys.readouterr().err
    assert "step-00000020" in said and "skipped, trying the previous checkpoint" in said
    found = Checkpoints(there, 2).newest(lambda _: None)
    assert found is not None and found.state == {"step": 10}


def test_a_server_that_refuses_for_a_while(
    settings: CheckpointSyncSettings,
    door: FailingDoor,
    tmp_path: Path,
    save: Save,
    stop: threading.Event,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Training goes on, removes what it has no room for, and the newest arrives when the server is back."""
    here = tmp_path / "here"
    with mirrored(settings, NAME, here, stop):
        save(here, 10)
        wait_for(lambda: whole_steps(settings) == ["step-00000010"])
        door.fail_every = 1
        began = time.monotonic()
        for step in range(20, 80, 10):
            save(here, step)
        assert time.monotonic() - began < 2
        wait_for(lambda: door.num_failures > 3)
        door.fail_every = 0
        wait_for(lambda: "step-00000070" in whole_steps(settings))
    assert whole_steps(settings)[0] == "step-00000070"
    said = capsys.readouterr().err
    assert "not uploaded yet" in said and "step-00000070 is uploaded" in said
    assert KEY not in said and SECRET not in said


def test_every_third_call_fails(
    settings: CheckpointSyncSettings, door: FailingDoor, tmp_path: Path, save: Save, stop: threading.Event
) -> None:
    door.fail_every = 3
    here, there = tmp_path / "here", tmp_path / "there"
    with mirrored(settings, NAME, here, stop):
        save(here, 10)
    with mirrored(settings, NAME, there, stop):
        assert same(here / "step-00000010", there / "step-00000010")


def test_a_server_that_is_never_there(
    settings: CheckpointSyncSettings,
    door: FailingDoor,
    tmp_path: Path,
    save: Save,
    stop: threading.Event,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a checkpoint here, days of work may lie there: nothing starts over. With one, training goes on."""
    door.fail_every = 1
    hasty = settings.model_copy(update={"patience_seconds": 0.0, "drain_seconds": 0.2})
    with pytest.raises(Paused, match="S3 may hold one"), mirrored(hasty, NAME, tmp_path / "none", stop):
        pytest.fail("training must not start")
    here = tmp_path / "here"
    save(here, 10)
    began = time.monotonic()
    with mirrored(hasty, NAME, here, stop):
        pass
    assert time.monotonic() - began < 10
    said = capsys.readouterr().err
    assert "resuming from the local checkpoint step-00000010" in said
    assert "step-00000010 was not uploaded in time" in said and "the next run uploads it" in said


def test_what_no_waiting_mends_is_said_at_the_start(
    settings: CheckpointSyncSettings, tmp_path: Path, stop: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = settings.model_copy(update={"url": "s3://no-such-bucket"})
    with (
        pytest.raises(UserError, match=r"^mirror: s3://no-such-bucket/small-\w+: no such bucket"),
        mirrored(elsewhere, NAME, tmp_path, stop),
    ):
        pytest.fail("training must not start")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with (
        pytest.raises(UserError, match="no credentials; set AWS_PROFILE"),
        mirrored(settings, NAME, tmp_path, stop),
    ):
        pytest.fail("training must not start")


def test_a_stopped_run_does_not_wait_long(
    settings: CheckpointSyncSettings, door: FailingDoor, tmp_path: Path, save: Save, stop: threading.Event
) -> None:
    here = tmp_path / "here"
    began = time.monotonic()
    with mirrored(settings.model_copy(update={"stop_seconds": 0.3}), NAME, here, stop):
        door.fail_every = 1
        save(here, 10)
        stop.set()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"url": "https://bucket/x"}, "mirror: url: String should match pattern"),
        ({"url": "s3://key:secret@bucket/x"}, r"url: .*got 's3://\*\*\*@bucket/x'$"),
        ({"url": "s3://bucket/../x"}, "mirror: url"),
        ({"url": "s3://bucket", "num_kept": 0}, "num_kept"),
        ({"url": "s3://bucket", "endpoint_url": "https://key:secret@host"}, "user, password and query are not allowed"),
        ({"url": "s3://bucket", "endpoint_url": "ftp://host"}, "expected a URL that starts with https"),
        ({"url": "s3://bucket", "num_keep": 1}, "did you mean 'num_kept'"),
    ],
)
def test_settings_that_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        CheckpointSyncSettings.parse(values, "params.yaml: mirror")
