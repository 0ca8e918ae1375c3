"""What a stage has published is held against its own note and dvc.lock, byte by byte."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from model.common.errors import UserError
from tasks.dvc.integrity import (
    cache_of,
    check_folder,
    check_inputs,
    check_recorded,
    equals_lock,
    md5_of,
    note,
    object_path,
)
from tasks.project.project import Project

OUTPUT = "build/pretrain"
DVC_YAML = "stages: {finetune: {deps: [build/pretrain, data/x]}, leaderboard: {deps: [build/pretrain]}}\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "params.yaml").write_text("")
    return Project(tmp_path, tmp_path)


def publish(project: Project, **files: str) -> Path:
    """build/pretrain with these files, noted as its stage does."""
    folder = project.root / OUTPUT
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    note(project, "pretrain", folder)
    return folder


def commit(project: Project) -> None:
    """dvc.lock and the cache's listing of build/pretrain as it lies there."""
    folder = project.root / OUTPUT
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    listing = json.dumps([{"md5": md5_of(path), "relpath": str(path.relative_to(folder))} for path in paths]).encode()
    md5 = f"{md5_of(listing)}.dir"
    place = object_path(cache_of(project), md5)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(listing)
    lock = f"stages: {{pretrain: {{outs: [{{path: {OUTPUT}, md5: {md5}}}]}}}}\n"
    (project.root / "dvc.lock").write_text(lock)


def flip(path: Path) -> None:
    """Change one bit; size and time stay."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(bytes(content))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("recorded_by", ["stage", "DVC", "both"])
def test_a_flipped_bit_is_named_whoever_recorded_the_file(project: Project, recorded_by: str) -> None:
    folder = publish(project, a__model_safetensors="weights", b__model_safetensors="others")
    if recorded_by != "stage":
        commit(project)
    if recorded_by == "DVC":  # as after `dvc pull`
        (project.runs / "published" / "pretrain.json").unlink()
    assert check_recorded(project, OUTPUT) and check_recorded(project, OUTPUT, "a")
    check_inputs(project, "finetune")
    flip(folder / "a" / "model.safetensors")
    line = r"^build/pretrain/a/model.safetensors: its MD5 is .* changed or damaged; remove build/pretrain/a,"
    for use in (
        lambda: check_recorded(project, OUTPUT),
        lambda: check_recorded(project, OUTPUT, "a"),
        lambda: check_folder(folder / "a"),
        lambda: check_inputs(project, "finetune"),
        lambda: check_inputs(project, "pretrain"),
    ):
        with pytest.raises(UserError, match=line):
            use()
    check_folder(folder / "b")
    check_inputs(project, "leaderboard")  # it reads no weights


def test_what_nobody_recorded_passes(project: Project, tmp_path: Path) -> None:
    folder = project.root / OUTPUT / "mine"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text("weights")
    assert not check_recorded(project, OUTPUT)
    check_folder(folder)
    check_folder(tmp_path / "elsewhere")


def test_an_unrecorded_run_and_an_older_commit_are_both_believed(project: Project) -> None:
    folder = publish(project, a__x="first")
    commit(project)
    publish(project, a__x="second")  # the stage alone: dvc.lock knows nothing of it
    assert check_recorded(project, OUTPUT) and not equals_lock(project, OUTPUT)
    (folder / "a" / "x").write_text("first")  # `dvc checkout`
    assert check_recorded(project, OUTPUT) and equals_lock(project, OUTPUT)
    publish(project, a__x="third")
    (folder / "a" / "x").write_text("second")  # killed between the note and the publication
    assert check_recorded(project, OUTPUT)


def test_missing_files(project: Project) -> None:
    folder = publish(project, a__x="one", a__y="two", b__x="three")
    commit(project)
    (folder / "b" / "x").unlink()
    (folder / "b").rmdir()
    with pytest.raises(UserError, match=r"^build/pretrain/b/x: missing, though dvc.lock names it"):
        check_recorded(project, OUTPUT)
    assert check_recorded(project, OUTPUT, may_lack_folders=True), "its stage makes it anew"
    assert equals_lock(project, OUTPUT)
    (folder / "a" / "y").unlink()
    with pytest.raises(UserError, match=r"^build/pretrain/a/y: missing"):
        check_recorded(project, OUTPUT, may_lack_folders=True)


def test_a_damaged_object_gives_way_to_the_good_file(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    for content, stays in (("weights", True), ("weightz", False)):
        good = project.root / "good"
        good.write_text("weights")
        place = object_path(cache_of(project), md5_of(good))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
        publish(project, a__x="weights")
        assert place.exists() is stays
    said = capsys.readouterr().err
    assert said.count("the cached object of build/pretrain/a/x was damaged") == 1


def test_a_damaged_listing_is_named(project: Project) -> None:
    publish(project, a__x="one")
    commit(project)
    (project.runs / "published" / "pretrain.json").unlink()
    [listing] = list(cache_of(project).rglob("*.dir"))
    flip(listing)
    with pytest.raises(UserError, match=r"\.dvc/cache/files/md5/.*the listing of build/pretrain in DVC's cache is dam"):
        check_recorded(project, OUTPUT)
