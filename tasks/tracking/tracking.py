"""What a run tells MLflow, kept on disk first: one file an entry, so that a dead tracking server loses nothing.

An entry is one MLflow run: the pipeline's (found or made by the digest of parameters, data and versions, so that both
entry points share it) or a training job's, its child. Stages write entries; `tasks.tracking.forward` sends them. An
entry that is not sent stays, and the next run sends it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.common.files import digest_of, read_json, write_json
from model.common.redaction import redacted
from tasks.dvc.stage_snapshot import code_version
from tasks.project import signals
from tasks.project.progress import echo
from tasks.project.project import Project
from tasks.project.workspace import git_commit, user_name

if TYPE_CHECKING:
    from tasks.tracking.forward import Forwarder

# What fetch brought is in the data's digest; none of the others changes a result.
_BESIDE = ("fetch", "mirror", "promotion", "retrain")
STAGES = ("corpus", "tokenizer", "tokens", "pretrain", "finetune", "leaderboard")


@dataclass
class Entry:
    """One MLflow run as it should be. `status` is RUNNING, FINISHED, FAILED or KILLED, as MLflow spells them."""

    key: str
    name: str
    parent: str = ""
    status: str = "RUNNING"
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_ms: dict[str, int] = field(default_factory=dict)  # when: sent again, a metric has the time of the first
    artifacts: list[tuple[str, str]] = field(default_factory=list)  # (file or folder, folder in the run's artifacts)
    journal: str = ""
    nested: bool = True  # whether MLflow's list folds it under its parent
    changed_ms: int = 0


class Tracking:
    """Writes entries of one pipeline run into `folder`; thread-safe."""

    def __init__(self, project: Project, folder: Path, parent: Entry, common_tags: Mapping[str, str]) -> None:
        self.project = project
        self.folder = folder
        self.parent = parent
        self._common_tags = dict(common_tags)
        self._lock = threading.Lock()
        self._open: dict[str, Entry] = {parent.key: parent}
        self._write(parent)

    def begin(
        self,
        key: str,
        name: str,
        tags: Mapping[str, str],
        params: Mapping[str, Any],
        journal: Path | None = None,
        nested: bool = True,
    ) -> None:
        """A training job starts (or goes on): its run is a child of the pipeline's.

        What is not `nested` belongs to the pipeline's run by its tag alone, and stands in MLflow's list by itself.
        Folders are no parameters: the same job may run again in another one.
        """
        entry = Entry(
            key=key,
            name=name,
            parent=self.parent.key,
            tags=self._common_tags | {name: redacted(str(value)) for name, value in tags.items()},
            params=flatten({name: value for name, value in params.items() if not name.endswith("_dir")}),
            journal=str(journal or ""),
            nested=nested,
        )
        self._open[key] = entry
        self._write(entry)

    def end(
        self,
        key: str,
        status: str,
        metrics: Mapping[str, float] | None = None,
        artifacts: list[tuple[Path, str]] | None = None,
    ) -> None:
        """A training job has ended, with final metrics and the files to keep with it."""
        entry = self._open.pop(key)
        self._write(
            dataclasses.replace(
                entry,
                status=status,
                metrics=dict(metrics or {}),
                metrics_ms=dict.fromkeys(metrics or {}, _now_ms()),
                artifacts=[(str(path), where) for path, where in artifacts or [] if path.exists()],
            )
        )

    def note(self, metrics: Mapping[str, float] | None = None, artifacts: list[tuple[Path, str]] | None = None) -> None:
        """Add metrics and artifacts to the pipeline's own run."""
        changed = {name: value for name, value in (metrics or {}).items() if self.parent.metrics.get(name) != value}
        self.parent.metrics |= changed
        self.parent.metrics_ms |= dict.fromkeys(changed, _now_ms())
        self.parent.artifacts += [(str(path), where) for path, where in artifacts or [] if path.exists()]
        self._write(self.parent)

    def finish(self, status: str) -> None:
        """The pipeline ends; jobs still open end with it (KILLED when it was stopped, FAILED otherwise)."""
        for key in [key for key in self._open if key != self.parent.key]:
            self.end(key, "KILLED" if status in ("KILLED", "FINISHED") else "FAILED")
        self.parent.status = status
        self._write(self.parent)

    def _write(self, entry: Entry) -> None:
        with self._lock:
            entry.changed_ms = max(entry.changed_ms + 1, _now_ms())
            write_json(self.folder / f"{entry.key}.json", dataclasses.asdict(entry))


_current: Tracking | None = None


@contextlib.contextmanager
def session(project: Project, params: Mapping[str, Any], data_digest: str, last: bool = True) -> Iterator[Tracking]:
    """The tracking of the pipeline run around this block; nested blocks (a stage within `cloze run`) share it.

    `last`: whether the pipeline is complete when the block ends well (a single stage leaves it running).
    """
    global _current
    if _current is not None:
        yield _current
        return
    from tasks.tracking.forward import Forwarder

    params = {name: value for name, value in params.items() if name not in _BESIDE}
    versions = {stage: code_version(project, stage) for stage in STAGES}
    key = digest_of({"params": params, "data": data_digest, "versions": versions})
    folder = project.runs / "tracking"
    tags = {"cloze.data": data_digest, "cloze.git_commit": git_commit(project), "cloze.run": key}
    parent = Entry(key=key, name=f"pipeline {key[:8]}", tags=tags | {"cloze.kind": "pipeline"}, params=flatten(params))
    parent.tags |= {"cloze.host": socket.gethostname(), "cloze.user": user_name()}
    with contextlib.suppress(FileNotFoundError):  # an earlier stage of the same run, or the run before a kill
        earlier = Entry(**read_json(folder / f"{key}.json"))
        parent.metrics, parent.metrics_ms = earlier.metrics, earlier.metrics_ms
        parent.artifacts = [(path, where) for path, where in earlier.artifacts]
    tracking = Tracking(project, folder, parent, tags)
    forwarder = Forwarder(project.tracking_uri, project.mlflow_home, folder)
    forwarder.start()
    _current = tracking
    status = "FAILED"
    try:
        yield tracking
        status = "FINISHED" if last else "RUNNING"
    except BaseException as error:
        if signals.requested.is_set() or isinstance(error, KeyboardInterrupt):
            status = "KILLED"  # asked to: by Ctrl-C, or on Prefect's page
        raise
    finally:
        _current = None
        if status != "RUNNING":
            tracking.finish(status)
        _drain(project, forwarder)


def send_rest(project: Project) -> None:
    """Send what earlier runs have kept because MLflow was down; nothing is asked where nothing is left."""
    from tasks.tracking.forward import Forwarder

    forwarder = Forwarder(project.tracking_uri, project.mlflow_home, project.runs / "tracking")
    if forwarder.num_left():
        forwarder.start()
        _drain(project, forwarder)


def _drain(project: Project, forwarder: Forwarder) -> None:
    num_left = forwarder.drain()
    if num_left:
        echo(
            f"cloze: MLflow at {project.tracking_uri.split('@')[-1]} did not take {num_left} records"
            f"{forwarder.reason}; they are kept and the next run sends them"
        )


def flatten(values: Any, prefix: str = "") -> dict[str, str]:
    """A tree of settings as flat `a.b.c` names and strings (MLflow's parameters: 500 characters at most each), without
    secrets."""
    if isinstance(values, Mapping):
        parts = [flatten(value, f"{prefix}{name}.") for name, value in values.items()]
        return {name: value for part in parts for name, value in part.items()}
    return {prefix.rstrip("."): redacted(str(values))[:500]}


def _now_ms() -> int:
    return int(time.time() * 1000)
