"""The history: a record of every finished leaderboard of a project, those of its workspaces among them.

A record is <home>/.cloze/leaderboard/<digest>/: record.json, and the run's own page. It is named by the jobs
that it ranks, so that a run that is repeated is recorded once. What the rows of two runs are compared by lies
in predictions/, a file per system and benchmark.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from model.benchmarks.table import Benchmark
from model.common.errors import UserError
from model.common.files import digest_of, write_bytes, write_json
from tasks.leaderboard.inputs import Inputs, Kind
from tasks.project.workspace import timestamp
from tasks.stats.selection import FileRecord

FORMAT = 1
PAGE = "leaderboard.html"
KEPT = ("id", "part", "prediction", "label")  # of a prediction: what scores are made of


class ScoreRecord(FileRecord):
    """One metric of one cell."""

    mean: pydantic.FiniteFloat
    std: pydantic.FiniteFloat | None
    median: pydantic.FiniteFloat
    best: pydantic.FiniteFloat
    num_runs: int


class CellRecord(FileRecord):
    """One system on one benchmark, as leaderboard.json tells it."""

    recipe: dict[str, Any]
    num_recipes: int
    seeds: list[int]
    values: list[pydantic.FiniteFloat]
    runs: list[str]
    jobs: list[str]
    num_degenerate: int
    all_degenerate: bool
    best_run: str
    num_train_rows: int
    num_dev_rows: int
    num_all_train_rows: int | None
    num_all_dev_rows: int | None
    num_skipped_rows: int
    dev_digest: str
    num_pruned: int = 0
    after: list[str] = []
    ensemble: dict[str, pydantic.FiniteFloat] | None = None


class SystemRecord(FileRecord):
    """One measured system, as leaderboard.json tells it."""

    name: str
    kind: Kind
    split: str
    digest: str
    average: pydantic.FiniteFloat | None
    glue_average: pydantic.FiniteFloat | None
    scores: dict[str, dict[str, ScoreRecord]]
    cells: dict[str, CellRecord]

    @pydantic.model_validator(mode="after")
    def _whole(self) -> SystemRecord:
        if set(self.scores) != set(self.cells):
            raise ValueError(f"system '{self.name}': scores and cells are of other benchmarks")
        return self


class RunRecord(FileRecord):
    """record.json: the measured systems of one leaderboard, and who made it, when and from what."""

    format: int
    digest: str = pydantic.Field(pattern="^[0-9a-f]{16}$")
    """Names the jobs that are ranked; the record's folder."""
    written: str
    """When, as 2026-11-21T16:33:19+0000."""
    git_commit: str = ""
    data: str = ""
    """The digest that data.dvc pins."""
    params_digest: str = ""
    """Of the whole parameter file."""
    pipeline: str = ""
    """The pipeline's run in MLflow (tag `cloze.run`)."""
    workspace: str = ""
    """The folder, relative to the project's home; empty for the project itself."""
    host: str = ""
    versions: dict[str, int] = {}
    """tasks/versions.py."""
    tasks: list[str]
    own: dict[str, Benchmark] = {}
    """The rows of own tasks."""
    titles: dict[str, str]
    headline: dict[str, str]
    systems: list[SystemRecord] = pydantic.Field(min_length=1)
    majority: dict[str, Any] = {}
    cost: dict[str, dict[str, Any]] = {}
    """system → what its jobs took (tasks.leaderboard.run_costs)."""
    notes: list[str] = []


def record_of(board: Mapping[str, Any], cost: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run's board; `facts` are the fields of RunRecord that the board cannot know."""
    systems = [system for system in board["systems"] if system["kind"] != "quoted"]
    return {
        "format": FORMAT,
        "digest": digest_of(sorted((system["name"], system["digest"]) for system in systems)),
        "written": timestamp(),
        **{key: board[key] for key in ("tasks", "own", "titles", "headline", "notes")},
        "systems": systems,
        "majority": board["baselines"]["majority"],
        "cost": dict(cost),
        **facts,
    }


def leave(home: Path, record: Mapping[str, Any], page: Path, inputs: Inputs) -> Path:
    """Keep a record with its page and its runs' predictions below `home`; returns record.json, written last."""
    folder = home / record["digest"]
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / PAGE, page.read_bytes())
    for system in record["systems"]:
        for task, cell in system["cells"].items():
            path = _predictions_path(home, system, task)
            runs = [inputs.predictions(system["name"], task, digest) for digest in cell["runs"]]
            if not path.exists() and all(run is not None for run in runs):
                kept = [[{key: row[key] for key in KEPT if key in row} for row in run or []] for run in runs]
                write_bytes(path, gzip.compress(json.dumps(kept, ensure_ascii=False).encode(), mtime=0))
    write_json(folder / "record.json", dict(record))
    return folder / "record.json"


def read_records(home: Path) -> list[RunRecord]:
    """All records below `home`, the latest first.

    Raises:
        UserError: a record is damaged or of a later version of Cloze; the line says what to do.
    """
    records = [read_record(path) for path in sorted(home.glob("*/record.json"))]
    return sorted(records, key=lambda record: (record.written, record.digest), reverse=True)


def read_record(path: Path) -> RunRecord:
    """One record."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); remove its folder to leave that run out") from None
    if isinstance(content, dict) and content.get("format", FORMAT) > FORMAT:
        raise UserError(f"{path}: format {content['format']}, this version reads {FORMAT}; use the later version")
    return RunRecord.parse(content, str(path))


def read_predictions(home: Path, system: Mapping[str, Any], task: str) -> list[list[dict[str, Any]]] | None:
    """The predictions of the chosen recipe's runs, a list per seed; None where they were not kept."""
    path = _predictions_path(home, system, task)
    if not path.is_file():
        return None
    try:
        found: list[list[dict[str, Any]]] = json.loads(gzip.decompress(path.read_bytes()))
        return found
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path}: damaged ({error}); remove it, its rows are then not compared") from None


def forget(home: Path, digests: Sequence[str]) -> None:
    """Remove the records of `digests`; predictions that no other record asks for go with them."""
    for digest in digests:
        shutil.rmtree(home / digest, ignore_errors=True)
    asked = {
        _predictions_path(home, system.model_dump(), task)
        for record in read_records(home)
        for system in record.systems
        for task in system.cells
    }
    for path in (home / "predictions").glob("*"):
        if path not in asked:
            path.unlink()


def workspace_name(root: Path, home: Path) -> str:
    """A run's folder as the history names it: relative to the home, empty for the home itself."""
    return "" if root == home else os.path.relpath(root, home)


def _predictions_path(home: Path, system: Mapping[str, Any], task: str) -> Path:
    name = digest_of([system["cells"][task]["runs"], task])
    return home / "predictions" / f"{name}.json.gz"
