"""MLflow tracking, buffered on disk: one file per MLflow run, so that nothing is lost while the server is down.

There is one MLflow run per pipeline, found by the hash of parameters, data and versions (so `cloze run` and `dvc repro`
share it), and one per training job, a child of the former. Stages write entries, and a thread sends them, for which
training never waits. Entries that could not be sent are sent by the next run.

Sending twice is harmless: MLflow identifies a metric by time and value, and runs are found by the tags `cloze.run` and
`cloze.key`. If the server is down, the thread retries; MLflow's client does not retry (`tasks.project.environment`),
since it would also repeat the creation of runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import url2pathname

from model.common.files import digest_of
from model.common.metrics_log import read_metrics
from model.common.redaction import redacted
from model.common.state_files import read_state, write_state
from tasks.dvc.integrity import pinned_data
from tasks.project import signals
from tasks.project.databases import set_aside_if_damaged
from tasks.project.progress import warn, working
from tasks.project.project import Project
from tasks.project.stage_versions import code_version
from tasks.project.workspace import git_commit, run_label, user_name
from tasks.project.yaml_files import read_yaml
from tasks.tracking.spool import WEIGHTS, Spool

# Sections that do not affect results, except `fetch`, whose effect is in the hash of the data
_IGNORED_SECTIONS = ("fetch", "mirror", "promotion", "retrain", "tracking")
STAGES = ("corpus", "tokenizer", "tokens", "pretrain", "finetune", "leaderboard")
EXPERIMENT = "cloze"
EVERY_SECONDS = 2.0
METRICS_PER_BATCH = 1000  # MLflow's limit
PARAMS_PER_BATCH = 100  # MLflow's limit
DRAIN_SECONDS = 60.0
_NAME = "cloze.run_name"  # tag
MAX_FAILURES = 3  # per round; a rejected entry must not block the others
_SQLITE = "sqlite:///"
_ARTIFACTS = re.compile(r"file:.*/\.cloze/mlflow/artifacts(?=/|$)")


class DataInput(NamedTuple):
    """Data that a run reads: a dataset input in MLflow."""

    path: str
    """Relative to the project."""
    digest: str
    """MD5 that DVC records (with the suffix `.dir` for directories)."""
    context: str
    """training or validation."""


@dataclass
class Entry:
    """Desired state of one MLflow run. `status` is one of MLflow's RUNNING, FINISHED, FAILED and KILLED.

    Paths are relative to the directory of the entry, so that a project can be moved.
    """

    key: str
    name: str
    parent: str = ""
    status: str = "RUNNING"
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_ms: dict[str, int] = field(default_factory=dict)
    """Times, so that a metric that is sent again keeps its first time."""
    step: int = 0
    """Step of `metrics`."""
    inputs: list[DataInput] = field(default_factory=list)
    attached: list[str] = field(default_factory=list)
    """Directories in the run's artifacts that `attach` filled."""
    journal: str = ""
    nested: bool = True  # listed below its parent in MLflow
    model: str = ""
    """Name of the model that the run evaluates: it gets a logged model of MLflow with the run's metrics."""
    changed_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0

    @classmethod
    def read(cls, path: Path) -> Entry | None:
        """Read an entry; None if it is missing or damaged. Those of former releases may have other fields."""
        content = read_state(path)
        if not content:
            return None
        return cls(**{one.name: content[one.name] for one in dataclasses.fields(cls) if one.name in content})


class Forwarder(threading.Thread):
    """Watches a directory of entries and sends changes; `drain` sends the rest and ends the thread."""

    def __init__(self, tracking_uri: str, mlflow_home: Path, folder: Path) -> None:
        super().__init__(daemon=True, name="forward")
        self._uri, self._home, self._folder = tracking_uri, mlflow_home, folder
        is_file = tracking_uri.startswith(_SQLITE)
        self._database = Path(tracking_uri.removeprefix(_SQLITE).partition("?")[0]) if is_file else None
        self._ending = threading.Event()
        self._deadline = float("inf")
        self._client: Any = None
        self._experiment = self._store = ""
        self._failure: Exception | None = None
        self._is_lost = False

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
        is_new = self._database is not None and not self._database.exists()
        states = [(Entry.read(path), {} if is_new else _sent_state(path)) for path in self._folder.glob("*.json")]
        return sum(
            sent.get("changed_ms") != entry.changed_ms or not (entry.status == "RUNNING" or sent.get("closed"))
            for entry, sent in states
            if entry is not None
        )

    @property
    def reason(self) -> str:
        """Reason of the last failure, in parentheses; empty without a failure."""
        if self._failure is None:
            return ""
        error: BaseException = self._failure
        while not isinstance(error, sqlite3.Error) and (cause := error.__cause__ or error.__context__):
            error = cause
        if not isinstance(error, sqlite3.Error):
            error = self._failure
        lines = redacted(str(error)).splitlines() or [""]
        return f" ({type(error).__name__}: {lines[0][:200]})"

    def _send_all(self) -> None:
        self._failure, num_failures = None, 0
        if self._is_lost:
            return
        paths = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in paths:
            if time.monotonic() > self._deadline or num_failures == MAX_FAILURES:
                return
            try:
                if self._client is None:
                    self._connect()
                if self._send(path) and self._ending.is_set():
                    self._deadline = time.monotonic() + DRAIN_SECONDS
            except Exception as error:  # a failing tracking server must never stop training
                self._failure, self._client, num_failures = error, None, num_failures + 1
                self._mend()
                if self._is_lost:
                    return
                if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":  # this run was deleted
                    path.with_suffix(".sent").unlink(missing_ok=True)
                    paths.append(path)

    def _connect(self) -> None:
        """Connect to MLflow; what was sent to another database is to be sent again."""
        self._client, experiment = connect(self._uri, self._home)
        self._experiment = experiment.experiment_id
        self._store = f"{experiment.creation_time}/{experiment.experiment_id}"
        sent = map(read_state, self._folder.glob("*.sent"))
        if any(state.get("store", self._store) != self._store for state in sent):
            self._send_again()
            warn(f"cloze: MLflow at {_shown(self._uri)} lacks earlier records of this project; sending them again")

    def _mend(self) -> None:
        """After a failure, let everything be sent again that MLflow has lost with its database."""
        if self._database is None:
            return
        if self._experiment and not self._database.exists():
            self._is_lost = True  # MLflow keeps the deleted file open until this process ends
            warn(f"cloze: {os.path.relpath(self._database)} was deleted; the next run records this one again")
            self._send_again()
        elif set_aside_if_damaged(self._database):
            self._send_again()

    def _send_again(self) -> None:
        """Forget what was sent."""
        for path in self._folder.glob("*.sent"):
            path.unlink(missing_ok=True)

    def _send(self, path: Path) -> bool:
        """Update the MLflow run of one entry; returns False if it was up to date."""
        from mlflow.entities import Metric, Param, RunTag

        entry = Entry.read(path)
        sent = _sent_state(path)
        if entry is None:
            return False
        if sent.get("closed") and sent.get("changed_ms") == entry.changed_ms:
            return False
        run_id = sent.get("run_id") or self._find_or_make(entry)
        client = self._client
        if sent.get("changed_ms") != entry.changed_ms:
            if sent.get("closed") or "changed_ms" not in sent:
                client.update_run(run_id, status="RUNNING", name=entry.name)
            params = [Param(name, value) for name, value in entry.params.items()] if not sent.get("run_id") else []
            for start in range(0, len(params), PARAMS_PER_BATCH):
                client.log_batch(run_id, params=params[start : start + PARAMS_PER_BATCH])
            if entry.inputs and not sent.get("run_id"):
                client.log_inputs(run_id, datasets=_datasets(entry.inputs))
            if entry.model:
                sent["model_id"] = sent.get("model_id") or self._find_or_make_model(entry, run_id)
            of_model = {"run_id": run_id, "model_id": sent["model_id"]} if entry.model else {}
            if entry.model and entry.inputs:  # MLflow's table of models groups scores by dataset
                of_model |= {"dataset_name": entry.inputs[0][0], "dataset_digest": entry.inputs[0][1]}
            final = [  # with fixed times, so that repeated metrics are the same row
                Metric(name, value, entry.metrics_ms.get(name, entry.changed_ms), entry.step, **of_model)
                for name, value in entry.metrics.items()
                if sent.get("final", {}).get(name) != value
            ]
            client.log_batch(run_id, metrics=final, tags=[RunTag(name, value) for name, value in entry.tags.items()])
            sent["final"] = entry.metrics
            sent |= {"experiment": self._experiment, "store": self._store}
            write_state(path.with_suffix(".sent"), sent | {"run_id": run_id})
        sent["run_id"] = run_id
        sent["offset"] = self._send_journal(entry, run_id, sent.get("offset", 0))
        spool = Spool(self._folder, entry.key)
        for file, where in spool.files():
            before = file.stat()
            self._send_file(run_id, file, where)
            spool.remove(file, before)
        if entry.status != "RUNNING":
            client.set_terminated(run_id, entry.status, entry.ended_ms or None)
        sent |= {"closed": entry.status != "RUNNING", "changed_ms": entry.changed_ms}
        write_state(path.with_suffix(".sent"), sent)
        return True

    def _send_file(self, run_id: str, file: Path, where: str) -> None:
        """Log a file of the spool as an artifact; weights are moved into a local artifact store, not copied."""
        uri = self._client.get_run(run_id).info.artifact_uri if file.suffix == WEIGHTS else ""
        if uri.startswith("file:"):
            target = Path(url2pathname(urlsplit(uri).path), where, file.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):  # on another file system
                file.replace(target)
                return
        self._client.log_artifact(run_id, str(file), where or None)

    def _send_journal(self, entry: Entry, run_id: str, offset: int) -> int:
        """Send metrics log lines from byte `offset` on; returns the offset after the last line sent."""
        from mlflow.entities import Metric

        batch: list[Metric] = []
        for line, after in read_metrics(_absolute(self._folder, entry.journal), offset) if entry.journal else ():
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
        if entry.parent and entry.nested and (parent := self._parent_id(entry.parent)):
            tags["mlflow.parentRunId"] = parent
        return str(self._client.create_run(self._experiment, entry.started_ms or None, tags).info.run_id)

    def _find_or_make_model(self, entry: Entry, run_id: str) -> str:
        found = self._client.search_logged_models([self._experiment], f"source_run_id = '{run_id}'", max_results=1)
        if not found:
            made = self._client.create_logged_model(
                self._experiment, entry.model, run_id, entry.tags, entry.params, "encoder"
            )
            found = [self._client.finalize_logged_model(made.model_id, "READY")]
        return str(found[0].model_id)

    def _parent_id(self, key: str) -> str:
        path = self._folder / f"{key}.json"
        entry, known = Entry.read(path), str(_sent_state(path).get("run_id", ""))
        return self._find_or_make(entry) if entry is not None and not known else known


def _absolute(folder: Path, path: str) -> Path:
    return Path(os.path.normpath(folder / path))  # without following links, like os.path.relpath


def _datasets(inputs: Sequence[Sequence[str]]) -> list[Any]:
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

    return [
        DatasetInput(Dataset(path, digest, "local", json.dumps({"uri": path})), [InputTag(MLFLOW_DATASET_CONTEXT, use)])
        for path, digest, use in inputs
    ]


def import_mlflow() -> Any:
    """Import MLflow in one thread at a time: its modules import each other, and a second thread may see half of one."""
    with _IMPORTING:
        import mlflow
    return mlflow


def create_database(home: Path) -> None:
    """Create MLflow's SQLite database in `home` as a whole, if it is missing; only its owner may read it.

    MLflow cannot continue a creation that was interrupted, such as by a full disk.
    """
    database = home / "mlflow.db"
    if database.exists():
        return
    import_mlflow()
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    with tempfile.TemporaryDirectory(prefix=".creating-", dir=home) as folder:
        SqlAlchemyStore(f"sqlite:///{folder}/{database.name}", (home / "artifacts").as_uri())
        created = Path(folder, database.name)
        created.chmod(0o600)  # it can hold secrets, as the other databases
        try:
            with contextlib.suppress(FileExistsError):  # another run has just created it: that database is used
                os.link(created, database)
        except OSError:  # a file system without hard links
            created.replace(database)


def connect(uri: str, home: Path) -> tuple[Any, Any]:
    """Return an MLflow client and the experiment `cloze`, which is created if it is missing.

    Args:
        uri: tracking URI.
        home: directory of the artifacts if `uri` is a SQLite file.
    """
    mlflow = import_mlflow()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # the caller reports errors, in a line
    mlflow.set_tracking_uri(uri)
    artifacts = None
    if uri.startswith("sqlite:"):  # creates the tables before several processes use them
        home.mkdir(parents=True, exist_ok=True)
        if uri == f"sqlite:///{home / 'mlflow.db'}":
            create_database(home)
        follow_move(home)
        artifacts = (home / "artifacts").as_uri()
    client = MlflowClient(uri)
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        try:
            return client, client.get_experiment(client.create_experiment(EXPERIMENT, artifacts))
        except MlflowException:  # another run has just created it
            found = client.get_experiment_by_name(EXPERIMENT)
            if found is None:
                raise
    return client, found


def follow_move(home: Path) -> None:
    """Update the paths of artifacts in the SQLite database in `home`, if the project was moved or copied.

    MLflow stores absolute paths only, so a copied project would write into the original.
    """
    database = home / "mlflow.db"
    if not database.exists():
        return
    new = (home / "artifacts").as_uri()
    with contextlib.closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if "experiments" not in tables:
            return
        query = "SELECT artifact_location FROM experiments WHERE name = ?"
        [location] = connection.execute(query, [EXPERIMENT]).fetchone() or [""]
        found = _ARTIFACTS.match(location or "")
        if found is None or found[0] == new:
            return
        connection.execute("BEGIN IMMEDIATE")
        for table in tables:
            for _, column, kind, *_ in connection.execute(f"PRAGMA table_info('{table}')").fetchall():
                if kind.upper().startswith(("VARCHAR", "TEXT")):
                    connection.execute(
                        f'UPDATE "{table}" SET "{column}" = :new || substr("{column}", length(:old) + 1)'
                        f' WHERE "{column}" = :old OR substr("{column}", 1, length(:old) + 1) = :old || \'/\'',
                        {"old": found[0], "new": new},
                    )
        connection.execute("COMMIT")


def runs_page(tracking_uri: str, experiment: str, run: str = "") -> str:
    """Return the URL of an experiment's table of runs in MLflow, or of one run; empty if MLflow is not a server."""
    parts = urlsplit(tracking_uri)
    if not parts.scheme.startswith("http") or not experiment:
        return ""
    base = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
    # without it, MLflow opens its view for language model applications
    return f"{base}/#/experiments/{experiment}/runs{f'/{run}' if run else ''}?workflowType=machine_learning"


def systems_page(tracking_uri: str, experiment: str) -> str:
    """Return the URL of MLflow's table of all systems, the best average first; empty if MLflow is not a server.

    MLflow 3's page of models only sorts by time.
    """
    page = runs_page(tracking_uri, experiment)
    query = {"searchFilter": "tags.`cloze.kind` = 'system'", "orderByKey": "metrics.`average`", "orderByAsc": "false"}
    return page and f"{page}&{urlencode(query, quote_via=quote)}"


def run_page(project: Project, key: str) -> str:
    """Return the URL of the MLflow run of an entry; empty if it was not sent, or if MLflow is not a server."""
    sent = _sent_state(project.runs / "tracking" / f"{key}.json")
    return runs_page(project.tracking_uri, sent.get("experiment", ""), sent.get("run_id", ""))


def standard_tags(project: Project, source: str, description: str = "") -> dict[str, str]:
    """Return the tags that MLflow's pages show as user, source, commit and description.

    Args:
        source: the command that the run belongs to.
        description: Markdown.
    """
    commit = git_commit(project)
    tags = {"mlflow.user": user_name(), "mlflow.source.name": source, "mlflow.source.type": "LOCAL"}
    if commit:
        tags["mlflow.source.git.commit"] = commit.removesuffix("+")
        tags["mlflow.source.git.dirty"] = str(commit.endswith("+")).lower()
    return tags | ({"mlflow.note.content": redacted(description)} if description else {})


def _sent_state(path: Path) -> dict[str, Any]:
    return read_state(path.with_suffix(".sent"))


class Tracking:
    """Writes the entries of one pipeline run into `folder`. Thread-safe."""

    def __init__(self, folder: Path, parent: Entry, common_tags: Mapping[str, str]) -> None:
        self.folder = folder
        self.parent = parent
        self._common_tags = dict(common_tags)
        self._lock = threading.Lock()
        self._open: dict[str, Entry] = {}
        self._write(parent)

    @property
    def run_name(self) -> str:
        """The name that the user gave to the pipeline run; empty without one."""
        return self.parent.tags.get(_NAME, "")

    def begin(
        self,
        key: str,
        name: str,
        tags: Mapping[str, str],
        params: Mapping[str, Any],
        journal: Path | None = None,
        inputs: Sequence[DataInput] = (),
        nested: bool = True,
        model: str = "",
    ) -> None:
        """Start or resume the MLflow run of a training job, a child of the pipeline's run.

        Args:
            tags: tags in addition to the pipeline's.
            params: parameters; directories (`*_dir`) are left out, since the same job may run elsewhere.
            journal: the job's metrics log.
            inputs: the data that the job reads.
            nested: False lists the run separately in MLflow; only a tag then links it to the pipeline's run.
            model: name of the model that the run evaluates, for MLflow's page of models.
        """
        entry = Entry(
            key=key,
            name=name,
            parent=self.parent.key,
            tags=self._common_tags | {name: redacted(str(value)) for name, value in tags.items()},
            params=flatten({name: value for name, value in params.items() if not name.endswith("_dir")}),
            journal=self._relative(journal) if journal else "",
            inputs=list(inputs),
            nested=nested,
            model=model,
        )
        earlier = Entry.read(self.folder / f"{key}.json")  # from before an interruption, or of the same result
        if earlier is not None and earlier.parent == entry.parent:
            entry.started_ms, entry.attached = earlier.started_ms, earlier.attached
        entry.started_ms = entry.started_ms or _now_ms()
        self.parent.ended_ms = 0
        self._open[key] = entry
        self._write(entry)

    def end(
        self,
        key: str,
        status: str,
        metrics: Mapping[str, float] | None = None,
        artifacts: Sequence[tuple[Path, str]] = (),
    ) -> None:
        """End the run of a training job, with its final metrics and artifacts (file, artifact directory).

        Final metrics have the step of the last line of the metrics log. Those that it already contains with the same
        value are not repeated.
        """
        entry = self._open.pop(key)
        entry.status = status
        entry.ended_ms = _now_ms() if entry.journal else entry.started_ms  # without a journal, it is only a record
        logged: dict[str, float] = {}
        for line, _ in read_metrics(_absolute(self.folder, entry.journal)) if entry.journal else ():
            entry.step = max(entry.step, line["step"])
            logged |= line["metrics"]
        final = {name: value for name, value in (metrics or {}).items() if logged.get(name) != value}
        self._add(entry, final, artifacts)

    def note(self, metrics: Mapping[str, float] | None = None, artifacts: Sequence[tuple[Path, str]] = ()) -> None:
        """Add metrics and artifacts to the pipeline's run."""
        self.parent.ended_ms = 0
        self._add(self.parent, metrics or {}, artifacts)

    def tag(self, tags: Mapping[str, str], artifacts: Sequence[tuple[Path, str]] = ()) -> None:
        """Set tags of the pipeline's run, with files that belong to them. This does not prolong the run."""
        self.parent.tags |= tags
        self._add(self.parent, {}, artifacts)

    def lacks(self, key: str, where: str) -> bool:
        """Check whether a training job has an entry, and nothing is attached to it at `where`."""
        entry = Entry.read(self.folder / f"{key}.json")
        return entry is not None and where not in entry.attached

    def attach(self, key: str, folder: Path, where: str) -> None:
        """Add the files of `folder` to the artifacts of a training job that has ended."""
        entry = Entry.read(self.folder / f"{key}.json")
        if entry is None:
            return
        entry.attached.append(where)
        self._add(entry, {}, [(folder, where)])

    def finish(self, status: str) -> None:
        """End the pipeline's run, and open jobs as KILLED if the run was stopped, else as FAILED."""
        for key in list(self._open):
            self.end(key, "KILLED" if status in ("KILLED", "FINISHED") else "FAILED")
        self.parent.status = status
        self.parent.ended_ms = self.parent.ended_ms or _now_ms()
        self._write(self.parent)

    def _add(self, entry: Entry, metrics: Mapping[str, float], artifacts: Sequence[tuple[Path, str]]) -> None:
        changed = {name: value for name, value in metrics.items() if entry.metrics.get(name) != value}
        entry.metrics |= changed
        entry.metrics_ms |= dict.fromkeys(changed, _now_ms())
        for path, where in artifacts:
            Spool(self.folder, entry.key).add(path, where)
        self._write(entry)

    def _relative(self, path: Path) -> str:
        return os.path.relpath(path, self.folder)

    def _write(self, entry: Entry) -> None:
        with self._lock:
            entry.changed_ms = max(entry.changed_ms + 1, _now_ms())
            write_state(self.folder / f"{entry.key}.json", dataclasses.asdict(entry))


_current: Tracking | None = None
_IMPORTING = threading.Lock()


def pipeline_key(project: Project, params: Mapping[str, Any] | None = None, data_digest: str | None = None) -> str:
    """Return the key of a pipeline run: the hash of parameters, data and code versions.

    Args:
        params: content of the parameter file; that of params.yaml by default.
        data_digest: hash of data/; the pinned one by default.
    """
    values = read_yaml(project.params_path) if params is None else params
    return digest_of(
        {
            "params": {name: value for name, value in values.items() if name not in _IGNORED_SECTIONS},
            "data": pinned_data(project) if data_digest is None else data_digest,
            "versions": {stage: code_version(project, stage) for stage in STAGES},
        }
    )


def current_run(project: Project) -> tuple[str, str]:
    """Return the key and the name of the pipeline run with the present parameters, data and code."""
    key = pipeline_key(project)
    entry = read_state(project.runs / "tracking" / f"{key}.json")
    return key, entry.get("tags", {}).get(_NAME, "")


def is_open() -> bool:
    """Check whether this process is inside a `session`."""
    return _current is not None


@contextlib.contextmanager
def session(
    project: Project,
    params: Mapping[str, Any],
    data_digest: str,
    last: bool = True,
    name: str = "",
    description: str = "",
) -> Iterator[Tracking]:
    """Track the pipeline run around this block; nested blocks (a stage within `cloze run`) share its tracking.

    Args:
        params: content of params.yaml.
        data_digest: hash of data/.
        last: False if the pipeline is not complete after this block (a single stage); its run then stays open.
        name: the run's name; by default, the one that it had before.
        description: Markdown for MLflow's page of the run.
    """
    global _current
    if _current is not None:
        yield _current
        return
    key = pipeline_key(project, params, data_digest)
    folder = project.runs / "tracking"
    tags = {"cloze.data": data_digest, "cloze.git_commit": git_commit(project), "cloze.run": key}
    parent = Entry(
        key=key,
        name="",
        tags=tags | standard_tags(project, "cloze run", description),
        params=flatten({section: value for section, value in params.items() if section not in _IGNORED_SECTIONS}),
        inputs=[DataInput("data", data_digest, "training")] if data_digest else [],
    )
    parent.tags |= {"cloze.kind": "pipeline", "cloze.host": socket.gethostname()}
    earlier = Entry.read(folder / f"{key}.json")  # from an earlier stage, or from before an interruption
    if earlier is not None:
        parent.metrics, parent.metrics_ms = earlier.metrics, earlier.metrics_ms
        parent.started_ms, parent.ended_ms = earlier.started_ms, earlier.ended_ms
        name = name or earlier.tags.get(_NAME, "")
    parent.started_ms = parent.started_ms or _now_ms()
    name = name or os.environ.get("DVC_EXP_NAME", "")  # in an experiment of DVC
    parent.name = run_label(key, name)
    if name:
        parent.tags[_NAME] = name
    _current = tracking = Tracking(folder, parent, tags | standard_tags(project, "cloze run"))
    forwarder = Forwarder(project.tracking_uri, project.mlflow_home, folder)
    forwarder.start()
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
    with working("sending the last records to MLflow"):
        num_left = forwarder.drain()
    Spool.tidy(project.runs / "tracking")
    if num_left:
        warn(
            f"cloze: MLflow at {_shown(project.tracking_uri)} did not accept {num_left} records"
            f"{forwarder.reason}; the next run sends them"
        )


def _shown(tracking_uri: str) -> str:
    return tracking_uri.rpartition("@")[2]  # without a password


def flatten(values: Any, prefix: str = "") -> dict[str, str]:
    """Flatten a tree of settings to `a.b.c` → text of at most 500 characters (MLflow's limit), with secrets
    redacted."""
    if isinstance(values, Mapping):
        parts = [flatten(value, f"{prefix}{name}.") for name, value in values.items()]
        return {name: value for part in parts for name, value in part.items()}
    return {prefix.rstrip("."): redacted(str(values))[:500]}


def _now_ms() -> int:
    return int(time.time() * 1000)
