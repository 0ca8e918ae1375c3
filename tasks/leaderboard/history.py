"""The history: a record of every finished leaderboard of a project and its workspaces, and the leaderboard over them.

A record is the directory <home>/.cloze/leaderboard/<digest>/ with record.json and the page of the run. Its
digest is that of the ranked jobs, so a repeated run is recorded only once. predictions/ has a file per system and
benchmark, for tests over dev rows. Records from other machines are imported from MLflow.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import socket
import tempfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError, missing_package
from model.common.files import digest_of, write_bytes
from model.common.redaction import redacted
from model.common.run_dir import RunDir
from model.common.state_files import read_state, set_aside, write_state
from tasks.dvc.integrity import pinned_data
from tasks.leaderboard import schema
from tasks.leaderboard.comparisons import compare_all, reference_of, shared_averages
from tasks.leaderboard.inputs import Inputs
from tasks.leaderboard.paper_scores import glue_columns, quoted_systems
from tasks.leaderboard.schema import average, means_of
from tasks.leaderboard.settings import recorded_params, settings_of
from tasks.params.root import load_params
from tasks.project.project import Project
from tasks.project.stage_versions import code_version
from tasks.project.workspace import git_commit, timestamp
from tasks.project.yaml_files import read_yaml
from tasks.tracking.tracking import EXPERIMENT, STAGES, current_run, pipeline_key

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

PAGE = "leaderboard.html"
_RECORD = "record.json"
KEPT = ("id", "part", "prediction", "label")  # keys of a prediction that are needed to compute scores
_ARTIFACT = "leaderboard/record.json"
_TOTALS = dict.fromkeys(("seconds", "cpu_seconds", "energy_joules"), sum)
_PEAKS = dict.fromkeys(("peak_memory_bytes", "peak_device_memory_bytes"), max)


def record_digest(board: schema.Leaderboard) -> str:
    """Digest of the jobs that a leaderboard ranks; name of its record."""
    return digest_of(sorted((system.name, system.digest) for system in board.measured))


def record_of(
    board: schema.Leaderboard, cost: Mapping[str, schema.SystemCost], facts: Mapping[str, Any]
) -> schema.RunRecord:
    """Create the record of a leaderboard; `facts` are the additional fields of the record."""
    content = {name: getattr(board, name) for name in ("tasks", "custom", "titles", "headline", "notes")} | {
        "digest": record_digest(board),
        "written": timestamp(),
        "systems": board.measured,
        "majority": board.baselines["majority"],
        "cost": dict(cost),
        "paper_scores": bool(board.quoted),
        **facts,
    }
    return schema.RunRecord.parse(content, "leaderboard.json")


def costs(runs_dir: Path, systems: Sequence[schema.RunSystem]) -> dict[str, schema.SystemCost]:
    """Sum up the cost of each system's jobs, from their run directories in `runs_dir` (build/runs).

    Stage outputs do not contain costs, because equal inputs must give equal bytes; the history and MLflow do.
    """
    folders = {path.name.rpartition("-")[2]: path for path in runs_dir.glob("finetune/*") if path.is_dir()}
    return {
        system.name: schema.SystemCost(
            total=_cost([digest for cell in system.cells.values() for digest in cell.jobs], folders),
            tasks={task: _cost(cell.jobs, folders) for task, cell in system.cells.items()},
            pretraining=_pretraining_cost(runs_dir, system),
        )
        for system in systems
    }


def _pretraining_cost(runs_dir: Path, system: schema.RunSystem) -> schema.Cost:
    folders = {digest: runs_dir / "pretrain" / f"{name}-{digest}" for name, digest in system.pretrain_jobs.items()}
    return _cost(list(folders), folders) if folders else {}


def _cost(digests: Sequence[str], folders: Mapping[str, Path]) -> schema.Cost:
    files = [RunDir(folders[digest]).timing for digest in digests if digest in folders]
    timings = [timing for file in files if (timing := read_state(file))]
    cost: schema.Cost = {"num_jobs": len(digests), "num_timed": len(timings)}
    for name, gather in (_TOTALS | _PEAKS).items():
        values = [timing[name] for timing in timings if timing.get(name) is not None]
        if values and len(values) == len(timings):
            cost[name] = round(gather(values), 3)
    return cost


def keep(home: Path, record: schema.RunRecord, page: str, inputs: Inputs) -> Path:
    """Keep a record with its page and its runs' predictions in `home`; returns record.json, written last."""
    folder = home / record.digest
    before = read_record(folder / _RECORD)
    if before is not None:
        record = _repeated(record, with_repeats(before))
    write_bytes(folder / PAGE, page.encode())
    for system in record.systems:
        for task in system.cells:
            path = _predictions_path(home, system, task)
            runs = None if path.exists() else inputs.predictions_of(system, task)
            if runs is not None:
                kept = [[{key: row[key] for key in KEPT if key in row} for row in run] for run in runs]
                write_bytes(path, gzip.compress(json.dumps(kept, ensure_ascii=False).encode(), mtime=0))
    write_state(folder / _RECORD, record.content())
    return folder / _RECORD


def note_repeat(project: Project, board: schema.Leaderboard) -> str:
    """Note in the record of `board` that the run with the project's present parameters has the same results.

    Returns:
        The title of the run that has the record, or "" if nothing is recorded.
    """
    path = project.leaderboards / record_digest(board) / _RECORD
    record = read_record(path)
    if record is None:
        return ""
    key = pipeline_key(project)
    if key not in {one.pipeline for one in with_repeats(record)}:
        present = schema.ParameterizedRun.parse(present_run(project), "params.yaml")
        write_state(path, _repeated(record, [*record.repeats, present]).content())
    return record.title


def _repeated(record: schema.RunRecord, others: Sequence[schema.ParameterizedRun]) -> schema.RunRecord:
    """Add the runs to a record that have the same results; a run without a key cannot be told from the record's."""
    known = {one.pipeline: one for one in others if one.pipeline not in ("", record.pipeline)}
    names = schema.ParameterizedRun.model_fields
    repeats = [schema.ParameterizedRun(**{name: getattr(one, name) for name in names}) for one in known.values()]
    return record.model_copy(update={"repeats": repeats})


def present_run(project: Project) -> dict[str, Any]:
    """Return the provenance and the parameters of the run with the project's present parameters, data and code."""
    key, name = current_run(project)
    stages = {stage: read_state(project.runs / "stages" / f"{stage}.json") for stage in STAGES[:-1]}
    return {
        "name": name,
        "written": timestamp(),
        "git_commit": git_commit(project),
        "data": pinned_data(project),
        "params_digest": digest_of(read_yaml(project.params_path)),
        "pipeline": key,
        "workspace": "" if project.root == project.home else os.path.relpath(project.root, project.home),
        "host": socket.gethostname(),
        "versions": {stage: code_version(project, stage) for stage in STAGES},
        "stage_seconds": {stage: record["seconds"] for stage, record in stages.items() if "seconds" in record},
        "params": recorded_params(load_params(project.params_path)),
    }


def load_board(project_dir: str | Path = ".") -> schema.CombinedBoard:
    """Load the board over all runs of a project, as `cloze board` shows it.

    Raises:
        UserError: `project_dir` is not in a project, the project has no finished run, or cloze[pipeline] is missing.
    """
    project = Project.find(Path(project_dir))
    records = read_records(project.leaderboards)
    if not records:
        raise UserError(f"{project.root}: no finished run yet; run `cloze run`")
    try:
        return combined_board(records, project.leaderboards)
    except ModuleNotFoundError as error:
        raise missing_package(error, "load_board") from None


def page_of(home: Path, board: schema.Leaderboard) -> Path | None:
    """Find the page of a leaderboard's record, which also shows when and how it was made."""
    path = home / record_digest(board) / PAGE
    return path if path.is_file() else None


def read_records(home: Path) -> list[schema.RunRecord]:
    """Read all records in `home`, latest first, by `read_record`."""
    records = [read_record(path) for path in sorted(home.glob(f"*/{_RECORD}"))]
    return sorted(filter(None, records), key=lambda record: (record.written, record.digest), reverse=True)


def find_record(records: Sequence[schema.RunRecord], run: str) -> schema.RunRecord:
    """Find the latest record of a run by the run's name, its name and id, or the first characters of its id (or of
    the record's directory). A run with the results of another one has the other's record, with its own provenance.

    Raises:
        UserError: no record fits, or the first characters of the ids of several runs.
    """
    everything = [one for record in records for one in with_repeats(record)]
    records = sorted(everything, key=lambda record: record.written, reverse=True)
    named = [record for record in records if run and run in (record.name, record.title)]
    if named:
        return named[0]
    names = [(record, (record.title, record.digest, record.pipeline)) for record in records if run]
    found = [record for record, texts in names if any(text.startswith(run) for text in texts)]
    ids = list(dict.fromkeys(record.id for record in found))
    if len(ids) > 1:
        raise UserError(f"'{run}' matches {len(ids)} runs: {', '.join(ids)}; pass the id of one, or more characters")
    if found:
        return found[0]
    known = ", ".join(dict.fromkeys(record.title for record in records)) or "none"
    raise UserError(f"no run '{run}' is recorded; available: {known}")


def with_repeats(record: schema.RunRecord) -> list[schema.RunRecord]:
    """Return the record, and a copy for each other run with the same results, with that run's provenance."""
    names = schema.ParameterizedRun.model_fields
    return [record, *(record.model_copy(update={name: getattr(one, name) for name in names}) for one in record.repeats)]


def read_record(path: Path) -> schema.RunRecord | None:
    """Read one record; None if it is missing or damaged.

    Raises:
        UserError: the record was written by a later version of Cloze.
    """
    content = read_state(path)
    if not content:
        return None
    known = schema.RECORD_FORMAT
    if content.get("format", known) > known:
        raise UserError(f"{path}: format {content['format']}, this version of Cloze reads {known}; use a later version")
    return schema.RunRecord.parse(content, str(path))


def read_predictions(home: Path, system: schema.MeasuredSystem, task: str) -> list[list[dict[str, Any]]] | None:
    """Read the predictions of the cell's runs, a list per seed; None if there are none, or if they are damaged."""
    path = _predictions_path(home, system, task)
    if not path.is_file():
        return None
    try:
        return json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, ValueError, zlib.error):
        set_aside(path, "is damaged")
        return None


def forget(home: Path, digests: Sequence[str]) -> None:
    """Remove the records of `digests`, and the predictions that no other record uses."""
    for digest in digests:
        shutil.rmtree(home / digest, ignore_errors=True)
    used = {
        _predictions_path(home, system, task)
        for record in read_records(home)
        for system in record.systems
        for task in system.cells
    }
    for path in (home / "predictions").glob("*"):
        if path not in used:
            path.unlink()


def _predictions_path(home: Path, system: schema.MeasuredSystem, task: str) -> Path:
    return home / "predictions" / f"{digest_of([system.cells[task].runs, task])}.json.gz"


def take_remote_records(tracking_uri: str, home: Path) -> int:
    """Copy the records of other machines from MLflow at `tracking_uri` to `home`; returns the number of new ones.

    Raises:
        UserError: MLflow is not reachable, or a later version wrote a record.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri)
    num_taken = 0
    try:
        experiment = client.get_experiment_by_name(EXPERIMENT)
        token: str | None = None
        while experiment is not None:
            query = "tags.`cloze.kind` = 'pipeline'"
            runs = client.search_runs([experiment.experiment_id], query, page_token=token)
            for run in runs:
                num_taken += _take(client, run.info.run_id, home)
            token = runs.token
            if not token:
                break
    except MlflowException as error:
        line = redacted(str(error)).splitlines()[0][:200]  # redact first: a partial password is not recognized
        raise UserError(f"MLflow at {tracking_uri.split('@')[-1]}: {line}; is the server up?") from None
    return num_taken


def _take(client: MlflowClient, run_id: str, home: Path) -> bool:
    if not any(entry.path == _ARTIFACT for entry in client.list_artifacts(run_id, "leaderboard")):
        return False
    with tempfile.TemporaryDirectory() as folder:
        record = read_record(Path(client.download_artifacts(run_id, _ARTIFACT, folder)))
    if record is None:
        return False
    path = home / record.digest / _RECORD
    if path.exists():
        return False
    write_state(path, record.content())
    return True


def combined_board(records: Sequence[schema.RunRecord], home: Path, reference: str = "") -> schema.CombinedBoard:
    """Combine `records`, latest first, whose predictions are in `home`.

    A system that several runs share is listed once, with all its runs and the benchmarks of all of them. Two systems
    are the same if they have the same jobs on the benchmarks that both have and start from the same encoder (known by
    a common benchmark, or by equal pre-training jobs and equal parameters). Different systems with the same name are
    distinguished by the run that recorded them first. Averages are over all benchmarks of all runs; a system that lacks
    a benchmark has no average.

    Raises:
        UserError: no system is called `reference`.
    """
    titles: dict[str, str] = {}
    headlines: dict[str, str] = {}
    rows = dict(BENCHMARKS)
    found: dict[str, None] = {}
    for record in reversed(records):
        titles |= record.titles
        headlines |= record.headline
        rows |= record.custom
        found |= dict.fromkeys(record.tasks)
    tasks = [*(task for task in BENCHMARKS if task in found), *(task for task in found if task not in BENCHMARKS)]
    headline = {task: headlines[task] for task in tasks}
    systems = _systems(records, headline)
    best = reference_of(systems, headline, reference)
    latest = {record.digest: record for record in records}
    cells = [cell for system in systems for cell in system.cells.values()]
    # Majority scores depend on the dev rows; use those of the reference.
    majority = next((record.majority.scores for record in records if best and record.digest in best.runs), {})
    return schema.CombinedBoard(
        tasks=tasks,
        titles=titles,
        headline=headline,
        systems=[*systems, *(quoted_systems(tasks) if any(record.paper_scores for record in records) else [])],
        baselines={"majority": schema.MajorityBaseline(average=average(majority, headline.items()), scores=majority)},
        reference=best.name if best else None,
        comparisons=compare_all(
            systems, headline, best, lambda system, task: read_predictions(home, system, task), rows
        ),
        gap=None,
        gaps=[],
        missing=[],
        runs={
            "total": sum(len(cell.jobs) for cell in cells),
            "degenerate": sum(cell.num_degenerate for cell in cells),
        },
        notes=list(dict.fromkeys(note for record in records for note in record.notes)),
        records=[_summary(record) for record in records],
        settings=_distinguishing(
            {system.name: settings_of(latest[system.runs[0]], system.encoder) for system in systems}
        ),
    )


Occurrence = tuple[schema.RunRecord, schema.RunSystem]


def same_system(records: Sequence[schema.RunRecord], record: schema.RunRecord, name: str) -> list[Occurrence]:
    """Return where the system `name` of `record` occurs in `records`, as `cloze board` unites them, `record` first."""
    groups = _groups(records)
    digest = record.digest
    group = next((each for each in groups if any(one.digest == digest and its.name == name for one, its in each)), [])
    return sorted(group, key=lambda occurrence: occurrence[0].digest != digest)


def _groups(records: Sequence[schema.RunRecord]) -> list[list[Occurrence]]:
    """Group the systems of all records: one group per system, its occurrences in the order of `records`."""
    groups: list[list[Occurrence]] = []
    for record in records:
        for system in record.systems:
            group = next((group for group in groups if _is_same(group, record, system)), None)
            if group is None:
                groups.append([(record, system)])
            else:
                group.append((record, system))
    return groups


def _systems(records: Sequence[schema.RunRecord], headline: Mapping[str, str]) -> list[schema.CombinedSystem]:
    groups = _groups(records)
    names = [group[0][1].name for group in groups]
    systems = [_united(group, names.count(name) > 1, headline) for group, name in zip(groups, names)]
    averages = shared_averages(systems, headline)
    most = max((len(system.scores) for system in systems), default=0)

    def rank(system: schema.CombinedSystem) -> tuple[bool, float]:
        # An estimate from few benchmarks says little about the others: those systems come last.
        return 2 * len(system.scores) >= most, averages.get(system.name, -math.inf)

    return sorted(systems, key=rank, reverse=True)


def _is_same(group: Sequence[Occurrence], record: schema.RunRecord, system: schema.RunSystem) -> bool:
    known = {task: cell.jobs for _, other in group for task, cell in other.cells.items()}
    shared = [task for task in system.cells if task in known]
    if shared or system.digest in (other.digest for _, other in group):
        return all(system.cells[task].jobs == known[task] for task in shared)
    settings = _finetune_settings(record, system)
    return any(
        bool(settings)
        and other.name == system.name
        and other.pretrain_jobs == system.pretrain_jobs != {}
        and _finetune_settings(earlier, other) == settings
        for earlier, other in group
    )


def _finetune_settings(record: schema.RunRecord, system: schema.RunSystem) -> dict[str, str]:
    """Settings of what the pre-training jobs' digests do not cover. The data of other benchmarks is not among them."""
    settings = settings_of(record, system.name)
    return {key: value for key, value in settings.items() if key.startswith(("finetune.", "versions.finetune"))}


def _united(group: Sequence[Occurrence], is_ambiguous: bool, headline: Mapping[str, str]) -> schema.CombinedSystem:
    """Unite the occurrences of a system, latest first, with the benchmarks of all of them."""
    system = group[0][1]
    cells: dict[str, schema.CellRecord] = {}
    scores: dict[str, dict[str, schema.ScoreSummary]] = {}
    costs: dict[str, schema.Cost] = {}
    pretraining: schema.Cost = {}
    for record, one in group:
        cells, scores = one.cells | cells, one.scores | scores
        spent = record.cost.get(one.name)
        for task, its in spent.tasks.items() if spent else ():
            costs[task] = max(costs.get(task, its), its, key=lambda cost: cost["num_timed"])
        pretraining = pretraining or (spent.pretraining if spent else {})
    runs = [record.digest for record, _ in group]
    means, cost = means_of(scores), None
    if costs:
        cost = schema.SystemCost(total=_total(costs.values()), tasks=costs, pretraining=pretraining)
    content = system.model_dump(exclude={"average_of", "pretrainings", "pretrain_jobs"}) | {
        "name": f"{system.name}@{group[-1][0].id}" if is_ambiguous else system.name,
        "encoder": system.name,
        "runs": runs,
        "cells": {task: cell.model_dump() for task, cell in cells.items()},
        "scores": {task: {metric: score.model_dump() for metric, score in row.items()} for task, row in scores.items()},
        "average": average(means, headline.items()),
        "glue_average": average(means, glue_columns()),
        "cost": cost,
    }
    if cells.keys() != system.cells.keys():
        content["digest"] = digest_of([system.kind, {task: cell.jobs for task, cell in cells.items()}])
    return schema.CombinedSystem.parse(content, f"record {runs[0]}")


def _total(costs: Collection[schema.Cost]) -> schema.Cost:
    total: schema.Cost = {key: sum(cost[key] for cost in costs) for key in ("num_jobs", "num_timed")}
    timed = [cost for cost in costs if cost["num_timed"]]
    for name, gather in (_TOTALS | _PEAKS).items():
        if timed and all(name in cost for cost in timed):
            total[name] = round(gather(cost[name] for cost in timed), 3)
    return total


def _distinguishing(settings: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Reduce the settings of each system to those in which the systems differ."""
    known = [one for one in settings.values() if one]
    keys = [
        key for key in dict.fromkeys(key for one in known for key in one) if len({one.get(key) for one in known}) > 1
    ]
    keys.sort(key=lambda key: key.startswith("corpus.sources."))  # other sources differ in many settings: they are last
    return {name: {key: one[key] for key in keys if key in one} for name, one in settings.items()}


def _summary(record: schema.RunRecord) -> schema.RunSummary:
    totals = [cost.total for cost in record.cost.values()]
    seconds = [total["seconds"] for total in totals if "seconds" in total]
    energies = [total["energy_joules"] for total in totals if "energy_joules" in total]
    content = record.model_dump(include=set(schema.RunSummary.model_fields) - {"systems"}) | {
        "systems": [system.name for system in record.systems],
        "num_jobs": sum(len(cell.jobs) for system in record.systems for cell in system.cells.values()),
        "seconds": sum(seconds) if seconds else None,
        "energy_joules": sum(energies) if energies and len(energies) == len(totals) else None,
    }
    return schema.RunSummary.parse(content, f"record {record.digest}")
