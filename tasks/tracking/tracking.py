"""MLflow tracking, buffered on disk: one file per MLflow run, so that nothing is lost while the server is down.

There is one MLflow run per pipeline, found by the hash of parameters, data and versions (so `cloze run` and `dvc repro`
share it), and one per training job, a child of the former. Stages write entries; `tasks.tracking.forward` sends them.
Entries that could not be sent are sent by the next run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from model.common.files import digest_of, read_json, write_json
from model.common.redaction import redacted
from tasks.dvc.stage_snapshot import code_version
from tasks.project import signals
from tasks.project.progress import echo
from tasks.project.project import Project
from tasks.project.workspace import git_commit, user_name
from tasks.tracking.forward import Entry, Forwarder

# Sections that do not affect results, except `fetch`, whose effect is in the hash of the data
_IGNORED_SECTIONS = ("fetch", "mirror", "promotion", "retrain")
STAGES = ("corpus", "tokenizer", "tokens", "pretrain", "finetune", "leaderboard")


class Tracking:
    """Writes the entries of one pipeline run into `folder`. Thread-safe."""

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
        """Start or resume the MLflow run of a training job, a child of the pipeline's run.

        Args:
            key: identifies the run.
            name: shown in MLflow.
            tags: tags in addition to the pipeline's.
            params: parameters; directories (`*_dir`) are left out, since the same job may run elsewhere.
            journal: the job's metrics log.
            nested: False lists the run separately in MLflow; only a tag then links it to the pipeline's run.
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
        """End the run of a training job, with its final metrics and artifacts (file, artifact directory)."""
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
        """Add metrics and artifacts to the pipeline's run."""
        changed = {name: value for name, value in (metrics or {}).items() if self.parent.metrics.get(name) != value}
        self.parent.metrics |= changed
        self.parent.metrics_ms |= dict.fromkeys(changed, _now_ms())
        self.parent.artifacts += [(str(path), where) for path, where in artifacts or [] if path.exists()]
        self._write(self.parent)

    def finish(self, status: str) -> None:
        """End the pipeline's run and the jobs that are still open (as KILLED if the run was stopped, else as
        FAILED)."""
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
    """Track the pipeline run around this block; nested blocks (a stage within `cloze run`) share its tracking.

    Args:
        project: the project.
        params: content of params.yaml.
        data_digest: hash of data/.
        last: False if the pipeline is not complete after this block (a single stage); its run then stays open.
    """
    global _current
    if _current is not None:
        yield _current
        return
    params = {name: value for name, value in params.items() if name not in _IGNORED_SECTIONS}
    versions = {stage: code_version(project, stage) for stage in STAGES}
    key = digest_of({"params": params, "data": data_digest, "versions": versions})
    folder = project.runs / "tracking"
    tags = {"cloze.data": data_digest, "cloze.git_commit": git_commit(project), "cloze.run": key}
    parent = Entry(key=key, name=f"pipeline {key[:8]}", tags=tags | {"cloze.kind": "pipeline"}, params=flatten(params))
    parent.tags |= {"cloze.host": socket.gethostname(), "cloze.user": user_name()}
    with contextlib.suppress(FileNotFoundError):  # from an earlier stage, or from before an interruption
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
            status = "KILLED"  # by Ctrl-C, or in the Prefect UI
        raise
    finally:
        _current = None
        if status != "RUNNING":
            tracking.finish(status)
        _drain(project, forwarder)


def send_rest(project: Project) -> None:
    """Send entries that earlier runs could not send; contacts MLflow only if there are any."""
    forwarder = Forwarder(project.tracking_uri, project.mlflow_home, project.runs / "tracking")
    if forwarder.num_left():
        forwarder.start()
        _drain(project, forwarder)


def _drain(project: Project, forwarder: Forwarder) -> None:
    num_left = forwarder.drain()
    if num_left:
        echo(
            f"cloze: MLflow at {project.tracking_uri.split('@')[-1]} did not accept {num_left} records"
            f"{forwarder.reason}; the next run sends them"
        )


def flatten(values: Any, prefix: str = "") -> dict[str, str]:
    """Flatten a tree of settings to `a.b.c` → text of at most 500 characters (MLflow's limit), with secrets
    redacted."""
    if isinstance(values, Mapping):
        parts = [flatten(value, f"{prefix}{name}.") for name, value in values.items()]
        return {name: value for part in parts for name, value in part.items()}
    return {prefix.rstrip("."): redacted(str(values))[:500]}


def _now_ms() -> int:
    return int(time.time() * 1000)
