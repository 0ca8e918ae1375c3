"""A file read in chunks, wherever it is cut, gives what the whole file gives; and what a partition is."""

from __future__ import annotations

import bz2
import io
import itertools
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from model.common.errors import UserError
from tasks.corpus.partitions import grouped, list_partitions
from tasks.corpus.sources import mediawiki
from tasks.corpus.sources.file_chunks import FileChunk
from tasks.corpus.sources.mediawiki import read_blocks
from tasks.corpus.sources.source_registry import SOURCE_TYPES
from tasks.params.corpus import JsonlSource, MediaWikiSource, ParquetSource
from tests.tasks.corpus.conftest import HEADER, corpus_settings, dump_xml, page_xml

WIKI = MediaWikiSource(name="w", kind="mediawiki", path="w", max_page_bytes=3000)
JSONL = JsonlSource(name="j", kind="jsonl", path="j", max_row_bytes=1000)
PARQUET = ParquetSource(name="p", kind="parquet", path="p")


def pages(count: int) -> list[str]:
    random.seed(5)
    noise = [bytes(random.choices(range(97, 123), k=random.randint(20, 900))).decode() for _ in range(count)]
    return [page_xml(f"T{number}", text, number=number) for number, text in enumerate(noise)]


def items(source: Any, path: Path, cuts: list[int]) -> tuple[list[Any], Counter[str]]:
    whole = FileChunk.whole(path, path.name)
    drops: Counter[str] = Counter()
    found: list[Any] = []
    borders = sorted({0, *cuts, whole.size})
    for start, end in itertools.pairwise(borders):
        found += SOURCE_TYPES[source.kind].read(source, replace(whole, start=start, end=end), drops)
    return found, drops


def check_cuts(source: Any, path: Path, expected: int, drops: dict[str, int], step: int) -> None:
    whole = items(source, path, [])
    assert (len(whole[0]), dict(whole[1])) == (expected, drops)
    size = path.stat().st_size
    for cut in range(1, size, step):
        assert items(source, path, [cut]) == whole, cut
    assert items(source, path, list(range(0, size, 97))) == whole


@pytest.mark.parametrize("packing", ["plain", "one stream", "streams by page", "streams anywhere", "small blocks"])
def test_dumps_may_be_cut_anywhere(tmp_path: Path, packing: str) -> None:
    parts = [*pages(12), page_xml("Large", "x" * 5000), *pages(3)]
    xml = dump_xml(*parts)
    path = tmp_path / ("d.xml" if packing == "plain" else "d.xml.bz2")
    if packing == "plain":
        content = xml
    elif packing == "one stream":
        content = bz2.compress(xml)
    elif packing == "streams by page":
        content = b"".join(bz2.compress(part.encode()) for part in [HEADER, *parts, "</mediawiki>"])
    elif packing == "streams anywhere":
        content = b"".join(bz2.compress(xml[at : at + 777]) for at in range(0, len(xml), 777))
    else:  # blocks that begin at any bit
        noise = "".join(page_xml(f"N{number}", "y" * 10, number=number) for number in range(12_000))
        xml = dump_xml(*parts, noise)
        content = bz2.compress(xml, 1)
    path.write_bytes(content)
    if packing == "small blocks":
        assert len({at for at, _ in read_blocks(io.BytesIO(content), "x", len(content))}) > 30
        whole = items(WIKI, path, [])
        assert len(whole[0]) == 12_015
        assert items(WIKI, path, list(range(0, len(content), len(content) // 50))) == whole
        return
    check_cuts(WIKI, path, 15, {"page too large": 1}, step=29)
    assert all("Datei".lower() in page[1] for page in items(WIKI, path, [len(content) // 2])[0])


def test_a_block_is_found_at_every_bit_and_damage_is_told() -> None:
    random.seed(2)
    text = bytes(random.choices(b"abcdefghij", k=700_000))
    packed = bz2.compress(text, 1)
    blocks = list(read_blocks(io.BytesIO(packed), "x", len(packed)))
    assert b"".join(content for _, content in blocks) == text
    assert len(blocks) > 6
    for at, _ in blocks:
        assert list(read_blocks(io.BytesIO(packed), "x", len(packed), at)) == [b for b in blocks if b[0] >= at]
    for bad in (packed[:-1], packed[:-30], packed[: len(packed) // 2], packed + b"BZh9", packed + packed[:90]):
        with pytest.raises(UserError, match="truncated"):
            list(read_blocks(io.BytesIO(bad), "x", len(bad)))
    for place in range(10, len(packed) - 20, len(packed) // 9):
        bad = packed[:place] + bytes([packed[place] ^ 0x10]) + packed[place + 1 :]
        with pytest.raises(UserError, match="damaged|truncated"):
            list(read_blocks(io.BytesIO(bad), "x", len(bad)))


def test_a_mark_inside_a_block_is_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are found although 48 bits of their content look like the beginning or the end of one."""
    packed = bz2.compress(random.Random(4).randbytes(50_000))
    true_marks = mediawiki._marks

    def marks(data: bytes, start: int) -> list[tuple[int, bool]]:
        return sorted([*true_marks(data, start), (8 * 777, True), (8 * 20_000 + 3, False)])

    monkeypatch.setattr(mediawiki, "_marks", marks)
    [(_, content)] = read_blocks(io.BytesIO(packed), "x", len(packed))
    assert content == bz2.decompress(packed)


def test_rows_of_lines_may_be_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    rows = [json.dumps({"id": n, "title": f"t{n}", "text": "ä" * (n % 9)}) for n in range(40)]
    rows.insert(20, json.dumps({"id": 99, "title": "", "text": "z" * 1500}))
    path.write_text("\n".join([*rows[:10], "", *rows[10:]]), encoding="utf-8")
    check_cuts(JSONL, path, 40, {"line too large": 1}, step=7)
    path.write_text('{"text": "good", "id": 1}\n' * 4 + '{"text": 1}\n')
    with pytest.raises(UserError, match=r"r\.jsonl: after byte 52: line 3: expected an object"):
        items(JSONL, path, [52])


@pytest.mark.parametrize("rows_per_document", [1, 3])
def test_parquet_may_be_cut_anywhere(tmp_path: Path, rows_per_document: int) -> None:
    path = tmp_path / "p.parquet"
    table = pyarrow.table({"text": [f"row {n}" * 30 for n in range(50)]})
    pyarrow.parquet.write_table(table, path, row_group_size=7, use_dictionary=False)
    source = PARQUET.model_copy(
        update={"id_column": None, "title_column": None, "rows_per_document": rows_per_document}
    )
    check_cuts(source, path, -(-50 // rows_per_document), {}, step=31)


def test_groups_change_near_an_item_alone() -> None:
    sizes = {f"book-{number:04d}": 300 + 37 * (number % 11) for number in range(500)}

    def groups(names: list[str]) -> list[list[str]]:
        return list(grouped(names, sizes.__getitem__, str, 4000, 8000))

    names = list(sizes)
    before = groups(names)
    assert [name for group in before for name in group] == names
    totals = [sum(map(sizes.__getitem__, group)) for group in before]
    assert all(4000 <= total <= 8000 for total in totals[:-1])
    for gone in (0, 100, 321):
        after = groups(names[:gone] + names[gone + 1 :])
        assert len([group for group in after if group not in before]) <= 4
    assert list(grouped(["a"], lambda _: 10**9, str, 1, 2)) == [["a"]]
    assert list(grouped([], len, str, 1, 2)) == []


def test_units_depend_on_what_decides_their_documents(data: Path) -> None:
    def keys(**changes: Any) -> list[str]:
        return [partition.key for partition in list_partitions(corpus_settings(unit_bytes=4000, **changes), data)]

    before = keys()
    assert len(set(before)) == len(before) > 5
    assert sum(partition.num_bytes for partition in list_partitions(corpus_settings(unit_bytes=4000), data)) == sum(
        path.stat().st_size for path in data.rglob("*") if path.is_file()
    )
    assert keys(shard_bytes=9_000_000, drop_duplicates=False, scheduler="tcp://a:1", exchange="s3://b/c") == before
    assert not set(keys(min_words=3)) & set(before)
    (data / "books" / "b.txt").rename(data / "books" / "c.txt")
    assert sum(one != other for one, other in zip(keys(), before)) == 1  # a book's name is in its documents' ids
    (data / "wikipedia" / "dump.xml.bz2").rename(data / "wikipedia" / "other.xml.bz2")
    assert sum(one != other for one, other in zip(keys(), before)) == 1


def test_names_count_where_documents_have_them_and_notes_never(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.txt").write_text("x\n")
    (data / "a.csv").write_text("text\nx\n")

    def keys(**changes: Any) -> list[str]:
        sources = [
            {"name": "t", "kind": "text", "path": "*.txt", **changes},
            {"name": "c", "kind": "csv", "path": "?.[ct]sv", **changes},
        ]
        return [partition.key for partition in list_partitions(corpus_settings(sources=sources), data)]

    before = keys()
    assert keys(license="CC0-1.0", origin="https://example.org") == before
    (data / "a.txt").rename(data / "b.txt")
    (data / "a.csv").rename(data / "a.tsv")  # other columns
    assert not set(keys()) & set(before)
