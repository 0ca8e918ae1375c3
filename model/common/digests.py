"""digests.json: SHA-256 of the files of an exported or registered model, to detect corrupt copies.

The model card is not included, because people edit it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from model.common.errors import UserError, shown
from model.common.files import digest_of_file, is_inside, load_json, write_json

NAME = "digests.json"
CARD = "README.md"


def write_digests(folder: Path) -> dict[str, str]:
    """Write digests.json for all files below `folder`; returns its content, relative name → 64 hexadecimal digits."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    digests = {name: digest_of_file(path) for name, path in names.items() if name not in (NAME, CARD)}
    write_json(folder / NAME, digests)
    return digests


def read_digests(folder: Path) -> dict[str, str]:
    """Read a folder's digests.json; returns an empty dictionary if there is none.

    Raises:
        UserError: the file is damaged.
    """
    path = folder / NAME
    if not path.is_file():
        return {}
    found = load_json(path, remedy="; export or fetch the folder again")
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise UserError(f"{path}: expected an object from file names to digests; export or fetch the folder again")
    for name in found:
        if not is_inside(name):
            raise UserError(f"{path}: {shown(name)} is not in the folder; export or fetch the folder again")
    return found


def check_digests(folder: Path, wanted: Callable[[str], bool] = lambda _name: True) -> None:
    """Verify the files of a folder (all, or those whose names are `wanted`) if it has a digests.json.

    Raises:
        UserError: a file is missing or differs; the message names it.
    """
    for name, digest in read_digests(folder).items():
        if not wanted(name):
            continue
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: missing, but {NAME} lists it; export or fetch the folder again")
        found = digest_of_file(path)
        if found != digest:
            difference = f"its SHA-256 is {found[:16]}…, but {NAME} lists {digest[:16]}…"
            raise UserError(f"{path}: {difference}: changed or damaged; export or fetch the folder again")
