"""Read plain-text books: join lines into paragraphs, split chapters at headings, and remove headers and licenses."""

from __future__ import annotations

import itertools
import lzma
import re
import statistics
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, BinaryIO

from model.common.errors import UserError
from tasks.corpus.sources.file_chunks import Draft, FileChunk, is_bomb, most_unpacked, unpacked
from tasks.corpus.sources.prose import ends_sentence, tidy, tidy_lines
from tasks.params.corpus import BooksSource

_ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
SUFFIXES = (".txt", *_ARCHIVE_SUFFIXES)
TOO_LARGE = "larger than max_book_bytes"
_GUTENBERG_START = re.compile(
    r"^[ \t]*\*{3,}\s*START OF (?:TH(?:E|IS) )?PROJECT GUTENBERG(?:[^\n*]*\n){0,3}?[^\n]*\*{3}[^\n]*$"
    r"|^[ \t]*\*{3,}\s*START OF (?:TH(?:E|IS) )?PROJECT GUTENBERG[^\n]*$"
    r"|^[ \t]*\*?END\s*\*?\s*THE SMALL PRINT![^\n]*$",
    re.I | re.M,
)
_GUTENBERG_END = re.compile(
    r"^[ \t]*\*{3,}\s*END OF (?:TH(?:E|IS) )?PROJECT GUTENBERG[^\n]*$"
    r"|^[ \t]*(?:This is )?(?:The )?End of (?:the |this )?Project Gutenberg[^\n]*$"
    r"|^[ \t]*(?:Ende dieses|Fin d[eu]|Fine del) Proje[ck]t ?Gutenberg[^\n]*$"
    r"|^[ \t]*\*{3,}\s*START: FULL LICENSE[^\n]*$"
    r"|^[ \t]*\*{3,}\s*START\s*\*+\s*THE SMALL PRINT[^\n]*$",
    re.I | re.M,
)
_GUTENBERG_CREDITS = re.compile(
    r"\s*\[?(?:(?:this )?(?:e-?text|e-?book|project gutenberg e-?\w+|html version|edition|file) (?:was |is )?)?"
    r"(?:produced|prepared|provided|typed|scanned|transcribed|digiti[sz]ed|converted|created)(?: and [\w-]+){0,3}"
    r" (?:by|from)\b[^\n]*\n(?:[^\n]*\S[^\n]*(?:\n|$))*",
    re.I,
)
_PROJECT = re.compile(r"gutenberg|proofread|pgdp", re.I)
_LONGEST_HEADER = 40_000  # characters: longer than any license, shorter than most books
_NUMBER = (
    r"(?:\d+|[ivxlcdm]+|first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|the \w+|"
    r"one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|"
    r"(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty(?:[- ]\w+)?)"
)
_ROMAN_LINE = re.compile(r"[IVXLC]+\.?$|\d{1,3}\.?$")
_LONGEST_HEADING = 90
_WRAPPED_WIDTH = 100
_SHORT_LINE = 60  # characters: a shorter line ends a wrapped paragraph
_NOTE = re.compile(r"\[(?:Illustration|Footnote|Transcriber)[^\]]*\]")
_ITALICS = re.compile(r"(?<!\w)_([^_\n]{1,300})_(?!\w)")


def read(source: BooksSource, chunk: FileChunk, drops: Counter[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the (name, content) of a book, or of each book in an archive.

    Raises:
        UserError: the file is larger than max_book_bytes, or the archive is damaged, truncated or encrypted.
    """
    if chunk.name.lower().endswith(_ARCHIVE_SUFFIXES):
        yield from _members(chunk, source.max_book_bytes, drops)
        return
    if chunk.size > source.max_book_bytes:
        raise UserError(
            f"{chunk.name}: {chunk.size:,} bytes exceed max_book_bytes ({source.max_book_bytes:,}); "
            "split the file, or raise the limit if it is one book"
        )
    with chunk.open() as file:
        yield chunk.name, file.read()


def _members(chunk: FileChunk, max_bytes: int, drops: Counter[str]) -> Iterator[tuple[str, bytes]]:
    """Unpack at most `max_bytes` of each file, regardless of the size that the archive declares.

    Nothing is written, and members other than regular files are skipped; names only identify documents.
    """
    num_bytes, most = 0, most_unpacked(chunk.size)
    members = _zip_members if chunk.name.lower().endswith(".zip") else _tar_members
    with chunk.open() as file:
        try:
            for name, member in members(file, chunk.name):
                content = member.read(max_bytes + 1)
                num_bytes += len(content)
                if num_bytes > most:
                    raise is_bomb(chunk.name, most)
                if len(content) <= max_bytes:
                    yield f"{chunk.name}/{name}", content
                else:
                    drops[TOO_LARGE] += 1
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
            raise UserError(f"{chunk.name}: the archive is damaged or truncated ({error}); download it again") from None
        except RuntimeError as error:  # zipfile raises it for passwords and unsupported compression
            raise UserError(f"{chunk.name}: the archive cannot be read ({error}); unpack it manually") from None


def _zip_members(file: BinaryIO, _name: str) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(file) as archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            if entry.filename.lower().endswith(".txt"):
                with archive.open(entry) as member:
                    yield entry.filename, member


def _tar_members(file: BinaryIO, name: str) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(fileobj=unpacked(file, name), mode="r|") as archive:  # a stream: in order, in little memory
        for entry in archive:
            member = archive.extractfile(entry) if entry.isreg() and entry.name.lower().endswith(".txt") else None
            if member is not None:
                yield entry.name, member


def parse(source: BooksSource, book: tuple[str, bytes]) -> list[Draft]:
    """Split a book into documents: its chapters, or the whole book."""
    name, content = book
    lines = _body(_decoded(content)).split("\n")
    title = Path(name).stem
    chapters = _chapters(lines, source) if source.documents == "chapters" else [("", lines)]
    drafts = []
    for number, (heading, chapter) in enumerate(chapters):
        paragraphs = tidy_lines(_paragraphs(chapter))
        if not paragraphs:
            continue  # no text before the first heading, or between two headings
        suffix = f"#{number}" if source.documents == "chapters" else ""
        drafts.append(Draft(f"{name}{suffix}", f"{title}: {heading}" if heading else title, paragraphs))
    return drafts


def _decoded(content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _body(text: str) -> str:
    """Remove the text that Project Gutenberg adds before, after and (in concatenated files) between books."""
    starts = [(found.start(), found.end(), True) for found in _GUTENBERG_START.finditer(text)]
    ends = [(found.start(), found.end(), False) for found in _GUTENBERG_END.finditer(text)]
    if not starts and not ends:
        return _without_credits(text, marked=False)
    bodies = []
    begin = 0 if not starts else None  # the file has a license only at its end
    for mark_begin, mark_end, is_start in sorted([*starts, *ends]):
        # text between two starts belongs to the header, unless it is too long
        if begin is not None and (not is_start or mark_begin - begin > _LONGEST_HEADER):
            bodies.append(_without_credits(text[begin:mark_begin]))
        begin = mark_end if is_start else None
    if begin is not None:
        bodies.append(_without_credits(text[begin:]))
    return "\n\n".join(bodies)


def _without_credits(body: str, marked: bool = True) -> str:
    """Remove transcription credits from the start of a text. Without Gutenberg marks (`marked` is false), remove only
    paragraphs that name the project."""
    while (found := _GUTENBERG_CREDITS.match(body)) and (marked or _PROJECT.search(found[0])):
        body = body[found.end() :]
    return body


def _chapters(lines: list[str], source: BooksSource) -> list[tuple[str, list[str]]]:
    """Return (heading, lines) of each chapter; the text before the first heading is also a chapter."""
    words = "|".join(re.escape(word) for word in source.heading_words)
    heading = re.compile(rf"\s*(?:the\s+)?(?:{words})\s+{_NUMBER}\b(?!\s*,)", re.I)
    chapters: list[tuple[str, list[str]]] = [("", [])]
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""]):
        if len(line) <= _LONGEST_HEADING:
            before = before.strip()
            # Ignore lines in the middle of a wrapped paragraph.
            if heading.match(line) and (len(before) < _SHORT_LINE or ends_sentence(before)):
                chapters.append((tidy(line), []))
                continue
            if _ROMAN_LINE.match(line.strip()) and not before and not after.strip():
                chapters.append((line.strip(), []))
                continue
        chapters[-1][1].append(line)
    return chapters


def _paragraphs(lines: list[str]) -> Iterable[str]:
    """Find paragraphs: one per line, wrapped and separated by blank lines, or wrapped without blank lines."""
    filled = [line for line in lines if line.strip()]
    if not filled:
        return []
    lengths = sorted(map(len, filled))
    paragraphs: Iterable[str]
    if lengths[int(0.98 * (len(lengths) - 1))] > _WRAPPED_WIDTH:
        paragraphs = filled
    elif len(lines) - len(filled) >= 0.03 * len(filled):
        groups = itertools.groupby(map(str.strip, lines), key=bool)
        paragraphs = [_joined(list(group)) for is_filled, group in groups if is_filled]
    else:
        paragraphs = _split_at_short_lines(filled, statistics.quantiles(lengths, n=10)[-1] if len(lengths) > 1 else 0)
    return map(_cleaned, paragraphs)


def _split_at_short_lines(lines: list[str], width: float) -> Iterator[str]:
    """End a paragraph where a sentence ends and the next line's first word would have fit on its line."""
    paragraph: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""]):
        paragraph.append(line.strip())
        has_room = width - len(line.rstrip()) > len(following.strip().split(" ", 1)[0]) + 1
        if not following or (has_room and ends_sentence(line.strip())) or following.startswith("  "):
            yield _joined(paragraph)
            paragraph = []


def _joined(lines: list[str]) -> str:
    """Join lines with spaces, but without a space after a word that was broken at a hyphen."""
    text = lines[0]
    for line in lines[1:]:
        broken = text.endswith("-") and not text.endswith("--") and text[-2:-1].isalpha()
        text += line if broken else f" {line}"
    return text


def _cleaned(paragraph: str) -> str:
    """Remove the plain-text marks for italics and notes."""
    if "_" in paragraph:
        paragraph = _ITALICS.sub(r"\1", paragraph)
    paragraph = paragraph.replace("--", " – ")
    return _NOTE.sub("", paragraph) if "[" in paragraph else paragraph
