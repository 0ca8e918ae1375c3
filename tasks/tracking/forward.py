"""Background thread that sends tracking entries and metrics logs to MLflow in batches.

Training never waits for it. Sending twice is harmless: MLflow identifies a metric by time and value, and runs are found
by the tags `cloze.run` and `cloze.key`. If the server is down, sending is retried here; MLflow's client does not retry
(`tasks.project.environment`), since it would also repeat the creation of runs.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.common.files import read_json, write_json
from model.common.metrics_log import read_metrics
from model.common.redaction import redacted

EXPERIMENT = "cloze"
EVERY_SECONDS = 2.0
METRICS_PER_BATCH = 1000  # MLflow's limit
PARAMS_PER_BATCH = 100  # MLflow's limit
DRAIN_SECONDS = 60.0
MAX_FAILURES = 3  # per round; a rejected entry must not block the others


@dataclass
class Entry:
    """Desired state of one MLflow run. `status` is one of MLflow's RUNNING, FINISHED, FAILED and KILLED."""

    key: str
    name: str
    parent: str = ""
    status: str = "RUNNING"
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_ms: dict[str, int] = field(
        default_factory=dict
    )  # times, so that a metric that is sent again keeps its first time
    artifacts: list[tuple[str, str]] = field(
        default_factory=list
    )  # (file or directory, directory in the run's artifacts)
    journal: str = ""
    nested: bool = True  # listed below its parent in MLflow
    changed_ms: int = 0


class Forwarder(threading.Thread):
    """Watches a directory of entries and sends changes; `drain` sends the rest and ends the thread."""

    def __init__(self, tracking_uri: str, mlflow_home: Path, folder: Path) -> None:
        super().__init__(daemon=True, name="forward")
        self._uri = tracking_uri
        self._home = mlflow_home
        self._folder = folder
        self._ending = threading.Event()
        self._deadline = float("inf")
        self._client: Any = None
        self._experiment = ""
        self._failure: Exception | None = None

    def run(self) -> None:
        """Send changes until `drain` is called, then once more."""
        while not self._ending.wait(EVERY_SECONDS):
            self._send_all()
        self._send_all()

    def drain(self) -> int:
        """Send the remaining entries and end the thread.

        Returns:
            The number of entries that could not be sent completely (none was sent for DRAIN_SECONDS).
        """
        self._deadline = time.monotonic() + DRAIN_SECONDS
        self._ending.set()
        while self.is_alive() and time.monotonic() < self._deadline:
            self.join(0.5)
        return self.num_left()

    def num_left(self) -> int:
        """Number of entries that have not been sent completely."""
        return sum(1 for path in self._entries() if not self._is_sent(path))

    def _entries(self) -> list[Path]:
        return sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)

    def _is_sent(self, path: Path) -> bool:
        sent = _sent_state(path)
        entry = read_json(path)
        return bool(
            sent.get("changed_ms") == entry["changed_ms"] and (entry["status"] == "RUNNING" or sent.get("closed"))
        )

    @property
    def reason(self) -> str:
        """Reason of the last failure, in parentheses; empty without a failure."""
        if self._failure is None:
            return ""
        lines = redacted(str(self._failure)).splitlines() or [""]
        return f" ({type(self._failure).__name__}: {lines[0][:200]})"

    def _send_all(self) -> None:
        self._failure, num_failures = None, 0
        for path in self._entries():
            if time.monotonic() > self._deadline or num_failures == MAX_FAILURES:
                return
            try:
                if self._client is None:
                    self._client, self._experiment = connect(self._uri, self._home)
                if self._send(path) and self._ending.is_set():
                    self._deadline = time.monotonic() + DRAIN_SECONDS
            except Exception as error:  # a failing tracking server must never stop training
                self._failure, self._client, num_failures = error, None, num_failures + 1

    def _send(self, path: Path) -> bool:
        """Update the MLflow run of one entry; returns False if it was up to date."""
        from mlflow.entities import Metric, Param, RunTag

        entry = Entry(**read_json(path))
        sent = _sent_state(path)
        if sent.get("closed") and sent.get("changed_ms") == entry.changed_ms:
            return False
        run_id = sent.get("run_id") or self._find_or_make(entry)
        client = self._client
        if sent.get("changed_ms") != entry.changed_ms:
            if sent.get("closed") or "changed_ms" not in sent:
                client.update_run(run_id, status="RUNNING")
            params = [Param(name, value) for name, value in entry.params.items()] if not sent.get("run_id") else []
            for start in range(0, len(params), PARAMS_PER_BATCH):
                client.log_batch(run_id, params=params[start : start + PARAMS_PER_BATCH])
            final = [  # with fixed times, so that repeated metrics are the same row
                Metric(name, value, entry.metrics_ms.get(name, entry.changed_ms), 0)
                for name, value in entry.metrics.items()
                if sent.get("final", {}).get(name) != value
            ]
            client.log_batch(run_id, metrics=final, tags=[RunTag(name, value) for name, value in entry.tags.items()])
            sent["final"] = entry.metrics
            write_json(_state_path(path), sent | {"run_id": run_id})
        sent["run_id"] = run_id
        sent["offset"] = self._send_journal(entry, run_id, sent.get("offset", 0))
        known = {tuple(artifact) for artifact in sent.get("artifacts", [])}
        for local, where in entry.artifacts:
            if (local, where) in known or not Path(local).exists():
                continue
            send = client.log_artifacts if Path(local).is_dir() else client.log_artifact
            send(run_id, local, where or None)
            known.add((local, where))
        sent["artifacts"] = sorted(known)
        if entry.status != "RUNNING":
            client.set_terminated(run_id, entry.status)
        write_json(_state_path(path), sent | {"closed": entry.status != "RUNNING", "changed_ms": entry.changed_ms})
        return True

    def _send_journal(self, entry: Entry, run_id: str, offset: int) -> int:
        """Send metrics log lines from byte `offset` on; returns the offset after the last line sent."""
        from mlflow.entities import Metric

        batch: list[Metric] = []
        for line, after in read_metrics(Path(entry.journal), offset) if entry.journal else ():
            metrics = [Metric(name, value, line["time_ms"], line["step"]) for name, value in line["metrics"].items()]
            if len(batch) + len(metrics) > METRICS_PER_BATCH:
                self._client.log_batch(run_id, metrics=batch)
                batch = []
            batch += metrics
            offset = after
        if batch:
            self._client.log_batch(run_id, metrics=batch)
        return offset

    def _find_or_make(self, entry: Entry) -> str:
        # The same job may also belong to a run in another workspace, so its key alone is not unique.
        query = f"tags.`cloze.key` = '{entry.key}' AND tags.`cloze.run` = '{entry.parent or entry.key}'"
        found = self._client.search_runs(self._experiment, query, max_results=1)
        if found:
            return str(found[0].info.run_id)
        tags = entry.tags | {"cloze.key": entry.key, "mlflow.runName": entry.name}
        if entry.parent and entry.nested:
            tags["mlflow.parentRunId"] = self._parent_id(entry.parent)
        return str(self._client.create_run(self._experiment, tags=tags).info.run_id)

    def _parent_id(self, key: str) -> str:
        path = self._folder / f"{key}.json"
        return str(_sent_state(path).get("run_id") or self._find_or_make(Entry(**read_json(path))))


def connect(uri: str, home: Path) -> tuple[Any, str]:
    """Return an MLflow client and the id of the experiment `cloze`, which is created if it is missing.

    Args:
        uri: tracking URI.
        home: directory of the artifacts if `uri` is a SQLite file.
    """
    import mlflow
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    mlflow.set_tracking_uri(uri)
    client = MlflowClient(uri)
    artifacts = None
    if uri.startswith("sqlite:"):  # creates the tables before several processes use them
        home.mkdir(parents=True, exist_ok=True)
        artifacts = (home / "artifacts").as_uri()
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        try:
            return client, client.create_experiment(EXPERIMENT, artifacts)
        except MlflowException:  # another run has just created it
            found = client.get_experiment_by_name(EXPERIMENT)
            if found is None:
                raise
    return client, found.experiment_id


def _state_path(path: Path) -> Path:
    return path.with_suffix(".sent")


def _sent_state(path: Path) -> dict[str, Any]:
    try:
        return read_json(_state_path(path))
    except FileNotFoundError:
        return {}
