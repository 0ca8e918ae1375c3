"""MLflow with its artifacts on S3: the server holds the keys, clients go through it and need none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.project.project import Project
from tasks.project.stage_versions import write_versions
from tasks.tracking import tracking
from tests.s3 import KEY, S3, SECRET

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    server = S3("artifacts")
    yield server
    server.close()


@pytest.fixture
def server(s3: S3, tmp_path: Path) -> Iterator[str]:
    """A real MLflow server on SQLite and S3; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db"]
    command += ["--artifacts-destination", "s3://artifacts/mlflow"]
    environment = {**os.environ, **s3.environment(tmp_path), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment |= {"MLFLOW_DISABLE_TELEMETRY": "true"}
    log = tmp_path / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=2):
                    break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.2)
        yield url
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)
    content = log.read_text()
    assert SECRET not in content and KEY not in content


def test_artifacts_go_through_the_server(server: str, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    folder = tmp_path / "project"
    folder.mkdir()
    write_versions(folder)
    artifact = folder / "predictions.jsonl"
    artifact.write_text('{"id": 1}\n')
    secret = "postgresql://ann:PLANTEDpassword@host/db"
    with tracking.session(Project(folder, folder), {"note": secret}, "data1") as tracker:
        tracker.begin("job1", "a job", {"cloze.note": secret}, {"from": secret}, folder / "none.jsonl")
        tracker.end("job1", "FINISHED", {"dev/f1": 50.0}, [(artifact, "predictions")])

    import mlflow
    from mlflow.tracking import MlflowClient

    client = MlflowClient(server)
    [experiment] = [one for one in client.search_experiments() if one.name == "cloze"]
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    run = runs["a job"]
    assert run.info.artifact_uri.startswith("mlflow-artifacts:/")
    assert len(s3.names(r"mlflow/.*/predictions/predictions\.jsonl")) == 1
    found = mlflow.artifacts.download_artifacts(
        run_id=run.info.run_id, artifact_path="predictions/predictions.jsonl", tracking_uri=server
    )
    assert Path(found).read_text() == '{"id": 1}\n'
    assert run.data.params["from"] == "postgresql://***@host/db"
    assert b"PLANTEDpassword" not in (tmp_path / "mlflow.db").read_bytes()
    for path in (folder / "build").rglob("*"):
        assert not path.is_file() or b"PLANTEDpassword" not in path.read_bytes(), path
