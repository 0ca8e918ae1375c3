"""State files: JSON documents that Cloze writes for itself, such as results, progress, records and caches.

Each contains a checksum. A reader takes a torn or changed one as missing, so that what it says is computed again.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from model.common.files import digest_of, digest_of_file, json_bytes, read_json, write_bytes

_CHECKSUMS = "checksums"  # key


def write_state(path: Path, content: Mapping[str, Any], files: Iterable[Path] = (), *, is_durable: bool = True) -> None:
    """Write a state file.

    Args:
        files: files below its directory that belong to it, such as the predictions of a result; see `read_state`.
        is_durable: False for frequent notes about progress, which a loss of power may damage.
    """
    content = json.loads(json.dumps(content))  # keys become texts, so that the checksum is that of what is read
    digests = {file.relative_to(path.parent).as_posix(): digest_of_file(file) for file in files}
    checksums = {"content": digest_of(content), "files": digests}
    write_bytes(path, json_bytes({**content, _CHECKSUMS: checksums}), is_durable=is_durable)


def read_state(
    path: Path, with_files: bool = False, *, removable: Collection[str] = (), may_move: bool = True
) -> dict[str, Any]:
    """Read a state file; empty if it is missing or damaged.

    A damaged one is set aside, so that it is missing from then on. State files of earlier versions have no checksum.

    Args:
        with_files: also check the files that belong to it.
        removable: names of those files and of directories with them that may have been deleted to save space.
        may_move: False for a file that is part of an output, or whose existence has a meaning.
    """
    content, fault = read_state_or_fault(path, with_files, removable)
    if fault and may_move:
        set_aside(path, fault)
    return content


def read_state_or_fault(
    path: Path, with_files: bool = False, removable: Collection[str] = ()
) -> tuple[dict[str, Any], str]:
    """Read a state file as `read_state` does, but leave a damaged one in its place and return what is wrong with it."""
    try:
        content = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}, ""
    except (ValueError, RecursionError, IsADirectoryError):
        content = None
    if not isinstance(content, dict):
        return {}, "is not a JSON object"
    checksums = content.pop(_CHECKSUMS, None)
    if checksums is None:
        return content, ""
    files = checksums.get("files") if isinstance(checksums, dict) else None
    if not isinstance(files, dict) or checksums.get("content") != digest_of(content):
        return {}, "does not match its checksum"
    for name, digest in files.items() if with_files else ():
        file, top = path.parent / name, name.partition("/")[0]
        if file.is_file() and digest_of_file(file) != digest:
            return {}, f"{name} does not match the checksum in it"
        if not file.is_file() and (top not in removable or (path.parent / top).exists()):
            return {}, f"{name} is missing"
    return content, ""


def set_aside(path: Path, fault: str) -> None:
    """Rename a damaged file to NAME.damaged, and print a line about it."""
    aside = path.with_name(f"{path.name}.damaged")
    with contextlib.suppress(OSError):  # another process has done it, or nothing here may be changed
        if aside.is_dir():
            shutil.rmtree(aside)
        path.replace(aside)
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        print(f"{shown}: {fault}; kept as {aside.name} and replaced", file=sys.stderr, flush=True)
