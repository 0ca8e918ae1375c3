"""Killed at any moment and started again: only what is missing is done, and the corpus has the same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from model.common import files
from model.common.errors import Paused, UserError
from tasks.corpus import cleaning
from tasks.corpus.build_corpus import build_corpus
from tasks.corpus.filters.duplicates import NearDuplicateSettings
from tasks.corpus.sources.file_chunks import Document
from tasks.params.corpus import CorpusSettings
from tasks.project import signals
from tests.tasks.corpus.conftest import corpus_settings, dump_xml, page_xml, words

SETTINGS = corpus_settings(unit_bytes=4_000, shard_bytes=20_000)

# A process that has imported everything forks the runs: what is killed is the run, not the start of Python.
KILLER = """
import json, os, random, shutil, signal, sys, time
from pathlib import Path
from model.common.files import digest_of_folder
from tasks.corpus.build_corpus import build_corpus
from tests.tasks.corpus.conftest import corpus_settings

def start(out, partitions, workers):
    child = os.fork()
    if child == 0:
        build_corpus(corpus_settings(unit_bytes=8_000, shard_bytes=20_000), data, out, None, workers, partitions)
        os._exit(0)
    return child

def records(partitions):
    return {path.name: path.stat().st_mtime_ns for path in (partitions / "units").glob("*.json")}

if __name__ == "__main__":
    data, folder = Path(sys.argv[1]), Path(sys.argv[2])
    rounds = []
    random.seed(7)
    for workers in (1, 1, 1, 1, 1, 1, 1, 1, 2, 2):
        out, partitions = folder / "out", folder / "units"
        shutil.rmtree(partitions, ignore_errors=True)
        if not rounds or rounds[-1]["workers"] != workers:
            child = start(folder / "whole", folder / "whole-units", workers)
            os.waitpid(child, 0)
            num_units = len(records(folder / "whole-units"))
            shutil.rmtree(folder / "whole-units")
        child = start(out, partitions, workers)
        moment = random.random() * 1.1  # the last ones fall into choosing and publishing
        deadline = time.monotonic() + 60
        while len(records(partitions)) < min(moment, 1) * num_units and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(random.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        shutil.rmtree(out, ignore_errors=True)
        before = records(partitions)
        _, status = os.waitpid(start(out, partitions, workers), 0)
        after = records(partitions)
        left = [path.name for path in (partitions / "units").iterdir() if path.name.startswith(".")]
        rounds.append({
            "workers": workers, "moment": moment, "done": len(before), "units": len(after), "status": status,
            "kept": all(after[name] == time for name, time in before.items()), "left": left,
            "digest": digest_of_folder(out), "whole": digest_of_folder(folder / "whole"),
        })
        shutil.rmtree(out)
    print(json.dumps(rounds))
"""


@pytest.mark.slow
@pytest.mark.disruption
def test_killed_at_ten_moments(data: Path, tmp_path: Path, root: Path) -> None:
    pages = [page_xml(f"T{number}", f"A {words(number, 200)}. B {words(number, 200)}.") for number in range(80)]
    (data / "wikipedia" / "more.xml").write_bytes(dump_xml(*pages))
    script = tmp_path / "killer.py"
    script.write_text(KILLER)
    done = subprocess.run(
        [sys.executable, str(script), str(data), str(tmp_path)],
        env={"PYTHONPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rounds = json.loads(done.stdout)
    assert len(rounds) == 10
    assert {each["digest"] for each in rounds} == {each["whole"] for each in rounds}
    assert len({each["digest"] for each in rounds}) == 1
    assert all(each["kept"] and each["status"] == 0 and not each["left"] for each in rounds)
    assert sum(0 < each["done"] < each["units"] for each in rounds) >= 5, rounds  # killed in the midst, not beside it


def names(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "units").iterdir())


def test_a_second_run_cleans_nothing(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = tmp_path / "units"
    build_corpus(SETTINGS, data, tmp_path / "one", partitions_dir=partitions)
    monkeypatch.setattr("tasks.corpus.build_corpus.clean_partition", None)
    build_corpus(SETTINGS, data, tmp_path / "two", partitions_dir=partitions)
    assert files.digest_of_folder(tmp_path / "one") == files.digest_of_folder(tmp_path / "two")


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "record cut", "record of another"])
def test_what_is_not_whole_is_done_again(data: Path, tmp_path: Path, damage: str) -> None:
    partitions = tmp_path / "units"
    build_corpus(SETTINGS, data, tmp_path / "one", partitions_dir=partitions)
    parts = [path for path in names(partitions) if path.name.endswith("-00000.parquet")]
    records = [path for path in names(partitions) if path.suffix == ".json"]
    if damage == "cut":
        parts[0].write_bytes(parts[0].read_bytes()[:-1])
    elif damage == "changed":
        content = bytearray(parts[0].read_bytes())
        content[len(content) // 2] ^= 1
        parts[0].write_bytes(bytes(content))
    elif damage == "gone":
        names(partitions)[0].with_name(records[0].stem + ".facts.parquet").unlink()
    elif damage == "record cut":
        records[0].write_bytes(records[0].read_bytes()[:-20])
    else:
        records[0].write_bytes(records[1].read_bytes())
    build_corpus(SETTINGS, data, tmp_path / "two", partitions_dir=partitions)
    assert files.digest_of_folder(tmp_path / "one") == files.digest_of_folder(tmp_path / "two")


def test_units_that_nothing_asks_for_go(data: Path, tmp_path: Path) -> None:
    partitions = tmp_path / "units"
    build_corpus(SETTINGS, data, tmp_path / "one", partitions_dir=partitions)
    before = names(partitions)
    (partitions / "units" / ".partial-of-a-killed-worker").mkdir()
    (data / "rows.jsonl").write_text((data / "rows.jsonl").read_text().replace("Row", "Line"))
    build_corpus(SETTINGS, data, tmp_path / "two", partitions_dir=partitions)
    after = names(partitions)
    assert len(after) == len(before)
    assert 0 < len(set(before) - set(after)) < len(before)


def test_other_choices_clean_nothing_again(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = tmp_path / "units"
    build_corpus(SETTINGS, data, tmp_path / "one", partitions_dir=partitions)
    monkeypatch.setattr("tasks.corpus.build_corpus.clean_partition", None)
    near = NearDuplicateSettings(threshold=0.99)
    changed = SETTINGS.model_copy(update={"near_duplicates": near, "shard_bytes": 5_000, "shuffle_words": True})
    build_corpus(changed, data, tmp_path / "two", partitions_dir=partitions)
    changed = changed.model_copy(update={"drop_duplicates": False})
    assert build_corpus(changed, data, tmp_path / "three", partitions_dir=partitions)["drops"]["near duplicate"] == 1


def test_a_stop_keeps_what_is_done(data: Path, tmp_path: Path) -> None:
    def ask(done: int, total: int, _text: str) -> None:
        if done > total / 2:
            signals.requested.set()

    partitions = tmp_path / "units"
    try:
        with pytest.raises(Paused, match="finished items are kept"):
            build_corpus(SETTINGS, data, tmp_path / "out", ask, partitions_dir=partitions)
    finally:
        signals.requested.clear()
    assert not list((tmp_path / "out").glob("*"))
    assert sum(path.suffix == ".json" for path in names(partitions)) > 5
    build_corpus(SETTINGS, data, tmp_path / "out", partitions_dir=partitions)


def test_a_file_that_is_changed_while_it_is_read_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features_of = cleaning.features_of

    def changing(document: Document, settings: CorpusSettings) -> cleaning.Row:
        (data / "rows.jsonl").write_text("{}")
        return features_of(document, settings)

    monkeypatch.setattr(cleaning, "features_of", changing)
    with pytest.raises(UserError, match=r"data/rows\.jsonl: changed after it was listed"):
        build_corpus(SETTINGS, data, tmp_path / "out", partitions_dir=tmp_path / "units")
