"""Invalid input: one clear line, exit code 2, no partial output, nothing recorded."""

from __future__ import annotations

import bz2
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flows.clone import Clone

pytestmark = pytest.mark.slow


def refused(clone: Clone, *command: str) -> str:
    """Run a command that is refused, and return its one-line message."""
    said = clone.run(*command, code=2)
    assert "Traceback" not in said
    lines = [line for line in said.splitlines() if line.startswith("cloze: ")]
    assert len(lines) == 1, said
    return lines[0]


def dump(clone: Clone) -> Path:
    return next((clone.root / "data" / "wikipedia").glob("*.bz2"))


def truncated_dump(clone: Clone) -> None:
    path = dump(clone)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def dump_that_is_no_xml(clone: Clone) -> None:
    dump(clone).write_bytes(bz2.compress(b"not a dump"))


def wrong_columns(clone: Clone) -> None:
    path = clone.root / "data" / "glue" / "SST-2" / "train.tsv"
    path.write_text(path.read_text() + "one column too many\t1\t1\n")


def no_books(clone: Clone) -> None:
    shutil.rmtree(clone.root / "data" / "books")


@pytest.mark.parametrize(
    ("harm", "stage", "message"),
    [
        (truncated_dump, "corpus", "pages-articles.xml.bz2"),
        (dump_that_is_no_xml, "corpus", "pages-articles.xml.bz2"),
        (no_books, "corpus", "data/books"),
    ],
)
def test_damaged_input(served: Clone, tmp_path: Path, harm: Callable[[Clone], None], stage: str, message: str) -> None:
    clone = served.copy(tmp_path / "clone")
    output = clone.root / "build" / stage
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    harm(clone)
    assert message in refused(clone, "cloze", stage)
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before
    assert not list((clone.root / "build" / "runs" / "staging").iterdir())


def test_a_tsv_with_a_wrong_column_count_names_file_and_line(served: Clone, tmp_path: Path) -> None:
    clone = served.copy(tmp_path / "clone")
    wrong_columns(clone)
    said = clone.run("cloze", "run", "--accept-data", code=2)
    assert re.search(r"SST-2/train.tsv: line \d+", said)
    assert "Traceback" not in said


def test_data_that_is_missing_or_differs_from_its_pin(finished: Clone, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "clone")
    wrong_columns(clone)
    assert "data/ differs from its pin" in refused(clone, "cloze", "run")
    assert "data/ differs from its pin" in refused(clone, "cloze", "repro")
    assert "did not create" in refused(clone, "cloze", "sample")
    shutil.rmtree(clone.root / "data")
    assert "data/ is missing" in refused(clone, "cloze", "run")


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Clone], None]:
    return lambda clone: clone.params(change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["finetune"].update(benchmarks={"colla": None}), "did you mean 'cola'"),
        (lambda content: content["pretrain"]["encoders"][0]["shape"].update(preset="tinny"), "did you mean 'tiny'"),
        (lambda content: content["tokens"].update(held_out_fraction=0.1), "did you mean 'heldout_fraction'"),
        (lambda content: content["finetune"].update(epochs_factor={"scrach": 3}), "no encoder 'scrach'"),
    ],
)
def test_parameters(finished: Clone, tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    clone = finished.copy(tmp_path / "clone")
    clone.params(change)
    assert message in refused(clone, "cloze", "run")


def test_a_vocabulary_that_does_not_match_the_tokens(served: Clone, tmp_path: Path) -> None:
    clone = served.copy(tmp_path / "clone")
    path = clone.root / "build" / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text().replace("##a", "##zza"))
    assert "build/tok" in refused(clone, "cloze", "pretrain")


def test_a_command_that_does_not_exist(finished: Clone) -> None:
    assert "did you mean 'run'" in refused(finished, "cloze", "rn")


@pytest.mark.parametrize("command", [("cloze", "run"), ("dvc", "repro", "tokenizer")])
def test_parameters_edited_while_a_stage_runs(served: Clone, tmp_path: Path, command: tuple[str, ...]) -> None:
    clone = served.copy(tmp_path / "clone")
    lock = clone.root / "dvc.lock"
    clone.params(lambda content: content["tokenizer"].update(vocab_size=1200))
    before = lock.read_text()
    process = clone.start(*command)
    log = clone.root / "test.log"
    clone.wait_for(lambda: "[2/6] tokenizer" in log.read_text(), process)
    clone.params(lambda content: content["tokenizer"].update(vocab_size=1300))
    assert process.wait(120) != 0
    assert "'tokenizer' was edited while tokenizer ran; nothing is recorded" in log.read_text()
    assert lock.read_text() == before
    assert "tokenizer" in clone.run("dvc", "status")


def test_two_runs_in_a_folder(served: Clone, tmp_path: Path) -> None:
    clone = served.copy(tmp_path / "clone")
    clone.params(lambda content: content["tokenizer"].update(vocab_size=1200))
    first = clone.start("cloze", "run")
    time.sleep(2)
    for second in (("cloze", "run"), ("cloze", "repro"), ("cloze", "sample")):
        assert "another run uses this directory (cloze run, process" in refused(clone, *second)
    clone.kill(first)


@pytest.mark.disruption
def test_a_full_disk(served: Clone, tmp_path: Path) -> None:
    """Uses a small file system, and skips without the right to mount one."""
    small = tmp_path / "small"
    small.mkdir()
    size = sum(path.stat().st_size for path in served.root.rglob("*") if path.is_file())
    mounted = subprocess_code("mount", "-t", "tmpfs", "-o", f"size={size + 12_000_000}", "tmpfs", str(small))
    if mounted:
        pytest.skip("no right to mount a small file system")
    try:
        clone = served.copy(small / "clone")
        fill = small / "fill"
        free = shutil.disk_usage(small).free
        fill.write_bytes(b"\0" * max(0, free - 400_000))
        clone.params(lambda content: content["corpus"].update(min_words=21))
        line = refused(clone, "cloze", "corpus")
        assert "free" in line
        assert "all is" not in line
        fill.unlink()
        assert "corpus" in clone.run("dvc", "status")
        clone.run("cloze", "corpus")
    finally:
        subprocess_code("umount", str(small))


def subprocess_code(*command: str) -> int:
    import subprocess

    return subprocess.run(command, capture_output=True, check=False).returncode
