"""The zip that GLUE's server takes: eleven files with an answer for every test row (docs/submission.md).

File names are those that the benchmark's own toolkit writes (nyu-mll/jiant, scripts/benchmarks/benchmarks.py); numbers
of rows those of the data set's card (nyu-mll/glue on the hub); spellings those of the training files.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from model.common.errors import UserError
from model.common.files import write_bytes

HEADER = "index\tprediction"
LOWEST, HIGHEST = 0.0, 5.0
"""STS-B's scale; answers outside are moved to its end (GLUE's baselines do so)."""

_BINARY = ("0", "1")
_ENTAILED = ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can tell
_MOST_NAMED = 5  # faults of one file that are told


@dataclass(frozen=True)
class Sheet:
    """One file of the zip."""

    name: str
    """Of the file, without .tsv."""
    benchmark: str
    """Whose model answers, in the table of benchmarks."""
    part: str
    """The suffix of the test part."""
    num_rows: int
    """Of GLUE's test set."""
    labels: tuple[str, ...]
    """The spellings that the server knows; none for scores."""


SHEETS = (
    Sheet("CoLA", "cola", "", 1063, _BINARY),
    Sheet("SST-2", "sst2", "", 1821, _BINARY),
    Sheet("MRPC", "mrpc", "", 1725, _BINARY),
    Sheet("QQP", "qqp", "", 390_965, _BINARY),
    Sheet("STS-B", "stsb", "", 1379, ()),
    Sheet("MNLI-m", "mnli", "matched", 9796, _INFERENCE),
    Sheet("MNLI-mm", "mnli", "mismatched", 9847, _INFERENCE),
    Sheet("QNLI", "qnli", "", 5463, _ENTAILED),
    Sheet("RTE", "rte", "", 3000, _ENTAILED),
    Sheet("WNLI", "wnli", "", 146, _BINARY),
    Sheet("AX", "mnli", "diagnostic", 1104, _INFERENCE),
)


def check_rows(sheet: Sheet, path: Path, ids: Sequence[str], partial: bool) -> None:
    """Whether a test file is the one that the server has answers to: its rows by number, 0, 1, 2, ..., and all of them.

    Args:
        partial: another number of rows is let pass.

    Raises:
        UserError: it is not; the message names the file, what was found and what is expected.
    """
    if len(ids) != sheet.num_rows and not partial:
        raise UserError(
            f"{path}: {len(ids)} rows where GLUE's test set has {sheet.num_rows}; the server refuses another number; "
            "fetch GLUE's own file, or say --partial for a zip that is not meant for the server"
        )
    for number, found in enumerate(ids):
        if found != str(number):
            raise UserError(f"{path}: row {number}: index {found!r} where {number} was expected; fetch GLUE's own file")


def sheet_text(sheet: Sheet, answers: Sequence[str | float]) -> str:
    """The file of a sheet. Scores are cut to 0 to 5 and have three decimals.

    Raises:
        UserError: a label that the server does not know, or a score that is no number.
    """
    lines = [HEADER]
    for number, answer in enumerate(answers):
        if sheet.labels:
            if answer not in sheet.labels:
                known = ", ".join(sheet.labels)
                raise UserError(f"{sheet.name}.tsv: row {number}: label {answer!r}; the server knows {known}")
            lines.append(f"{number}\t{answer}")
        else:
            if not math.isfinite(float(answer)):
                raise UserError(f"{sheet.name}.tsv: row {number}: the score is {answer}; expected a number")
            lines.append(f"{number}\t{min(max(float(answer), LOWEST), HIGHEST):.3f}")
    return "\n".join(lines) + "\n"


def write_submission(path: Path, texts: Mapping[str, str]) -> None:
    """Write the zip: the file of each sheet by its name, in no folder; equal texts give equal bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for sheet in SHEETS:
            if sheet.name in texts:
                entry = zipfile.ZipInfo(f"{sheet.name}.tsv", _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.create_system = 3  # the same whichever system writes it
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, texts[sheet.name])
    write_bytes(path, content.getvalue())


def check_submission(path: Path, partial: bool = False) -> list[str]:
    """What is wrong with a zip for GLUE's server, a line each; none when it is as the server wants it.

    Args:
        partial: other numbers of rows, and files that are missing, are let pass.

    Raises:
        UserError: the file is missing or no zip.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return list(_faults(archive, partial))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected a zip for GLUE's server") from None
    except (zipfile.BadZipFile, IsADirectoryError) as error:
        raise UserError(f"{path}: no zip ({error}); expected one with {SHEETS[0].name}.tsv and ten more") from None


def _faults(archive: zipfile.ZipFile, partial: bool) -> Iterator[str]:
    known = {f"{sheet.name}.tsv": sheet for sheet in SHEETS}
    names = archive.namelist()
    for name in dict.fromkeys(names):
        if name not in known:
            yield f"{name}: not a file of a submission; expected {', '.join(known)}, in no folder"
        elif names.count(name) > 1:
            yield f"{name}: there {names.count(name)} times"
    for name, sheet in known.items():
        if name in names:
            try:
                content = archive.read(name)
            except zipfile.BadZipFile as error:
                yield f"{name}: damaged ({error})"
                continue
            yield from _few(name, sheet_faults(sheet, content, partial))
        elif not partial:
            yield f"{name}: missing"


def sheet_faults(sheet: Sheet, content: bytes, partial: bool = False) -> Iterator[str]:
    """What is wrong with one file."""
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        yield f"not UTF-8 (at byte {error.start})"
        return
    lines = [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    if not lines or lines[0] != HEADER:
        found = lines[0] if lines else ""
        yield f"line 1: expected the header {HEADER!r}, found {found[:60]!r}"
        return
    seen: set[int] = set()
    for number, line in enumerate(lines[1:], 2):
        fields = line.split("\t")
        if len(fields) != 2 or not (fields[0].isascii() and fields[0].isdigit()):
            yield f"line {number}: expected an index, a tab and a prediction, found {line[:60]!r}"
            continue
        index = int(fields[0])
        if index in seen:
            yield f"line {number}: index {index} for the second time"
        elif index != number - 2:
            yield f"line {number}: index {index} where {number - 2} was expected"
        seen.add(index)
        fault = _answer_fault(sheet, fields[1])
        if fault:
            yield f"line {number}: {fault}"
    if len(lines) - 1 != sheet.num_rows and not partial:
        yield f"{len(lines) - 1} rows where {sheet.num_rows} are expected"


def _answer_fault(sheet: Sheet, answer: str) -> str:
    if sheet.labels:
        return "" if answer in sheet.labels else f"label {answer!r}; expected {', '.join(sheet.labels)}"
    try:
        score = float(answer)
    except ValueError:
        return f"{answer!r} where a number was expected"
    return "" if LOWEST <= score <= HIGHEST else f"score {answer} outside of {LOWEST:.0f} to {HIGHEST:.0f}"


def _few(name: str, faults: Iterator[str]) -> Iterator[str]:
    """The first faults of a file, and how many more there are."""
    everything = list(faults)
    yield from (f"{name}: {fault}" for fault in everything[:_MOST_NAMED])
    if len(everything) > _MOST_NAMED:
        yield f"{name}: {len(everything) - _MOST_NAMED} more faults, the last: {everything[-1]}"
