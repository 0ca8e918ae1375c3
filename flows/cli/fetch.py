"""Sources into data/: a step before the graph, which reads data/ alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow

from model.common.errors import Paused, UserError
from tasks.fetch.bring import bring, chosen, open_record, stale
from tasks.params.root import load_params
from tasks.prefect_tasks import step
from tasks.project import signals
from tasks.project.progress import bars, say
from tasks.project.project import Project


@flow(name="fetch", flow_run_name="fetch")
def fetch(params_path: str, names: list[str], refresh: bool = False) -> dict[str, Any]:
    """Bring the sources of these names that do not lie whole in data/; files and bytes that came, by source.

    A source that cannot be had does not keep the others from coming.
    """
    project = Project.find()
    settings = load_params(Path(params_path)).fetch
    came: dict[str, Any] = {}
    faults: dict[str, UserError | Paused] = {}
    with signals.still_on_signals(), bars() as shown:
        for source in stale(open_record(project), chosen(settings, names), refresh):
            say(f"{source.name}: from {source.shown}")
            bring_one = step(bring, name="fetch-source", task_run_name=source.name)
            try:
                brought = bring_one(project, settings, source, shown.bar(source.name).update)
            except (UserError, Paused) as fault:
                if signals.requested.is_set():
                    raise
                faults[source.name] = fault
                continue
            came[source.name] = brought
            say(f"{source.name}: {brought['files']:,} files, {brought['bytes'] / 1e6:,.1f} MB in data/{source.to}")
    if len(faults) == 1:
        raise next(iter(faults.values()))
    if faults:
        for name in faults:
            say(f"{name}: {faults[name]}")
        kind = UserError if any(isinstance(one, UserError) for one in faults.values()) else Paused
        raise kind(f"fetch: {len(faults)} sources did not come ({', '.join(faults)})")
    return came
