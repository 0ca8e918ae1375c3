"""The notebook of the documentation runs, and its stored outputs are those of its cells."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.flows.clone import Clone

pytestmark = pytest.mark.slow


def test_the_notebook_runs_in_a_project(
    finished: Clone, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    path = root / "docs" / "notebook.ipynb"
    notebook = nbformat.read(path, as_version=4)
    stored = [[one.output_type for one in cell.get("outputs", ())] for cell in notebook.cells]
    resources = {"metadata": {"path": str(finished.root)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    made = [[one.output_type for one in cell.get("outputs", ())] for cell in notebook.cells]
    assert made == stored
    board, *_, answers = [cell.outputs[0].data["text/plain"] for cell in notebook.cells if cell.get("outputs")]
    assert "pretrained" in board and "average" in board
    assert "prediction" in answers
