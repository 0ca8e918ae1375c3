"""Files of predictions in the usual forms, matched with the rows of a gold file.

- `.jsonl`: an object per line with "prediction" and "id" (our predictions.jsonl; without ids, in the gold's order);
- `.json`: an object from id to prediction (SQuAD's predictions.json);
- a table with tabs whose header has "prediction" (GLUE's submissions: index, prediction); other columns but the first,
  which names the row or counts it from 0, are passed over;
- for tags, CoNLL's columns: a word per line, its tag in the last column, blank lines between sentences;
- else a prediction per line, in the gold's order (for tags: a sentence's tags, with blanks between them).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from model.benchmarks.readers.examples import Part, TagExample
from model.benchmarks.readers.rows import read_text
from model.benchmarks.table import Benchmark
from model.common.errors import UserError

_Item = tuple[str, Any]  # where it is in the file; the prediction
_DOCUMENT_START = "-DOCSTART-"


def read_predictions(row: Benchmark, path: Path, gold: Part, may_lack: bool = False) -> list[Any]:
    """A prediction per row of `gold`: a label's number, a score, a text, or a tuple of tags.

    With `may_lack`, None stands for a row that a file with ids does not name.

    Raises:
        UserError: a row is missing, superfluous or predicted twice, or a prediction is none of the benchmark's; the
            message names file and row.
    """
    lines = _lines(path)
    if path.suffix == ".jsonl":
        items = _matched(path, gold, _json_lines(row, path, gold, lines), may_lack)
    elif path.suffix == ".json":
        found = ((f"'{key}'", key, value) for key, value in read_mapping(path).items())
        items = _matched(path, gold, found, may_lack)
    elif lines and "prediction" in lines[0].lower().split("\t"):
        items = _matched(path, gold, _table(path, lines), may_lack)
    elif row.head == "tags" and not _all_tags(row, lines):
        items = _columns(path, gold, lines)
    else:
        items = _matched(path, gold, ((f"row {n}", None, line) for n, line in enumerate(lines, 1)), may_lack)
    read = _READERS.get(row.head, _label)
    return [
        None if item is None else read(row, f"{path}: {item[0]}", item[1], example)
        for item, example in zip(items, gold.examples)
    ]


def read_mapping(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        UserError: the file is missing or holds something else.
    """
    try:
        document = json.loads("\n".join(_lines(path)))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}: row {error.lineno}: not JSON ({error.msg}); expected an object from id to prediction"
        ) from None
    if not isinstance(document, dict):
        raise UserError(f"{path}: {type(document).__name__} where an object from id to prediction was expected")
    return document


def read_numbers(path: Path, gold: Part) -> dict[str, float]:
    """A number for each row of `gold` by its id, in the file's order (v2.0's null_odds.json or na_prob.json).

    Raises:
        UserError: as `read_predictions`.
    """
    numbers = {key: _number(f"{path}: '{key}'", value) for key, value in read_mapping(path).items()}
    _matched(path, gold, ((f"'{key}'", key, value) for key, value in numbers.items()), may_lack=False)
    return numbers


def _lines(path: Path) -> list[str]:
    """The lines of a text file; only line feeds end them, since answers hold other separators."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected predictions")
    lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    if lines[-1] == "":
        lines.pop()
    return lines


def _json_lines(row: Benchmark, path: Path, gold: Part, lines: list[str]) -> list[tuple[str, str | None, Any]]:
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: row {number}: not JSON ({error.msg}); expected an object per line") from None
        if not isinstance(record, dict) or "prediction" not in record:
            raise UserError(f"{path}: row {number}: expected an object with 'prediction'")
        records.append((number, record))
    parts = {record.get("part") for _, record in records}
    if len(parts) > 1:
        part = {Path(name).name: suffix for suffix, name in row.dev.items()}.get(gold.path.name)
        if part not in parts:
            known = ", ".join(Path(name).name for name in row.dev.values())
            raise UserError(f"{path}: several parts ({', '.join(map(str, parts))}); name the gold file one of {known}")
        records = [(number, record) for number, record in records if record.get("part") == part]
    return [
        (f"row {number}", str(record["id"]) if "id" in record else None, record["prediction"])
        for number, record in records
    ]


def _table(path: Path, lines: list[str]) -> list[tuple[str, str, str]]:
    header = lines[0].lower().split("\t")
    column = header.index("prediction")
    if column == 0:
        raise UserError(f"{path}: row 1: no column before 'prediction'; expected the row's index or id")
    found = []
    for number, line in enumerate(lines[1:], 2):
        fields = line.split("\t")
        if len(fields) != len(header):
            raise UserError(f"{path}: row {number}: {len(fields)} columns where {len(header)} were expected")
        found.append((f"row {number}", fields[0], fields[column]))
    return found


def _matched(
    path: Path, gold: Part, found: Iterable[tuple[str, str | None, Any]], may_lack: bool
) -> list[_Item | None]:
    """Predictions in the gold's order: by id, by the row's number from 0 where those are no ids, or as they come."""
    found = list(found)
    ids = [example.id for example in gold.examples]
    if all(key is None for _, key, _ in found):
        if len(found) != len(ids):
            raise UserError(
                f"{path}: {len(found)} predictions where {gold.path} has {len(ids)} rows; expected one each"
            )
        return [(where, value) for where, _, value in found]
    by_key: dict[str | None, _Item] = {}
    for where, key, value in found:
        if key in by_key:
            raise UserError(f"{path}: {where}: '{key}' is predicted twice; expected each row of {gold.path} once")
        by_key[key] = (where, value)
    if not by_key.keys() <= set(ids) and by_key.keys() == {str(number) for number in range(len(ids))}:
        ids = [str(number) for number in range(len(ids))]
    known = set(ids)
    superfluous = [key for key in by_key if key not in known]
    if superfluous:
        raise UserError(
            f"{path}: {by_key[superfluous[0]][0]}: no row '{superfluous[0]}' in {gold.path}"
            f"{f' ({len(superfluous)} such)' if len(superfluous) > 1 else ''}; are both of the same part?"
        )
    missing = [one for one in ids if one not in by_key]
    if missing and not may_lack:
        raise UserError(
            f"{path}: no prediction for {len(missing)} of the {len(ids)} rows of {gold.path}, first '{missing[0]}'; "
            "expected one each"
        )
    return [by_key.get(one) for one in ids]


def _columns(path: Path, gold: Part, lines: list[str]) -> list[_Item | None]:
    """CoNLL's columns, checked word by word."""
    sentences: list[tuple[int, list[str]]] = []
    words: list[str] = []
    inside = False
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields or fields[0] == _DOCUMENT_START:
            inside = False
            continue
        if len(fields) < 2:
            raise UserError(f"{path}: row {number}: 1 column where a word and its tag were expected")
        if not inside:
            sentences.append((number, []))
            inside = True
        sentences[-1][1].append(fields[-1])
        words.append(fields[0])
    expected = [word for example in gold.examples for word in example.words]
    if words != expected or len(sentences) != len(gold.examples):
        place = next((n for n, pair in enumerate(zip(words, expected)) if pair[0] != pair[1]), None)
        what = f"{len(words)} words in {len(sentences)} sentences"
        if place is not None:
            what = f"word {place + 1} is {words[place]!r}, {expected[place]!r} in the gold file"
        raise UserError(
            f"{path}: {what}; expected the {len(expected)} words and {len(gold.examples)} sentences of {gold.path}"
        )
    return [(f"row {number}", tags) for number, tags in sentences]


def _all_tags(row: Benchmark, lines: list[str]) -> bool:
    """Whether the first line is a sentence's tags rather than a word and its columns."""
    return bool(lines) and all(field in row.labels for field in lines[0].split())


def _label(row: Benchmark, where: str, value: Any, _example: Any) -> int:
    label = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if label not in row.labels:
        raise UserError(f"{where}: unknown label {value!r}; expected one of {', '.join(row.labels)}")
    return row.labels.index(label)


def _score(_row: Benchmark, where: str, value: Any, _example: Any) -> float:
    return _number(where, value)


def _number(where: str, value: Any) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: expected a number, got {value!r}")
    return number


def _text(_row: Benchmark, where: str, value: Any, _example: Any) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: expected a text, got {value!r}")
    return value


def _tags(row: Benchmark, where: str, value: Any, example: TagExample) -> tuple[str, ...]:
    tags = value.split() if isinstance(value, str) else value
    if not isinstance(tags, list) or len(tags) != len(example.words):
        found = f"{len(tags)} tags" if isinstance(tags, list) else repr(value)
        raise UserError(f"{where}: {found} where {len(example.words)} tags were expected, one per word")
    for tag in tags:
        if tag not in row.labels:
            raise UserError(f"{where}: unknown tag {tag!r}; expected one of {', '.join(row.labels)}")
    return tuple(tags)


_READERS: dict[str, Callable[[Benchmark, str, Any, Any], Any]] = {
    "regression": _score,
    "span": _text,
    "tags": _tags,
}
