"""What the tests of whole runs share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from filelock import FileLock

from tests.flows.clone import Clone, commit, new_clone


@pytest.fixture(scope="session")
def finished(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone after one whole `cloze run`, the same for all workers. Tests copy it before they change anything."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # each worker has a folder in it
    folder, done = shared / "finished", shared / "finished.done"
    with FileLock(shared / "finished.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
            folder.mkdir()
            clone = new_clone(root, folder)
            clone.run("cloze", "run")
            commit(clone)
            done.touch()
    return Clone(folder)
