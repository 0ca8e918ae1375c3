"""One attempt owns a run directory: claims are exclusive, and a process of an earlier attempt stops."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from model.common.ownership import Superseded, claim, newest_owner, require_ownership


def test_the_newest_attempt_owns_the_directory(tmp_path: Path) -> None:
    assert newest_owner(tmp_path) is None
    first = claim(tmp_path, 0, "local", "1@2.5")
    assert first is not None and first.attempt == 1 and newest_owner(tmp_path) == first
    require_ownership(tmp_path, 1)
    second = claim(tmp_path, 1, "slurm", "17")
    assert second is not None and newest_owner(tmp_path) == second and second.id == "17"
    require_ownership(tmp_path, 2)
    with pytest.raises(Superseded, match="attempt 2 owns it; attempt 1 stops"):
        require_ownership(tmp_path, 1)
    require_ownership(tmp_path, 0)  # a job that was started by hand


def test_one_of_many_wins(tmp_path: Path) -> None:
    barrier, won = threading.Barrier(8), []

    def try_to_claim(number: int) -> None:
        barrier.wait()
        if claim(tmp_path, 4, "slurm", str(number)) is not None:
            won.append(str(number))

    threads = [threading.Thread(target=try_to_claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owner = newest_owner(tmp_path)
    assert owner is not None and [owner.id] == won and owner.attempt == 5
    assert [path.name for path in tmp_path.iterdir()] == ["owner-5.json"]
