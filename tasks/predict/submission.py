"""GLUE submission zip: eleven files with an answer for every test row (docs/submission.md).

File names follow jiant (nyu-mll/jiant, scripts/benchmarks/benchmarks.py), row counts the dataset card of
nyu-mll/glue, and labels the training files (`model.benchmarks.table`).
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError, shown
from model.common.files import write_bytes

HEADER = "index\tprediction"
LOWEST, HIGHEST = 0.0, 5.0
"""Range of STS-B scores; predictions are clipped to it, as in the GLUE baselines."""

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time in the zip format
_MAX_REPORTED = 5  # faults per file


@dataclass(frozen=True)
class Sheet:
    """One file of the zip."""

    name: str
    """File name without .tsv."""
    benchmark: str
    part: str
    """Suffix of the test part."""
    num_rows: int

    @property
    def labels(self) -> tuple[str, ...]:
        return BENCHMARKS[self.benchmark].labels


SHEETS = (
    Sheet("CoLA", "cola", "", 1063),
    Sheet("SST-2", "sst2", "", 1821),
    Sheet("MRPC", "mrpc", "", 1725),
    Sheet("QQP", "qqp", "", 390_965),
    Sheet("STS-B", "stsb", "", 1379),
    Sheet("MNLI-m", "mnli", "matched", 9796),
    Sheet("MNLI-mm", "mnli", "mismatched", 9847),
    Sheet("QNLI", "qnli", "", 5463),
    Sheet("RTE", "rte", "", 3000),
    Sheet("WNLI", "wnli", "", 146),
    Sheet("AX", "mnli", "diagnostic", 1104),
)


def check_rows(sheet: Sheet, path: Path, ids: Sequence[str], partial: bool) -> None:
    """Check that a test file is complete (unless `partial`) and numbered 0, 1, 2, ... like GLUE's.

    Raises:
        UserError: it is not; the message names the file, the found and the expected value.
    """
    if len(ids) != sheet.num_rows and not partial:
        raise UserError(
            f"{path}: {len(ids)} rows, but GLUE's test set has {sheet.num_rows}, which the server requires; "
            "use GLUE's original file, or pass --partial for a zip for other uses"
        )
    for number, found in enumerate(ids):
        if found != str(number):
            raise UserError(
                f"{path}: row {number}: expected index {number}, found {shown(found)}; use GLUE's original file"
            )


def sheet_text(sheet: Sheet, answers: Sequence[str | float]) -> str:
    """Content of one file, from labels or their names. Scores are clipped to 0–5 and written with three decimals.

    Raises:
        UserError: a label is unknown to the server, or a score is not finite.
    """
    lines = [HEADER]
    for number, answer in enumerate(answers):
        where = f"{sheet.name}.tsv: row {number}"
        answer = BENCHMARKS[sheet.benchmark].label_of(answer) if isinstance(answer, str) else answer
        if sheet.labels and answer not in sheet.labels:
            raise UserError(f"{where}: label {shown(answer)}; the server knows {', '.join(sheet.labels)}")
        if not sheet.labels and not math.isfinite(float(answer)):
            raise UserError(f"{where}: the score is {answer}; expected a number")
        text = answer if sheet.labels else f"{min(max(float(answer), LOWEST), HIGHEST):.3f}"
        lines.append(f"{number}\t{text}")
    return "\n".join(lines) + "\n"


def write_submission(path: Path, texts: Mapping[str, str]) -> None:
    """Write the zip from the content of each file by name. Equal contents give identical bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for sheet in SHEETS:
            if sheet.name in texts:
                entry = zipfile.ZipInfo(f"{sheet.name}.tsv", _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.create_system = 3  # Unix, whichever system writes it
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, texts[sheet.name])
    write_bytes(path, content.getvalue())


def check_submission(path: Path, partial: bool = False) -> list[str]:
    """List the faults of a submission zip, one line each; empty if the server would accept it.

    With `partial`, other row counts and missing files are no faults.

    Raises:
        UserError: the file is missing or not a zip.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return list(_faults(archive, partial))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected a zip for GLUE's server") from None
    except (zipfile.BadZipFile, IsADirectoryError) as error:
        raise UserError(f"{path}: not a zip ({error}); expected one with {SHEETS[0].name}.tsv and ten more") from None


def _faults(archive: zipfile.ZipFile, partial: bool) -> Iterator[str]:
    known = {f"{sheet.name}.tsv": sheet for sheet in SHEETS}
    names = archive.namelist()
    for name in dict.fromkeys(names):
        if name not in known:
            yield f"{name}: not a file of a submission; expected {', '.join(known)}, without a directory"
        elif names.count(name) > 1:
            yield f"{name}: present {names.count(name)} times"
    for name, sheet in known.items():
        if name in names:
            try:
                content = archive.read(name)
            except zipfile.BadZipFile as error:
                yield f"{name}: damaged ({error})"
                continue
            faults = list(sheet_faults(sheet, content, partial))
            yield from (f"{name}: {fault}" for fault in faults[:_MAX_REPORTED])
            if len(faults) > _MAX_REPORTED:
                yield f"{name}: {len(faults) - _MAX_REPORTED} more faults, the last: {faults[-1]}"
        elif not partial:
            yield f"{name}: missing"


def sheet_faults(sheet: Sheet, content: bytes, partial: bool = False) -> Iterator[str]:
    try:
        lines = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        yield f"not UTF-8 (at byte {error.start})"
        return
    header, *lines = [line.removesuffix("\r") for line in lines]
    if header != HEADER:
        yield f"line 1: expected the header {HEADER!r}, found {header[:60]!r}"
        return
    seen: set[int] = set()
    for number, line in enumerate(lines, 2):
        fields = line.split("\t")
        if len(fields) != 2 or not (fields[0].isascii() and fields[0].isdigit() and len(fields[0]) < 10):
            yield f"line {number}: expected an index, a tab and a prediction, found {line[:60]!r}"
            continue
        index = int(fields[0])
        if index in seen:
            yield f"line {number}: duplicate index {index}"
        elif index != number - 2:
            yield f"line {number}: expected index {number - 2}, found {index}"
        seen.add(index)
        fault = _answer_fault(sheet, fields[1])
        if fault:
            yield f"line {number}: {fault}"
    if len(lines) != sheet.num_rows and not partial:
        yield f"{len(lines)} rows where {sheet.num_rows} are expected"


def _answer_fault(sheet: Sheet, answer: str) -> str:
    if sheet.labels:
        return "" if answer in sheet.labels else f"label {shown(answer)}; expected {', '.join(sheet.labels)}"
    try:
        score = float(answer)
    except ValueError:
        return f"expected a number, found {shown(answer)}"
    return "" if LOWEST <= score <= HIGHEST else f"score {answer} is outside {LOWEST:.0f} to {HIGHEST:.0f}"
