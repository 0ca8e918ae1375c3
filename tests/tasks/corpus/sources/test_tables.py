"""Parquet, JSON lines and wikiextractor's files: rows to documents, faults by file and row."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from model.common.errors import UserError
from tasks.corpus.sources import tables, wikiextractor
from tasks.corpus.sources.file_chunks import Draft, FileChunk
from tasks.params.corpus import CsvSource, JsonlSource, ParquetSource, WikiextractorSource

ROWS = [
    {
        "id": str(number),
        "url": "u",
        "title": f"T{number}",
        "text": f"Career.\nRow {number} &amp; (; more) text.\n\nEnd.",
    }
    for number in range(5)
]
PARQUET = ParquetSource(name="p", kind="parquet", path="p")
JSONL = JsonlSource(name="j", kind="jsonl", path="j")
EXTRACTED = WikiextractorSource(name="w", kind="wikiextractor", path="w")


def drafts(module: Any, read: Any, source: Any, path: Path) -> list[Draft]:
    return [module.parse(source, item) for item in read(source, FileChunk.whole(path, path.name), Counter())]


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=2)
    found = drafts(tables, tables.read_parquet, PARQUET, path)
    assert found[3] == Draft("3", "T3", ["Career.", "Row 3 & (more) text.", "End."])
    assert len(found) == 5


def test_rows_that_are_sentences_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [f"sentence {n} ." for n in range(7)]}), path)
    settings = {"rows_per_document": 3, "id_column": None, "title_column": None}
    found = drafts(tables, tables.read_parquet, PARQUET.model_copy(update=settings), path)
    assert [len(draft.paragraphs) for draft in found] == [3, 3, 1]
    assert [draft.id for draft in found] == ["0", "3", "6"]
    assert found[0].paragraphs[1] == "sentence 1."


def test_parquet_faults(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"body": ["x"], "id": ["1"], "title": ["t"]}), path)
    with pytest.raises(UserError, match=r"p\.parquet: no column 'text', only body, id, title"):
        drafts(tables, tables.read_parquet, PARQUET, path)
    pyarrow.parquet.write_table(pyarrow.table({"text": [1], "id": ["1"], "title": ["t"]}), path)
    with pytest.raises(UserError, match=r"row 1: column 'text' contains int, expected text"):
        drafts(tables, tables.read_parquet, PARQUET, path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="not a readable Parquet file"):
        drafts(tables, tables.read_parquet, PARQUET, path)


def test_damaged_parquet_schema(tmp_path: Path) -> None:
    """Some of these damages abort the process where pyarrow reads a column's metadata."""
    path = tmp_path / "p.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": ["1"], "title": ["t"], "text": ["x"]}), path)
    valid = path.read_bytes()
    footer = len(valid) - 8 - int.from_bytes(valid[-8:-4], "little")
    for at, bit in itertools.product(range(footer, footer + 60), range(8)):
        path.write_bytes(valid[:at] + bytes([valid[at] ^ 1 << bit]) + valid[at + 1 :])
        with contextlib.suppress(UserError):
            drafts(tables, tables.read_parquet, PARQUET, path)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.bz2"])
def test_jsonl(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"j{suffix}"
    content = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    pack = {".jsonl": bytes, ".jsonl.gz": gzip.compress, ".jsonl.bz2": bz2.compress}[suffix]
    path.write_bytes(pack(content))
    assert [draft.title for draft in drafts(tables, tables.read_jsonl, JSONL, path)] == [
        "T0",
        "T1",
        "T2",
        "T3",
        "T4",
    ]
    if suffix != ".jsonl":
        path.write_bytes(pack(content)[:-12])
        with pytest.raises(UserError, match="damaged or truncated"):
            drafts(tables, tables.read_jsonl, JSONL, path)


@pytest.mark.parametrize("line", ['{"text": 3}', '["text"]', '{"body": "x"}', "{"])
def test_jsonl_faults_name_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n\n" + line + "\n")
    with pytest.raises(UserError, match=r"j\.jsonl: line 3: "):
        drafts(tables, tables.read_jsonl, JSONL, path)


def csv_source(**settings: object) -> CsvSource:
    return CsvSource.parse({"name": "c", "kind": "csv", "path": "c", **settings}, "test")


@pytest.mark.parametrize("name", ["c.csv", "c.tsv", "c.csv.gz", "c.tsv.bz2"])
def test_csv(tmp_path: Path, name: str) -> None:
    mark = "\t" if ".tsv" in name else ","
    rows = [["id", "title", "text"], ["1", "T1", 'Line one.\n"Two", three.'], ["2", "", "Next."]]
    text = "\ufeff" + "".join(
        mark.join(f'"{field.replace(chr(34), chr(34) * 2)}"' for field in row) + "\r\n" for row in rows
    )
    pack = {"gz": gzip.compress, "bz2": bz2.compress}.get(name.rsplit(".")[-1], bytes)
    path = tmp_path / name
    path.write_bytes(pack(text.encode()))
    found = drafts(tables, tables.read_csv, csv_source(), path)
    assert found == [Draft("1", "T1", ["Line one.", '"Two", three.']), Draft("2", "", ["Next."])]
    mapped = csv_source(text_column="title", id_column=None, title_column=None)
    assert drafts(tables, tables.read_csv, mapped, path) == [Draft("1", "", ["T1"]), Draft("2", "", [])]


def test_csv_without_quotation(tmp_path: Path) -> None:
    path = tmp_path / "c.tsv"
    path.write_text('id\ttitle\ttext\n1\t"A\tHe said "go.\n')
    assert drafts(tables, tables.read_csv, csv_source(quoted=False), path) == [Draft("1", '"A', ['He said "go.'])]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id,title,body\n1,a,b\n", "no column 'text', only id, title, body"),
        (b"", "no column 'text', only nothing"),
        (b"id,title,text\n1,a,b\n\n2,a,b,c\n", "line 4: 4 fields, expected 3"),
        (b'id,title,text\n1,a,"b\n', "line 2: unexpected end of data; close the quotation mark"),
        (b"id,title,text\n1,a,b\n2,a,\xff\n", "not UTF-8"),
        (b"id,title,text\n1,a," + b"x" * 2000 + b"\n", "field larger than field limit"),
    ],
)
def test_csv_faults(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "c.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^c\.csv: .*{message}"):
        drafts(tables, tables.read_csv, csv_source(max_field_bytes=1000), path)


def test_wikiextractor_in_both_forms(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    path.write_text('<doc id="12" url="u?curid=12" title="A &amp; B">\nA & B\n\nText <br>here.\n\n</doc>\n')
    assert drafts(wikiextractor, wikiextractor.read, EXTRACTED, path) == [Draft("12", "A & B", ["Text here."])]
    path.write_text(json.dumps({"id": "12", "url": "u", "title": "A & B", "text": "A & B\nText here."}) + "\n")
    assert drafts(wikiextractor, wikiextractor.read, EXTRACTED, path) == [Draft("12", "A & B", ["Text here."])]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('<doc id="1" url="u" title="A">\ntext\n', "ends inside a <doc>"),
        ("plain text\n", "line 1: expected <doc"),
        ('{"id": 1}\n', "line 1: expected a JSON object"),
    ],
)
def test_wikiextractor_faults(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "wiki_00"
    path.write_text(content)
    with pytest.raises(UserError, match=f"wiki_00: {message}"):
        drafts(wikiextractor, wikiextractor.read, EXTRACTED, path)
