"""Scores of a file of predictions against a gold file, for every benchmark.

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

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.head_specs.base import NoAnswer, PredictionItem, as_number
from model.benchmarks.readers.examples import Split
from model.benchmarks.readers.rows import read_text
from model.benchmarks.splits import read_dev
from model.benchmarks.table import Benchmark, find
from model.common.errors import UserError


def score_files(
    row: Benchmark,
    gold_path: Path,
    predictions_path: Path,
    na_probs_path: Path | None = None,
    na_threshold: float | None = None,
) -> dict[str, Any]:
    """Read both files and score: `task`, `num_rows`, `num_missing` and `scores` (0 to 100, as a job reports them).

    SQuAD adds `official`, the output of its script; v2.0 with the odds that there is no answer adds `best`, the result
    of our threshold search. NER adds `strict`, the scores of seqeval's strict IOB2.

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
    """One labeled file in the benchmark's own format, or in the hub's Parquet format.

    Raises:
        UserError: the file is missing or malformed, or it has no labels.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected a gold file of {row.name}")
    own: dict[str, Any] = {"dev": {"": str(path)}, "dev_share": None, "forms": ()}
    if path.suffix == ".parquet":
        for form in row.forms:
            if form.dev:  # the first one names the columns
                own |= {"dev": {"": ""}, "forms": (form.model_copy(update=own),)}
                break
    return read_dev(row.model_copy(update=own), Path())[""]


def read_predictions(row: Benchmark, path: Path, gold: Split) -> list[Any]:
    """The prediction for each row of `gold`: a label's number, a score, a text, or a tuple of tags.

    A prediction is None if the head may omit predictions and the file has ids but not that of the row.

    Raises:
        UserError: a row is missing, superfluous or predicted twice, or a prediction is not possible in the benchmark;
            the message names file and row.
    """
    spec = HEAD_SPECS[row.head]
    may_omit = spec.may_omit_predictions(row)
    lines = _lines(path)
    items: list[PredictionItem | None]
    if path.suffix == ".jsonl":
        items = _matched(path, gold, _json_lines(row, path, gold, lines), may_omit)
    elif path.suffix == ".json":
        items = _matched(path, gold, ((f"'{key}'", key, value) for key, value in _mapping(path).items()), may_omit)
    elif lines and "prediction" in lines[0].lower().split("\t"):
        items = _matched(path, gold, _table(path, lines), may_omit)
    elif (found := spec.predictions_in_lines(row, path, gold.examples, gold.path, lines)) is not None:
        items = list(found)
    else:
        items = _matched(path, gold, ((f"row {n}", None, line) for n, line in enumerate(lines, 1)), may_omit)
    return [
        None if item is None else spec.parse_prediction(row, f"{path}: {item[0]}", item[1], example)
        for item, example in zip(items, gold.examples)
    ]


def read_numbers(path: Path, gold: Split) -> dict[str, float]:
    """A number for each row of `gold` by its id, in file order (null_odds.json or na_prob.json of SQuAD v2.0).

    Raises:
        UserError: as `read_predictions`.
    """
    numbers = {key: as_number(f"{path}: '{key}'", value) for key, value in _mapping(path).items()}
    _matched(path, gold, ((f"'{key}'", key, value) for key, value in numbers.items()), may_omit=False)
    return numbers


def _mapping(path: Path) -> dict[str, Any]:
    try:
        document = json.loads("\n".join(_lines(path)))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}: row {error.lineno}: not JSON ({error.msg}); expected an object from id to prediction"
        ) from None
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected an object from id to prediction, found {type(document).__name__}")
    return document


def _lines(path: Path) -> list[str]:
    """The lines of a text file; only line feeds end them, since answers contain other separators."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected predictions")
    lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    if lines[-1] == "":
        lines.pop()
    return lines


def _json_lines(row: Benchmark, path: Path, gold: Split, lines: list[str]) -> list[tuple[str, str | None, Any]]:
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
    path: Path, gold: Split, found: Iterable[tuple[str, str | None, Any]], may_omit: bool
) -> list[PredictionItem | None]:
    """Predictions in the gold order: matched by id, by row number counted from 0 if they are no ids, or in order."""
    found = list(found)
    ids = [example.id for example in gold.examples]
    if all(key is None for _, key, _ in found):
        if len(found) != len(ids):
            raise UserError(
                f"{path}: {len(found)} predictions where {gold.path} has {len(ids)} rows; expected one each"
            )
        return [(where, value) for where, _, value in found]
    by_key: dict[str | None, PredictionItem] = {}
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
    if missing and not may_omit:
        raise UserError(
            f"{path}: no prediction for {len(missing)} of the {len(ids)} rows of {gold.path}, first '{missing[0]}'; "
            "expected one each"
        )
    return [by_key.get(one) for one in ids]
