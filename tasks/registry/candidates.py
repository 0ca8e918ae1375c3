"""What the gate judges, from a leaderboard's record or from a registered version, which keeps it in evaluation/.

A version brings its scores and its dev predictions along, so that a champion can be compared with on any machine.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pydantic

from model.benchmarks.table import Benchmark
from model.common.errors import UserError
from model.common.files import write_bytes, write_json
from tasks.leaderboard import history
from tasks.leaderboard.inputs import Inputs
from tasks.leaderboard.schema import CellRecord, RunRecord
from tasks.registry.gate import Candidate
from tasks.stats.selection import FileRecord

FOLDER = "evaluation"
_SCORES = "scores.json"


class _Scores(FileRecord):
    """evaluation/scores.json."""

    name: str
    digest: str
    headline: dict[str, str]
    cells: dict[str, CellRecord]
    own: dict[str, Benchmark] = {}
    card_faults: tuple[str, ...] = pydantic.Field(default=())


def of_record(record: RunRecord, encoder: str, home: Path, finetune_dir: Path, card_faults: list[str]) -> Candidate:
    """A system of a leaderboard.

    Args:
        home: the history's folder, where predictions were kept.
        finetune_dir: build/finetune, where they lie if the history has none.

    Raises:
        UserError: the leaderboard has no system of that name.
    """
    system = record.system(encoder)
    if system is None:
        there = ", ".join(one.name for one in record.systems)
        raise UserError(f"leaderboard {record.digest}: no scores of an encoder '{encoder}'; there are {there}")
    inputs = Inputs(finetune_dir)
    predictions = {
        task: history.read_predictions(home, system, task) or inputs.predictions_of(system, task)
        for task in system.cells
    }
    return Candidate(
        name=encoder,
        digest=system.digest,
        cells=system.cells,
        headline={task: metric for task, metric in record.headline.items() if task in system.cells},
        predictions={task: found for task, found in predictions.items() if found},
        rows=record.custom,
        card_faults=tuple(card_faults),
    )


def write(candidate: Candidate, folder: Path) -> None:
    """Keep a candidate in `folder`/evaluation; equal ones give equal bytes."""
    content: dict[str, Any] = {
        "name": candidate.name,
        "digest": candidate.digest,
        "headline": dict(candidate.headline),
        "cells": {task: cell.model_dump(mode="json") for task, cell in candidate.cells.items()},
        "own": {task: row.model_dump(mode="json") for task, row in candidate.rows.items()},
        "card_faults": list(candidate.card_faults),
    }
    write_json(folder / FOLDER / _SCORES, content)
    for place, (task, runs) in enumerate(sorted(candidate.predictions.items())):
        rows = [[{key: row[key] for key in history.KEPT if key in row} for row in run] for run in runs]
        kept = json.dumps({"task": task, "runs": rows}, ensure_ascii=False, sort_keys=True)
        write_bytes(folder / FOLDER / f"predictions-{place:03}.json.gz", gzip.compress(kept.encode(), mtime=0))


def read(folder: Path) -> Candidate:
    """The candidate that `write` kept.

    Raises:
        UserError: it is not there, or damaged.
    """
    path = folder / FOLDER / _SCORES
    if not path.is_file():
        raise UserError(f"{path}: missing; this version was not registered by Cloze")
    predictions = {}
    try:
        scores = _Scores.parse(json.loads(path.read_text(encoding="utf-8")), str(path))
        for path in sorted((folder / FOLDER).glob("predictions-*.json.gz")):
            content = json.loads(gzip.decompress(path.read_bytes()))
            predictions[content["task"]] = content["runs"]
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{path}: damaged ({error}); register the encoder again") from None
    return Candidate(
        name=scores.name,
        digest=scores.digest,
        cells=scores.cells,
        headline=scores.headline,
        predictions=predictions,
        rows=scores.own,
        card_faults=scores.card_faults,
    )
