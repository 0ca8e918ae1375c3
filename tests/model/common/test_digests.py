"""A folder with digests.json says which of its files is not what it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.common.digests import check_digests, read_digests, write_digests
from model.common.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "part").mkdir()
    for name in ("a.json", "part/b.bin", "README.md"):
        (tmp_path / name).write_bytes(name.encode())
    write_digests(tmp_path)
    return tmp_path


def test_what_is_as_it_was_passes(folder: Path) -> None:
    check_digests(folder)
    assert set(read_digests(folder)) == {"a.json", "part/b.bin"}
    (folder / "README.md").write_text("people write in it")
    check_digests(folder)
    check_digests(folder / "part")  # no digests.json


@pytest.mark.parametrize("name", ["a.json", "part/b.bin"])
def test_a_flipped_bit_is_refused_by_name(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[0] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}: its SHA-256 is .*changed or damaged"):
        check_digests(folder)
    check_digests(folder, lambda found: found != name)


def test_a_missing_file_and_a_damaged_list(folder: Path) -> None:
    (folder / "a.json").unlink()
    with pytest.raises(UserError, match=r"a\.json: missing"):
        check_digests(folder)
    (folder / "digests.json").write_text("{")
    with pytest.raises(UserError, match="digests.json: not JSON"):
        check_digests(folder)
