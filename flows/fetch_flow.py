"""The fetch flow: downloads sources into data/, before the stages of dvc.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow

from model.common.errors import Paused, UserError
from tasks.fetch.fetch_sources import bring, chosen, open_record, stale
from tasks.params.root import load_params
from tasks.prefect_tasks import step
from tasks.project import signals
from tasks.project.progress import bars, echo, warn
from tasks.project.project import Project


@flow(name="fetch", flow_run_name="fetch")
def fetch(params_path: str, names: list[str], refresh: bool = False) -> dict[str, Any]:
    """Download the sources that data/ does not contain in full. A source that fails does not stop the others.

    Args:
        params_path: The parameter file that lists the sources.
        names: Names of the sources; empty for all.
        refresh: Also check S3 prefixes and local directories for new files.

    Returns:
        The number of files and bytes received, by source.
    """
    project = Project.find()
    settings = load_params(Path(params_path)).fetch
    received: dict[str, Any] = {}
    faults: dict[str, UserError | Paused] = {}
    with signals.keep_handling_signals(), bars() as add_bar:
        for source in stale(open_record(project), chosen(settings, names), refresh):
            echo(f"{source.name}: from {source.shown}")
            bring_one = step(bring, name="fetch-source", task_run_name=source.name)
            try:
                brought = bring_one(project, settings, source, add_bar(source.name).update)
            except (UserError, Paused) as fault:
                if signals.requested.is_set():
                    raise
                faults[source.name] = fault
                continue
            received[source.name] = brought
            echo(f"{source.name}: {brought['files']:,} files, {brought['bytes'] / 1e6:,.1f} MB in data/{source.to}")
    if len(faults) == 1:
        raise next(iter(faults.values()))
    if faults:
        for name, reason in faults.items():
            warn(f"{name}: {reason}")
        error = UserError if any(isinstance(reason, UserError) for reason in faults.values()) else Paused
        raise error(f"fetch: {len(faults)} sources failed ({', '.join(faults)})")
    return received
