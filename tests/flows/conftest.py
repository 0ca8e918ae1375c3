"""What the tests of whole runs share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests.flows.clone import PREFECT_API, Clone, commit, forget, new_clone
from tests.servers import prefect_alone


@pytest.fixture(scope="session")
def finished(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone after one whole `cloze run`, made once; each worker has a copy, so that tests may run side by side.

    Tests copy it before they change anything.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # each worker has a folder in it
    folder, done = shared / "finished", shared / "finished.done"
    with FileLock(shared / "finished.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
            folder.mkdir()
            clone = new_clone(folder)
            clone.run("cloze", "run")
            commit(clone)
            done.touch()
    return Clone(folder).copy(tmp_path_factory.mktemp("finished") / "clone")


@pytest.fixture(scope="module")
def prepared(finished: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone of the same dataset that has tokens, but no trained model."""
    clone = finished.copy(tmp_path_factory.mktemp("prepared") / "clone")
    for trained in ("build/runs", ".cloze/mlflow"):
        shutil.rmtree(clone.root / trained)
    forget(clone, "pretrain", "finetune", "leaderboard")
    return clone


@pytest.fixture(scope="session")
def served(finished: Clone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    """That clone as after `cloze up`: its runs, and those of its copies, need not start a server of their own each."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(finished.root / ".cloze" / "prefect", folder / "prefect")  # its tables are made
    server, address = prefect_alone(folder)
    clone = Clone(finished.root)
    clone.environment[PREFECT_API] = address
    server.start()
    yield clone
    server.end()
