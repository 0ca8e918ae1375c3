"""Runs that other machines recorded: their records lie with the pipelines' runs in MLflow."""

from __future__ import annotations

import tempfile
from pathlib import Path

from model.common.errors import UserError
from model.common.files import write_json
from model.common.redaction import redacted
from tasks.leaderboard.history import read_record
from tasks.tracking.forward import EXPERIMENT

_ARTIFACT = "leaderboard/record.json"


def take_records(tracking_uri: str, home: Path) -> int:
    """Copy the records that MLflow at `tracking_uri` has and `home` has not; returns how many there were.

    Raises:
        UserError: MLflow cannot be reached, or a record is not one.
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
        line = redacted(str(error)).splitlines()[0][:200]  # cut first, half a password would be no longer known
        raise UserError(f"MLflow at {tracking_uri.split('@')[-1]}: {line}; is the server up?") from None
    return num_taken


def _take(client: object, run_id: str, home: Path) -> bool:
    """Copy one run's record; False where it has none or it is known."""
    from mlflow.tracking import MlflowClient

    assert isinstance(client, MlflowClient)
    if not any(entry.path == _ARTIFACT for entry in client.list_artifacts(run_id, "leaderboard")):
        return False
    with tempfile.TemporaryDirectory() as folder:
        record = read_record(Path(client.download_artifacts(run_id, _ARTIFACT, folder)))
    path = home / record.digest / "record.json"
    if path.exists():
        return False
    write_json(path, record.model_dump(mode="json"))
    return True
