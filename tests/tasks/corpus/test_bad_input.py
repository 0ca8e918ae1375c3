"""Bad input is one clear line or a counted skip, in little memory, and leaves nothing half-written."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from model.common.errors import UserError
from tasks.corpus.build_corpus import build_corpus
from tasks.corpus.partitions import digests, list_partitions
from tasks.corpus.shards import ShardWriter
from tests.tasks.corpus.conftest import HEADER, article, corpus_settings, dump_xml, page_xml, words

GOOD = [page_xml(f"T{number}", article(number), number=number) for number in range(40)]
ROWS = "".join(json.dumps({"id": n, "title": "", "text": f"A {words(n)}. B {words(n)}."}) + "\n" for n in range(9))
STREAMS = [bz2.compress(part.encode()) for part in [HEADER, "".join(GOOD[:20]), "".join(GOOD[20:]), "</mediawiki>"]]
LAUGHS = '<!DOCTYPE page [<!ENTITY a "ha"><!ENTITY b "&a;&a;"><!ENTITY c SYSTEM "file:///etc/passwd">]>'


def build(folder: Path, kind: str, name: str, content: bytes, **source: Any) -> dict[str, Any]:
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / name).write_bytes(content)
    sources = [{"name": "a", "kind": kind, "path": name, **source}]
    return dict(
        build_corpus(corpus_settings(sources=sources), folder / "data", folder / "out", partitions_dir=folder / "u")
    )


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        ("mediawiki", "a.xml.bz2", b"".join(STREAMS)[:-5], "ends in the middle of a bz2 stream"),
        ("mediawiki", "a.xml.bz2", b"".join(STREAMS) + STREAMS[1][:100], "ends in the middle of a bz2 stream"),
        ("mediawiki", "a.xml.bz2", STREAMS[0] + STREAMS[1][:500] + b"?" + STREAMS[1][501:] + STREAMS[2], "damaged"),
        ("mediawiki", "a.xml.bz2", STREAMS[0] + b"\0" * 5000, "truncated|damaged"),
        ("mediawiki", "a.xml", b"", "no <page> element found"),
        ("mediawiki", "a.xml", dump_xml(*GOOD)[:-300], "ends in the middle of a page"),
        ("mediawiki", "a.xml.bz2", bz2.compress(b""), "no <page> element found"),
        ("mediawiki", "a.xml", dump_xml(*GOOD).decode().encode("utf-16"), "is in UTF-16, expected UTF-8"),
        ("mediawiki", "a.xml.bz2", bz2.compress(dump_xml(*GOOD).decode().encode("utf-16-le")), "is in UTF-16"),
        ("parquet", "a.parquet", b"", "not a readable Parquet file"),
        ("parquet", "a.parquet", b"PAR1" + b"\0" * 100, "not a readable Parquet file"),
        ("jsonl", "a.jsonl", b'{"txt": "x"}\n', r"line 1: expected an object with text under the key 'text'"),
        ("jsonl", "a.jsonl", ROWS.encode() + b'{"text": "cut', "line 10: invalid JSON"),
        ("jsonl", "a.jsonl.gz", gzip.compress(ROWS.encode(), mtime=0)[:-9], "damaged or truncated"),
        ("jsonl", "a.jsonl.gz", gzip.compress(ROWS.encode(), mtime=0)[:40] + b"\xff" * 50, "damaged or truncated"),
        ("jsonl", "a.jsonl.bz2", bz2.compress(ROWS.encode())[:-9], "damaged or truncated"),
        ("jsonl", "a.jsonl", b"", "no document is left"),
        ("books", "a.txt", b"", "no document is left"),
    ],
)
def test_one_line_names_the_file(tmp_path: Path, kind: str, name: str, content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        build(tmp_path, kind, name, content)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith((f"data/{name}: ", "corpus: no document is left"))
    assert not list((tmp_path / "out").iterdir())
    assert not list((tmp_path / "u" / "units").glob(".partial-*"))


@pytest.mark.parametrize(
    ("name", "content", "reason", "documents"),
    [
        ("a.xml.bz2", b"".join(STREAMS[:2]), "dump without its end", 20),
        ("a.xml.bz2", b"".join(STREAMS), None, 40),
        ("a.xml", dump_xml(GOOD[0], *GOOD[1:]).replace(b"Sentence two", b"Sentence \xff\xfe two"), None, 40),
        ("a.xml", LAUGHS.encode() + dump_xml(*GOOD), None, 40),
        ("a.xml", dump_xml(GOOD[0].replace("<page>", f"<page>{LAUGHS}"), *GOOD[1:]), "damaged page", 39),
        ("a.xml", dump_xml(GOOD[0].replace("Sentence two", "&c; &b; two"), *GOOD[1:]), "damaged page", 39),
        ("a.xml", dump_xml(GOOD[0].replace("Sentence two", "\0 \x01 two"), *GOOD[1:]), "damaged page", 39),
    ],
)
def test_a_skip_is_counted(tmp_path: Path, name: str, content: bytes, reason: str | None, documents: int) -> None:
    summary = build(tmp_path, "mediawiki", name, content)
    assert summary["drops"] == ({reason: 1} if reason else {})
    assert summary["documents"] == documents


@pytest.mark.parametrize("after", ["listing", "digests"])
def test_a_file_that_vanishes(tmp_path: Path, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(*arguments: Any) -> Any:
        partitions = list_partitions(*arguments)
        (tmp_path / "data" / "a.jsonl").unlink()
        return partitions

    if after == "digests":
        monkeypatch.setattr("tasks.corpus.build_corpus.list_partitions", listed)
    else:

        def unlinked(files: Any, *arguments: Any) -> Any:
            Path(files[0].location).unlink()
            return digests(files, *arguments)

        monkeypatch.setattr("tasks.corpus.partitions.digests", unlinked)
    with pytest.raises(UserError, match=r"data/a\.jsonl: removed after it was listed; restore it"):
        build(tmp_path, "jsonl", "a.jsonl", ROWS.encode())


@pytest.mark.parametrize("where", ["cleaning", "publishing"])
def test_a_full_disk(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any, **_options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if where == "cleaning":
            patch.setattr(ShardWriter, "_write_rows", full)
        else:
            patch.setattr("tasks.corpus.publishing.pyarrow.OSFile", full)
        with pytest.raises(OSError) as raised:
            build(tmp_path, "jsonl", "a.jsonl", ROWS.encode())
    assert raised.value.errno == errno.ENOSPC  # flows.cli.main says so in one line
    assert not list((tmp_path / "out").iterdir())
    assert not list((tmp_path / "u" / "units").glob(".partial-*"))
    assert build(tmp_path, "jsonl", "a.jsonl", ROWS.encode())["documents"] == 9


MEASURE = """
import json, sys
from pathlib import Path
from tasks.corpus.build_corpus import build_corpus
from tests.tasks.corpus.conftest import corpus_settings
name, kind = sys.argv[2:4]
sources = [{"name": "a", "kind": kind, "path": name}]
folder = Path(sys.argv[1])
summary = build_corpus(corpus_settings(sources=sources), folder / "data", folder / "out")
# Not ru_maxrss: it begins with the peak of the process that this one was started by.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
print(json.dumps([summary["documents"], summary["drops"], peak]))
"""


def measured(folder: Path, root: Path, name: str, kind: str) -> tuple[int, dict[str, int], float]:
    """(Documents, drops, peak memory in MiB) of a process that builds a corpus."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), name, kind],
        env={"PYTHONPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    documents, drops, peak = json.loads(done.stdout)
    return documents, drops, peak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number"),
    [("page.xml.bz2", 100), ("outside.xml.bz2", 20), ("rows.jsonl.gz", 100), ("rows.jsonl.bz2", 20), ("page.xml", 20)],
)
def test_a_bomb_takes_little_memory(tmp_path: Path, root: Path, name: str, number: int) -> None:
    """A gigabyte of zeros, or some hundred megabytes, inside a page, between pages, in a row."""
    (tmp_path / "data").mkdir()
    pack = bz2.compress if name.endswith(".bz2") else gzip.compress if name.endswith(".gz") else bytes
    if "xml" in name:
        zeros = "0" * 10_000_000
        bomb = page_xml("Bomb", zeros) if name.startswith("page") else zeros
        start, _, end = dump_xml(*GOOD[:5], bomb, *GOOD[5:]).partition(zeros.encode())
        reason = {"page too large": 1} if name.startswith("page") else {}
    else:
        rows = ROWS.encode().splitlines(keepends=True)
        start, end = b"".join(rows[:5]) + b'{"text": "', b'"}\n' + b"".join(rows[5:])
        reason = {"line too large": 1}
    middle = pack(b"0" * 10_000_000)
    with (tmp_path / "data" / name).open("wb") as file:
        file.write(pack(start))
        for _ in range(number):
            file.write(middle)
        file.write(pack(end))
    documents, drops, peak = measured(tmp_path, root, name, "mediawiki" if "xml" in name else "jsonl")
    assert documents == (40 if "xml" in name else 9)
    assert drops == reason
    assert peak < 600, peak


def test_a_row_that_is_no_text_is_named(tmp_path: Path) -> None:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"text": [b"x"], "id": ["1"], "title": ["t"]}), sink)
    with pytest.raises(UserError, match=r"data/a\.parquet: row 1: column 'text' contains bytes"):
        build(tmp_path, "parquet", "a.parquet", sink.getvalue().to_pybytes())
