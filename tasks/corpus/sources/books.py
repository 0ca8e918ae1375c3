"""Plain-text books: paragraphs out of lines, chapters out of headings, without the publisher's header and licence."""

from __future__ import annotations

import lzma
import re
import statistics
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from model.common.errors import UserError
from tasks.corpus.sources.file_chunks import Draft, FileChunk
from tasks.corpus.sources.prose import ends_sentence, tidy
from tasks.params.corpus import BooksSource

ZIP_SUFFIXES = (".zip",)
ARCHIVE_SUFFIXES = (*ZIP_SUFFIXES, ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
SUFFIXES = (".txt", *ARCHIVE_SUFFIXES)
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
_LONGEST_HEADER = 40_000  # characters: no licence is longer, few books are shorter
_NUMBER = (
    r"(?:\d+|[ivxlcdm]+|first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|the \w+|"
    r"one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|"
    r"(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty(?:[- ]\w+)?)"
)
_ROMAN_LINE = re.compile(r"[IVXLC]+\.?$|\d{1,3}\.?$")
_LONGEST_HEADING = 90
_WRAPPED_WIDTH = 100
_ITALICS = re.compile(r"(?<!\w)_([^_\n]{1,300})_(?!\w)")


def read(source: BooksSource, chunk: FileChunk, drops: Counter[str]) -> Iterator[tuple[str, bytes]]:
    """The book as one item: its name and content; of an archive, each of its books.

    Raises:
        UserError: the file is larger than a book may be, or the archive is damaged.
    """
    if is_archive(chunk.name):
        with chunk.open() as file:
            for member, content in read_members(file, chunk.name, (".txt",), source.max_book_bytes):
                if content is None:
                    drops[TOO_LARGE] += 1
                else:
                    yield f"{chunk.name}/{member}", content
        return
    if chunk.size > source.max_book_bytes:
        raise UserError(
            f"{chunk.name}: {chunk.size:,} bytes are more than max_book_bytes ({source.max_book_bytes:,}); "
            "split the file, or raise the limit if it is one book"
        )
    with chunk.open() as file:
        yield chunk.name, file.read()


def parse(source: BooksSource, book: tuple[str, bytes]) -> list[Draft]:
    """The documents of one book: its chapters, or all of it."""
    name, content = book
    lines = _body(_decoded(content)).split("\n")
    title = Path(name).stem
    chapters = _chapters(lines, source) if source.documents == "chapters" else [("", lines)]
    drafts = []
    for number, (heading, chapter) in enumerate(chapters):
        paragraphs = [tidy(paragraph) for paragraph in _paragraphs(chapter)]
        kept = [paragraph for paragraph in paragraphs if paragraph]
        if not kept:
            continue  # nothing before the first heading, or a heading that another one follows
        suffix = f"#{number}" if source.documents == "chapters" else ""
        drafts.append(Draft(f"{name}{suffix}", f"{title}: {heading}" if heading else title, kept))
    return drafts


def _decoded(content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _body(text: str) -> str:
    """Without what Project Gutenberg puts before, after and (where files were joined) between its books."""
    starts = [(found.start(), found.end(), True) for found in _GUTENBERG_START.finditer(text)]
    ends = [(found.start(), found.end(), False) for found in _GUTENBERG_END.finditer(text)]
    if not starts and not ends:
        return _without_credits(text, marked=False)
    bodies = []
    begin = 0 if not starts else None  # a file with a licence at its end alone
    for mark_begin, mark_end, is_start in sorted([*starts, *ends]):
        # between two starts is more of the header, unless it is too long to be one
        if begin is not None and (not is_start or mark_begin - begin > _LONGEST_HEADER):
            bodies.append(_without_credits(text[begin:mark_begin]))
        begin = mark_end if is_start else None
    if begin is not None:
        bodies.append(_without_credits(text[begin:]))
    return "\n\n".join(bodies)


def _without_credits(body: str, marked: bool = True) -> str:
    """Without the paragraphs at the start that name who typed a text; where the marks have been cut off before
    (`marked` is false), only if they name the project."""
    while (found := _GUTENBERG_CREDITS.match(body)) and (marked or _PROJECT.search(found[0])):
        body = body[found.end() :]
    return body


def _chapters(lines: list[str], source: BooksSource) -> list[tuple[str, list[str]]]:
    """(Heading, lines) of each chapter; the text before the first heading is a chapter, too."""
    words = "|".join(re.escape(word) for word in source.heading_words)
    heading = re.compile(rf"\s*(?:the\s+)?(?:{words})\s+{_NUMBER}\b(?!\s*,)", re.I)
    chapters: list[tuple[str, list[str]]] = [("", [])]
    for place, line in enumerate(lines):
        short = len(line) <= _LONGEST_HEADING
        if short and heading.match(line) and _stands_alone(lines, place):
            chapters.append((tidy(line), []))
        elif short and _ROMAN_LINE.match(line.strip()) and _between_blanks(lines, place):
            chapters.append((line.strip(), []))
        else:
            chapters[-1][1].append(line)
    return chapters


def _stands_alone(lines: list[str], place: int) -> bool:
    """A heading is no line in the middle of a wrapped paragraph: the line before it is blank or ends a sentence."""
    before = lines[place - 1].strip() if place else ""
    return not before or len(before) < 60 or ends_sentence(before)


def _between_blanks(lines: list[str], place: int) -> bool:
    after = lines[place + 1].strip() if place + 1 < len(lines) else ""
    return (place == 0 or not lines[place - 1].strip()) and not after


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Paragraphs of a text that has one per line, or wraps them and parts them by blank lines, or only wraps them."""
    filled = [line for line in lines if line.strip()]
    if not filled:
        return
    lengths = sorted(map(len, filled))
    if lengths[int(0.98 * (len(lengths) - 1))] > _WRAPPED_WIDTH:
        yield from map(_cleaned, filled)
        return
    if len(lines) - len(filled) >= 0.03 * len(filled):
        yield from map(_cleaned, _split_at_blanks(lines))
        return
    yield from map(
        _cleaned, _split_at_short_lines(filled, statistics.quantiles(lengths, n=10)[-1] if len(lengths) > 1 else 0)
    )


def _split_at_blanks(lines: list[str]) -> Iterator[str]:
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            paragraph.append(line.strip())
        elif paragraph:
            yield _joined(paragraph)
            paragraph = []


def _split_at_short_lines(lines: list[str], width: float) -> Iterator[str]:
    """A paragraph ends with a sentence that leaves room on its line for the next line's first word."""
    paragraph: list[str] = []
    for place, line in enumerate(lines):
        paragraph.append(line.strip())
        following = lines[place + 1].strip() if place + 1 < len(lines) else ""
        room = width - len(line.rstrip()) > len(following.split(" ", 1)[0]) + 1
        if not following or (room and ends_sentence(line.strip())) or lines[place + 1].startswith("  "):
            yield _joined(paragraph)
            paragraph = []


def _joined(lines: list[str]) -> str:
    """Lines joined by blanks; a word that was broken at its hyphen keeps it without one."""
    text = lines[0]
    for line in lines[1:]:
        broken = text.endswith("-") and not text.endswith("--") and text[-2:-1].isalpha()
        text += line if broken else f" {line}"
    return text


def _cleaned(paragraph: str) -> str:
    """Without the marks that plain text uses for italics and notes."""
    paragraph = (
        _ITALICS.sub(r"\1", paragraph).replace("--", " – ") if "_" in paragraph else paragraph.replace("--", " – ")
    )
    return re.sub(r"\[(?:Illustration|Footnote|Transcriber)[^\]]*\]", "", paragraph) if "[" in paragraph else paragraph


Member = tuple[str, bytes | None]  # name, content (None: larger than allowed)


def is_archive(name: str) -> bool:
    """Check by its name whether a file is an archive."""
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def read_members(file: BinaryIO, name: str, suffixes: tuple[str, ...], max_bytes: int) -> Iterator[Member]:
    """The files of an archive whose names end with one of `suffixes`: of a zip by name, of a tar as they come.

    Never more than `max_bytes` of a file are unpacked, whatever the archive says of its size.

    Raises:
        UserError: the archive is damaged, cut off or locked.
    """
    read = _zip_members if name.lower().endswith(ZIP_SUFFIXES) else _tar_members
    try:
        yield from read(file, suffixes, max_bytes)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        raise UserError(f"{name}: a damaged or cut off archive ({error}); download it again") from None
    except RuntimeError as error:  # what zipfile says of passwords and rare packing
        raise UserError(f"{name}: an archive that cannot be read ({error}); unpack it yourself") from None


def _zip_members(file: BinaryIO, suffixes: tuple[str, ...], max_bytes: int) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            if not entry.is_dir() and entry.filename.lower().endswith(suffixes):
                with archive.open(entry) as member:
                    yield entry.filename, _bounded(member, max_bytes)


def _tar_members(file: BinaryIO, suffixes: tuple[str, ...], max_bytes: int) -> Iterator[Member]:
    with tarfile.open(fileobj=file, mode="r|*") as archive:  # a stream: in order, in little memory
        for entry in archive:
            member = archive.extractfile(entry) if entry.isreg() and entry.name.lower().endswith(suffixes) else None
            if member is not None:
                yield entry.name, _bounded(member, max_bytes)


def _bounded(file: IO[bytes], max_bytes: int) -> bytes | None:
    content = file.read(max_bytes + 1)
    return content if len(content) <= max_bytes else None
