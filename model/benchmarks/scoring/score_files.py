"""Scores a file of predictions against a gold file, for every benchmark.

Predictions may be in any of these formats:

- `.jsonl`: one object per line with "prediction" and "id" (as in predictions.jsonl; without ids, in the gold order);
- `.json`: one object that maps ids to predictions (SQuAD's predictions.json);
- a tab-separated table with the column "prediction" (GLUE's submissions: index, prediction); the first column holds
  the row's id or its number counted from 0, and other columns are ignored;
- a text format of the benchmark's head, such as CoNLL's columns for tags: one word per line, its tag in the last
  column, and empty lines between sentences;
- otherwise one prediction per line, in the gold order (for tags: the tags of a sentence, separated by spaces).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.head_specs.base import NoAnswer, as_number
from model.benchmarks.readers.examples import Split
from model.benchmarks.readers.rows import parse_json, text_lines
from model.benchmarks.splits import read_dev
from model.benchmarks.table import Benchmark, find
from model.common.errors import UserError, shown
from model.common.files import open_file

_Keyed = tuple[str, str | None, Any]
"""The location of a prediction in its file, the id of its row if the file has ids, and the prediction."""


def score_files(
    row: Benchmark,
    gold_path: Path,
    predictions_path: Path,
    na_probs_path: Path | None = None,
    na_threshold: float | None = None,
) -> dict[str, Any]:
    """Read both files and score: `task`, `num_rows`, `num_missing` and `scores` (0 to 100, as a job reports them).

    SQuAD adds `official`, the output of its script; v2.0 with no-answer odds adds `best`, the result of our
    threshold search. NER adds `strict`, the scores of seqeval's strict IOB2.

    Raises:
        UserError: a file is missing or malformed, or the predictions do not fit the gold file.
    """
    if not row.unanswerable and (na_probs_path is not None or na_threshold is not None):
        raise UserError(
            f"--na-prob and --na-threshold apply only to benchmarks with unanswerable questions, not to {row.name}"
        )
    gold = read_gold(row, gold_path)
    predictions = read_predictions(row, predictions_path, gold)
    no_answer = NoAnswer(None if na_probs_path is None else read_numbers(na_probs_path, gold), na_threshold)
    return {
        "task": row.name,
        "num_rows": len(predictions),
        "num_missing": sum(prediction is None for prediction in predictions),
        **HEAD_SPECS[row.head].score(row, gold.examples, predictions, no_answer),
    }


def diagnostic_row() -> Benchmark:
    """GLUE's diagnostic set (AX), diagnostic-full.tsv: MNLI's labels, scored by Matthews correlation."""
    columns = {"first": "Premise", "second": "Hypothesis", "label": "Label", "identity": None}
    names = {"name": "ax", "title": "AX", "metrics": ("matthews", "accuracy")}
    return find("mnli").model_copy(update={**columns, **names, "forms": ()})


def read_gold(row: Benchmark, path: Path) -> Split:
    """Read a labeled file in the benchmark's format or in the hub's Parquet format.

    Raises:
        UserError: the file is missing or malformed, or it has no labels.
    """
    open_file(path, f"; expected a gold file of {row.name}").close()
    own: dict[str, Any] = {"dev": {"": str(path)}, "dev_share": None, "forms": ()}
    forms = [form for form in row.forms if form.dev]
    if path.suffix == ".parquet" and forms:  # the first one names the columns
        own |= {"dev": {"": ""}, "forms": (forms[0].model_copy(update=own),)}
    return read_dev(row.model_copy(update=own), Path())[""]


def read_predictions(row: Benchmark, path: Path, gold: Split) -> list[Any]:
    """Return the prediction for each row of `gold`: a label number, a score, a text, or a tuple of tags.

    A prediction is None if the head allows missing predictions and the file does not contain the row's id.

    Raises:
        UserError: a row is missing, unknown or predicted twice, or a prediction is invalid for the benchmark;
            the message names the file and line.
    """
    spec = HEAD_SPECS[row.head]
    lines = _lines(path)
    found: Sequence[_Keyed]
    if path.suffix == ".jsonl":
        found = _json_lines(row, path, gold, lines)
    elif path.suffix == ".json":
        found = _json_object(path, lines)
    elif lines and "prediction" in lines[0].lower().split("\t"):
        found = _table(path, lines)
    else:
        items = spec.predictions_in_lines(row, path, gold, lines)
        if items is None:
            items = [(f"line {number}", line) for number, line in enumerate(lines, 1)]
        found = [(where, None, value) for where, value in items]
    return [
        None if item is None else spec.parse_prediction(row, f"{path}: {item[0]}", item[1], example)
        for item, example in zip(_matched(path, gold, found, spec.may_omit_predictions(row)), gold.examples)
    ]


def read_numbers(path: Path, gold: Split) -> dict[str, float]:
    """Read a number for each row of `gold` by id, in file order (null_odds.json or na_prob.json of SQuAD v2.0)."""
    found = [
        (where, key, as_number(f"{path}: {where}", value)) for where, key, value in _json_object(path, _lines(path))
    ]
    _matched(path, gold, found, may_omit=False)
    return {key: number for _, key, number in found}


def _lines(path: Path) -> list[str]:
    open_file(path, "; expected predictions").close()
    return text_lines(path)


def _json_object(path: Path, lines: list[str]) -> list[tuple[str, str, Any]]:
    document = parse_json(path, "\n".join(lines), "expected an object from id to prediction")
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected an object from id to prediction, found {type(document).__name__}")
    return [(shown(key), key, value) for key, value in document.items()]


def _json_lines(row: Benchmark, path: Path, gold: Split, lines: list[str]) -> list[_Keyed]:
    records = []
    for number, line in enumerate(lines, 1):
        record = parse_json(path, line, "expected an object per line", number)
        if not isinstance(record, dict) or "prediction" not in record:
            raise UserError(f"{path}: line {number}: expected an object with 'prediction'")
        for key in ("id", "part"):
            if not isinstance(record.get(key, ""), str | int):
                raise UserError(f"{path}: line {number}: '{key}': expected a text or a number")
        records.append((number, record))
    parts = {record.get("part") for _, record in records}
    if len(parts) > 1:
        part = {Path(name).name: suffix for suffix, name in row.dev.items()}.get(gold.path.name)
        if part not in parts:
            known = ", ".join(Path(name).name for name in row.dev.values())
            raise UserError(f"{path}: several parts ({', '.join(map(str, parts))}); name the gold file one of {known}")
        records = [(number, record) for number, record in records if record.get("part") == part]
    return [
        (f"line {number}", str(record["id"]) if "id" in record else None, record["prediction"])
        for number, record in records
    ]


def _table(path: Path, lines: list[str]) -> list[tuple[str, str, str]]:
    header = lines[0].lower().split("\t")
    column = header.index("prediction")
    if column == 0:
        raise UserError(f"{path}: line 1: no column before 'prediction'; expected the row's index or id")
    found = []
    for number, line in enumerate(lines[1:], 2):
        fields = line.split("\t")
        if len(fields) != len(header):
            raise UserError(f"{path}: line {number}: {len(fields)} columns where {len(header)} were expected")
        found.append((f"line {number}", fields[0], fields[column]))
    return found


def _matched(path: Path, gold: Split, found: Sequence[_Keyed], may_omit: bool) -> list[tuple[str, Any] | None]:
    """Sort predictions into the gold order: by id, by row number from 0 if they are not ids, or as they are."""
    ids = [example.id for example in gold.examples]
    if all(key is None for _, key, _ in found):
        if len(found) != len(ids):
            raise UserError(
                f"{path}: {len(found)} predictions where {gold.path} has {len(ids)} rows; expected one per row"
            )
        return [(where, value) for where, _, value in found]
    by_key: dict[str | None, tuple[str, Any]] = {}
    for where, key, value in found:
        if key in by_key:
            raise UserError(f"{path}: {where}: {shown(key)} is predicted twice; expected each row of {gold.path} once")
        by_key[key] = (where, value)
    numbers = [str(number) for number in range(len(ids))]
    if not by_key.keys() <= set(ids) and by_key.keys() == set(numbers):
        ids = numbers
    known = set(ids)
    superfluous = [key for key in by_key if key not in known]
    if superfluous:
        more = f" ({len(superfluous)} such)" if len(superfluous) > 1 else ""
        first = superfluous[0]
        raise UserError(
            f"{path}: {by_key[first][0]}: no row {shown(first)} in {gold.path}{more}; is it the same split?"
        )
    missing = [one for one in ids if one not in by_key]
    if missing and not may_omit:
        raise UserError(
            f"{path}: no prediction for {len(missing)} of the {len(ids)} rows of {gold.path}, first "
            f"{shown(missing[0])}; expected one per row"
        )
    return [by_key.get(one) for one in ids]
