"""Archives and compressed files of a corpus: decompression bombs, links, and names that point outside."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from model.common.errors import UserError
from tasks.corpus.sources import books, file_chunks, plain_text, tables
from tasks.corpus.sources.file_chunks import FileChunk
from tasks.params.corpus import BooksSource, JsonlSource, TextSource

ZEROS = bytes(8 << 20)
SOURCE = {"name": "planted", "path": "p", "language": "en"}


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_chunks, "_LEAST_UNPACKED", 1 << 20)


def read_books(path: Path, drops: Counter[str]) -> list[tuple[str, bytes]]:
    return list(books.read(BooksSource(kind="books", **SOURCE), FileChunk.whole(path, path.name), drops))


def tar(path: Path, mode: str, *entries: tuple[str, bytes, bytes]) -> None:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, kind, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size, entry.linkname = kind, len(content) if kind == tarfile.REGTYPE else 0, "/etc/passwd"
            archive.addfile(entry, io.BytesIO(content) if kind == tarfile.REGTYPE else None)


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_a_compressed_file_that_is_a_bomb(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"a.txt.{suffix}"
    path.write_bytes(pack(ZEROS))
    chunk = FileChunk.whole(path, path.name)
    with pytest.raises(UserError, match=r"a.txt\.\w+: expands to more than [\d,]+ bytes, 250 times its size"):
        list(plain_text.read(TextSource(kind="text", **SOURCE), chunk, Counter()))
    path = path.rename(tmp_path / f"a.jsonl.{suffix}")
    chunk = FileChunk.whole(path, path.name)
    with pytest.raises(UserError, match="expands to more than"):
        list(tables.read_jsonl(JsonlSource(kind="jsonl", **SOURCE), chunk, Counter()))


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_an_archive_that_is_a_bomb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / f"b.tar.{mode[2:]}"
    tar(path, mode, ("picture.png", tarfile.REGTYPE, ZEROS), ("a.txt", tarfile.REGTYPE, b"text"))
    with pytest.raises(UserError, match=r"b.tar\.\w+: expands to more than"):
        read_books(path, Counter())


def test_a_zip_that_is_a_bomb(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", ZEROS)
    with pytest.raises(UserError, match="b.zip: expands to more than"):
        read_books(tmp_path / "b.zip", Counter())


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_members_stay_in_the_archive(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    path = folder / f"b.tar{mode[1:].replace(':', '.')}"
    links = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
    planted = [(f"{number}.txt", kind, b"") for number, kind in enumerate(links)]
    tar(path, mode, ("../../out.txt", tarfile.REGTYPE, b"one"), *planted, ("/abs.txt", tarfile.REGTYPE, b"two"))
    assert [content for _, content in read_books(path, Counter())] == [b"one", b"two"], "links are not followed"
    assert [one.name for one in tmp_path.rglob("*.txt")] == []


def test_a_damaged_archive(tmp_path: Path) -> None:
    for name, content in (
        ("a.tar.xz", lzma.compress(b"x" * 4096)[:-9]),
        ("a.tar.gz", b"\0" * 99),
        ("a.zip", b"PK\3\4"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name}: the archive is damaged or truncated"):
            read_books(tmp_path / name, Counter())
