"""The environment that processes run in."""

from __future__ import annotations

import os
from pathlib import Path

import model
from tasks.environment import numba_cache
from tasks.project import Project


def test_compiled_code_is_kept_apart_by_the_state_of_its_sources(tmp_path: Path) -> None:
    project = Project(tmp_path, tmp_path)
    before = numba_cache(project)
    assert numba_cache(project) == before and before.parent == tmp_path / ".cloze" / "numba"
    source = Path(model.__file__).parent / "masking.py"
    times = source.stat()
    try:
        os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns + 1_000_000))
        assert numba_cache(project) != before
    finally:
        os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert numba_cache(project) == before
