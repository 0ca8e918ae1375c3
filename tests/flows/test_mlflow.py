"""A whole run in MLflow: models, predictions, the files of DVC and its digests are in the runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tasks.dvc.integrity import listing_md5
from tests.flows.clone import Clone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def runs_of(clone: Clone) -> tuple[Any, list[Any]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{clone.root}/.cloze/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("cloze")
    return client, list(client.search_runs([experiment.experiment_id], max_results=1000))


def folder_of(run: Any) -> Path:
    return Path(run.info.artifact_uri.removeprefix("file://"))


def test_a_run_in_mlflow(finished: Clone, tmp_path: Path) -> None:
    import mlflow.pyfunc
    import pandas

    clone = finished.copy(tmp_path / "clone")
    clone.params(lambda content: content["leaderboard"].update(notes=["another run of the same jobs"]))
    clone.params(lambda content: content.update(tracking={"weights": "all"}))
    clone.run("cloze", "run")
    client, runs = runs_of(clone)
    latest, first = [run for run in runs if run.data.tags.get("cloze.kind") == "pipeline"]
    jobs = {run.info.run_name: run for run in runs if run.data.tags["cloze.run"] == first.data.tags["cloze.run"]}
    assert not any(run.data.tags.get("mlflow.parentRunId") == latest.info.run_id for run in runs), "nothing was trained"

    lock = yaml.safe_load((clone.root / "dvc.lock").read_text())
    for stage, recorded in lock["stages"].items():
        [output] = recorded["outs"]
        published = json.loads((clone.root / "build" / "runs" / "published" / f"{stage}.json").read_text())
        assert listing_md5(published["now"]) == output["md5"]
        assert latest.data.tags[f"cloze.dvc.build/{stage}"] == output["md5"]
    for name in ("dvc.lock", "dvc.yaml", "data.dvc", "params.yaml"):
        assert (folder_of(latest) / "dvc" / name).read_bytes() == (clone.root / name).read_bytes()
    assert (folder_of(latest) / "leaderboard" / "leaderboard.html").is_file()

    encoder = folder_of(jobs["pretrain/pretrained"]) / "model"
    [md5] = [
        file["md5"]
        for path in (clone.root / ".dvc" / "cache" / "files").rglob("*.dir")
        for file in json.loads(path.read_text())
        if file["relpath"] == "pretrained/model.safetensors"
    ]
    cached = clone.root / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]
    weights = encoder / "model.safetensors"
    assert weights.read_bytes() == cached.read_bytes()

    finetuned = jobs["pretrained/rte/seed=1"]
    assert (folder_of(finetuned) / "model" / "model.safetensors").samefile(
        next(
            path
            for path in (clone.root / ".dvc" / "cache" / "files").rglob("*")
            if path.is_file() and path.samefile(folder_of(finetuned) / "model" / "model.safetensors")
        )
    )
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(client.tracking_uri)
    try:
        embedder = mlflow.pyfunc.load_model(f"runs:/{jobs['pretrain/pretrained'].info.run_id}/model")
        classifier = mlflow.pyfunc.load_model(f"runs:/{finetuned.info.run_id}/model")
    finally:
        mlflow.set_tracking_uri(before)
    row = {"sentence1": "A cat sat.", "sentence2": "A cat sat down."}
    (clone.root / "texts.txt").write_text("A cat sat.\n")
    (clone.root / "rows.jsonl").write_text(json.dumps(row) + "\n")
    clone.run("cloze", "embed", "texts.txt", "--encoder", "pretrained", "-o", "vectors.npy")
    clone.run("cloze", "predict", "rte", "rows.jsonl", "--encoder", "pretrained", "-o", "answers.jsonl")
    vectors = embedder.predict(pandas.DataFrame({"text": ["A cat sat."]}))
    np.testing.assert_array_equal(vectors, np.load(clone.root / "vectors.npy"))
    [answer] = classifier.predict(pandas.DataFrame([row])).to_dict("records")
    assert answer == json.loads((clone.root / "answers.jsonl").read_text())

    for run in runs:
        assert run.data.tags["mlflow.note.content"] and run.data.tags["mlflow.source.git.commit"]
        assert run.inputs.dataset_inputs
    assert not [path for path in (clone.root / "build" / "runs" / "tracking" / "files").rglob("*") if path.is_file()]
