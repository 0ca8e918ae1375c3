"""Files of earlier versions of an output, read from DVC's cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model.common.errors import UserError
from tasks.dvc.earlier_outputs import EarlierOutputs
from tasks.project.project import Project
from tests.tasks.dvc.conftest import run_stale


def test_a_folder_of_an_earlier_version(persistent: Project, tmp_path: Path) -> None:
    declared = Path("dvc.yaml").read_text()
    lines = [line for line in declared.splitlines() if "build/one > build/two/out" not in line]
    command = "mkdir -p build/two/job && cp build/one build/two/job/out && cp params.yaml build/two/job/metrics.json"
    lines.insert(lines.index("  two:") + 1, f"    cmd: {command}")
    Path("dvc.yaml").write_text("\n".join(lines))
    for number in (1, 2, 3):
        Path("params.yaml").write_text(json.dumps({"a": number}))
        run_stale(persistent)

    def find(number: int) -> dict[str, object] | None:
        return earlier.find("job", "job/metrics.json", lambda metrics: metrics["a"] == number)

    earlier = EarlierOutputs(persistent, "two")
    assert find(4) is None
    for number in (3, 1):
        files = find(number)
        assert files is not None and files.keys() == {"metrics.json", "out"}
        earlier.copy(files, tmp_path / "copy")
        assert (tmp_path / "copy" / "out").read_text() == f'x{{"a": {number}}}'
    files = find(1)
    damaged = earlier.path(files["out"])
    damaged.chmod(0o644)
    damaged.write_text("damaged")
    with pytest.raises(UserError, match="the cached object of build/two/job/out is damaged"):
        earlier.copy(files, tmp_path / "copy")
    damaged.unlink()
    assert find(1) is None, "only what the cache has whole"
    assert find(2) is not None
