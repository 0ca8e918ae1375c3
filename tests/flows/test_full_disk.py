"""A disk that fills in the middle of a run: one line, and the same command completes the run when there is space again.

Each directory that a run writes into is a tmpfs of its own here, with room for a part of what the run writes.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

import pytest

from model.common.files import read_json
from tests.flows.clone import CLOZE, Clone, forget
from tests.flows.test_environment import in_own_mounts

pytestmark = [pytest.mark.slow, pytest.mark.disruption]

PLACES = ("build", ".cloze", ".dvc")
KINDS = ("bytes", "inodes")
NUM_SIZES = 10
SAMPLED = {(".cloze", "bytes", 1), (".dvc", "bytes", 6)}
"""The suite runs these; `make faults` runs all."""
ROOMY = {"bytes": 2**30, "inodes": 10**6}

# The directory becomes a tmpfs with the same content; .tools/ is ignored by git.
MOUNTED = """
place=$1; shift
mkdir .tools/content && mount --bind "$place" .tools/content && mount -t tmpfs -o ROOMY none "$place" || exit 90
cp -a .tools/content/. "$place" && umount .tools/content && rmdir .tools/content || exit 91
used() {
    stat -f -c '%S %b %f %c %d' "$place" | {
        read block blocks free inodes free_inodes
        echo $(((blocks - free) * block)) $((inodes - free_inodes))
    }
}
"""
USED = MOUNTED + "used"
RUN_TWICE = (
    MOUNTED
    + """
limit=$1; shift
is_full() {  # the disk shrinks to what is used
    used | {
        read bytes inodes
        test "$MEASURE" -ge "$limit" && mount -o "remount,OPTION=$MEASURE" "$place" 2> .tools/mount.log
    }
}
(until is_full; do sleep 0.05; done; touch .tools/filled) & filling=$!
timeout --kill-after=10 300 "$@" > .tools/full.log 2>&1
echo $? > .tools/full.code
kill "$filling" 2> .tools/kill.log
find "$place" \\( -name '*.partial' -o -path '*/staging/*' \\) > .tools/left
mount -o remount,ROOMY "$place" || exit 92
timeout --kill-after=10 300 "$@" || exit
cp build/leaderboard/leaderboard.json .tools/
"""
)
OPTIONS = {"bytes": "size", "inodes": "nr_inodes"}


class Outcome(NamedTuple):
    """Results of a run whose disk filled, and of the next run with space."""

    code: int
    said: str
    left: list[str]
    """Unfinished files after the first run."""
    said_later: str


def in_tmpfs(clone: Clone, script: str, place: str, *arguments: str) -> str:
    roomy = ",".join(f"{OPTIONS[kind]}={size}" for kind, size in ROOMY.items())
    return clone.run(*in_own_mounts(script.replace("ROOMY", roomy)), place, *arguments)


def used(clone: Clone, place: str) -> dict[str, int]:
    """Measure what a directory takes on a tmpfs."""
    return dict(zip(KINDS, map(int, in_tmpfs(clone, USED, place).split()), strict=True))


def run_while_disk_fills(clone: Clone, place: str, kind: str, limit: int) -> Outcome:
    """Run; as soon as the directory takes `limit` bytes or inodes, there is no space for more. Then run with space."""
    tools = clone.root / ".tools"
    script = RUN_TWICE.replace("OPTION", OPTIONS[kind]).replace("MEASURE", kind)
    said_later = in_tmpfs(clone, script, place, str(limit), *CLOZE, "run")
    assert (tools / "filled").exists(), "the disk did not fill"
    left = (tools / "left").read_text().splitlines()
    return Outcome(int((tools / "full.code").read_text()), (tools / "full.log").read_text(), left, said_later)


@pytest.fixture(scope="module")
def untrained(prepared: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone that has tokens, but no trained model, and in DVC's cache nothing else."""
    clone = prepared.copy(tmp_path_factory.mktemp("untrained") / "clone")
    clone.run("dvc", "gc", "--workspace", "--force")
    return clone


@pytest.mark.parametrize(
    ("place", "kind", "tenths"),
    [
        pytest.param(*case, marks=() if case in SAMPLED else pytest.mark.exhaustive)
        for case in itertools.product(PLACES, KINDS, range(NUM_SIZES))
    ],
)
def test_a_disk_that_fills_in_mid_run(
    finished: Clone, untrained: Clone, place: str, kind: str, tenths: int, tmp_path: Path
) -> None:
    check_run(untrained, finished, place, kind, tenths, tmp_path / "clone", finished)


@pytest.fixture(scope="module")
def untouched(prepared: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone that has data and nothing else."""
    clone = prepared.copy(tmp_path_factory.mktemp("untouched") / "clone")
    forget(clone, "corpus", "tokenizer", "tokens")
    clone.run("dvc", "gc", "--workspace", "--force")
    return clone


@pytest.mark.exhaustive
@pytest.mark.parametrize("tenths", [2, 5, 8])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["build", ".dvc"])  # these stages leave .cloze/ as large as it was
def test_a_disk_that_fills_before_pre_training(
    finished: Clone, untouched: Clone, untrained: Clone, place: str, kind: str, tenths: int, tmp_path: Path
) -> None:
    check_run(untouched, untrained, place, kind, tenths, tmp_path / "clone", finished)


def check_run(start: Clone, end: Clone, place: str, kind: str, tenths: int, folder: Path, finished: Clone) -> None:
    """Let a run's disk fill at some tenths of the way from the contents of `start` to those of `end`."""
    first, last = used(start, place)[kind], used(end, place)[kind]
    clone = start.copy(folder)
    outcome = run_while_disk_fills(clone, place, kind, first + (last - first) * tenths // NUM_SIZES)
    assert "Traceback" not in outcome.said + outcome.said_later
    assert "Error logging" not in outcome.said and "failed to transfer" not in outcome.said
    assert read_json(clone.root / ".tools" / "leaderboard.json") == finished.board()
    assert not outcome.left, "unfinished files"
    if outcome.code == 0:  # MLflow alone was affected
        assert place == ".cloze" and "the next run sends them" in outcome.said
        return
    *_, line = outcome.said.splitlines()
    assert outcome.code == 2 and line.startswith("cloze: ") and "free some" in line, outcome.said
    assert place in line, outcome.said
