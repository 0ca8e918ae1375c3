"""The environment that processes run in."""

from __future__ import annotations

from pathlib import Path

import pytest

import model
from tasks.project.environment import numba_cache
from tasks.project.project import Project


def test_compiled_code_is_kept_apart_by_the_state_of_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path, tmp_path)
    (tmp_path / "model").mkdir()
    source = tmp_path / "model" / "masking.py"
    source.write_text("rate = 0.15\n")
    monkeypatch.setattr(model, "__file__", str(tmp_path / "model" / "__init__.py"))
    before = numba_cache(project)
    assert numba_cache(project) == before and before.parent == tmp_path / ".cloze" / "numba"
    source.write_text("rate = 0.3\n")
    assert numba_cache(project) != before
