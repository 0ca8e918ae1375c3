"""State files: what is written is read; whatever is damaged is missing, set aside and named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model.common.files import write_json
from model.common.state_files import read_state, write_state

CONTENT = {"digest": "d0", "steps": [1, 2], "scores": {"f1": 0.1 + 0.2, "ö": None}}


def damaged(path: Path) -> list[bytes]:
    """Every single damaged byte, and other damages."""
    whole = path.read_bytes()
    flips = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    halves = [whole[:end] for end in range(len(whole))]
    return [*flips, *halves, bytes(len(whole)), b"[]", b"3", b"[" * 9999, b"\xff" * 9]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a" / "state.json"
    assert read_state(path) == {}
    write_state(path, CONTENT)
    assert read_state(path) == CONTENT
    write_state(path, {1: (2, 3)})  # type: ignore[dict-item]
    assert read_state(path) == {"1": [2, 3]}


def test_files_of_earlier_versions_have_no_checksum(tmp_path: Path) -> None:
    write_json(tmp_path / "state.json", CONTENT)
    assert read_state(tmp_path / "state.json") == CONTENT


def test_no_damage_is_read_as_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state.json"
    write_state(path, CONTENT)
    cases, num = damaged(path), 0
    for content in cases:
        path.write_bytes(content)
        found = read_state(path, may_move=False)
        assert not found or {**found, **CONTENT} == found, "of a damaged key of the checksums, the content is whole"
        num += not found
    assert num > 0.95 * len(cases)
    assert capsys.readouterr().err == ""


def test_a_damaged_file_is_set_aside_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state.json"
    path.write_text('{"a": ')
    assert read_state(path) == {} and read_state(path) == {}
    assert [one.name for one in tmp_path.iterdir()] == ["state.json.damaged"]
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"{path}: is not a JSON object; kept as state.json.damaged and replaced"


def test_files_that_belong_to_it_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, other = tmp_path / "state.json", tmp_path / "model" / "weights"
    other.parent.mkdir()
    other.write_text("weights")
    write_state(path, CONTENT, [other])
    assert read_state(path, with_files=True) == CONTENT
    other.write_text("weighty")
    assert read_state(path) == CONTENT
    assert read_state(path, with_files=True) == {}
    assert "model/weights does not match the checksum in it" in capsys.readouterr().err
    write_state(path, CONTENT, [other])
    shutil.rmtree(other.parent)
    assert read_state(path, with_files=True, removable=["model"]) == CONTENT
    other.parent.mkdir()
    assert read_state(path) == CONTENT
    assert read_state(path, with_files=True, removable=["model"]) == {}
    assert "model/weights is missing" in capsys.readouterr().err
