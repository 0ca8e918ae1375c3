"""Real benchmark files, where they are available."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpacks a group of the real data and returns the data folder; skips where it is missing."""
    folder = tmp_path_factory.mktemp("shared")

    def unpack(group: str) -> Path:
        archive = SHARED / f"{group}.tar.xz"
        if not archive.exists():
            pytest.skip(f"../shared/data/{group}.tar.xz is not here")
        if not (folder / group).exists():
            shutil.unpack_archive(archive, folder)
        return folder

    return unpack
