"""status.json is rewritten whole, and not at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.common import status
from model.common.state_files import read_state
from model.common.status import Status


def test_it_is_written_at_most_twice_a_second_but_always_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(status.time, "monotonic", lambda: now[0])
    path = tmp_path / "status.json"
    written = Status(path)
    seen = []
    for step in range(10):
        written.running(step, 10)
        seen.append(read_state(path)["step"])
        now[0] += 0.2
    assert seen == [0, 0, 0, 3, 3, 3, 6, 6, 6, 9]
    written.note(loss=1.5)
    written.note(loss=1.25)
    assert "loss" not in read_state(path), "a note alone writes nothing"
    written.running(10, 10)
    written.end("failed", "one line", "memory")
    record = read_state(path)
    assert record.pop("time") > 0
    assert record == {
        "state": "failed",
        "step": 10,
        "num_steps": 10,
        "message": "one line",
        "fault": "memory",
        "loss": 1.25,
    }
