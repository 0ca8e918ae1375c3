"""What all tests share."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def program(name: str) -> str | None:
    """Where a program is, beside this Python or on the PATH: an environment need not be activated."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with a long file that needs no finished run: the other worker makes the finished run meanwhile."""
    items.sort(key=lambda item: item.path.name != "test_distributed.py")
