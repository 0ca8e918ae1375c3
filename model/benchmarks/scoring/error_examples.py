"""Error examples: the dev rows that a run got wrong, with their texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.head_specs.base import Record, WrongRow
from model.benchmarks.table import Benchmark

NUM_EXAMPLES = 20


def error_examples(row: Benchmark, examples: Sequence[Any], records: Sequence[Record]) -> dict[str, Any]:
    """Build the content of errors.json from the predictions `records` of `examples`, in the same order.

    `rows` holds at most NUM_EXAMPLES wrong rows, each with its id, its texts as [name, text], the prediction, the
    label, and the `value` that ranks it. `ranked_by` names this value: the confidence in the wrong answer if the head
    reports one, otherwise the distance from the right answer. `num_wrong` counts all wrong rows (None for regression).
    Rows of equal value keep their order, so equal predictions give equal examples.
    """
    spec = HEAD_SPECS[row.head]
    wrong: list[WrongRow] = []
    for example, record in zip(examples, records, strict=True):
        found = spec.wrong_row(row, example, record) if record.get("label") is not None else None
        if found is not None:
            part = {"part": str(record["part"])} if record.get("part") else {}
            wrong.append((found[0], {"id": str(record["id"]), **part, "value": round(found[0], 4), **found[1]}))
    wrong.sort(key=lambda pair: -pair[0])
    return {
        "ranked_by": spec.ranked_by,
        "num_rows": len(records),
        "num_wrong": len(wrong) if spec.counts_wrong_rows else None,
        "rows": [shown for _, shown in wrong[:NUM_EXAMPLES]],
    }
