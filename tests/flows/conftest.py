"""What the tests of whole runs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.clone import Clone, commit, new_clone


@pytest.fixture(scope="session")
def finished(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone after one whole `cloze run`. Tests copy it before they change anything."""
    clone = new_clone(root, tmp_path_factory.mktemp("finished"))
    clone.run("cloze", "run")
    commit(clone)
    return clone
