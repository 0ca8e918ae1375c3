"""A finished run is registered, promoted and exported through an MLflow server; damaged files are refused by name."""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from model.benchmarks.table import BENCHMARKS
from model.config.hardware import HardwareOptions
from model.formats.hf_folder import load_encoder
from model.inference.predictor import load_finetuned
from tests.flows.clone import Clone
from tests.servers import Server, free_port
from tests.tasks.registry.registered import flip

pytestmark = [pytest.mark.slow]


@pytest.fixture
def clone(finished: Clone, tmp_path: Path) -> Clone:
    """A finished run whose parameters let small models pass the gate."""
    clone = finished.copy(tmp_path / "project")
    clone.params(lambda content: content.update(promotion={"may_be_degenerate": list(BENCHMARKS), "margin": 100}))
    return clone


@pytest.fixture
def mlflow(clone: Clone, tmp_path: Path) -> Iterator[Path]:
    """Directory of the artifacts of an MLflow server that stores them itself."""
    port, kept = free_port(), tmp_path / "kept"
    command = [sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", f"--port={port}", "--workers=1"]
    command += [f"--backend-store-uri=sqlite:///{tmp_path}/mlflow.db", f"--artifacts-destination={kept}"]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    server = Server([*command, "--serve-artifacts"], port, tmp_path / "mlflow.log", quiet)
    server.start()
    clone.environment["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{port}"
    yield kept
    server.end()


def test_a_finished_run_becomes_champion_and_is_exported(clone: Clone, mlflow: Path) -> None:
    said = clone.run_all(
        ["champion"],
        ["promote", "--json"],
        ["promote"],
        ["promote", "pretrained@pipeline"],
        ["promote", "nothing"],
        ["export", "pretrained", "out", "--onnx", "--fill-mask"],
        ["export", "best", "again"],
        ["export", "champion", "rte", "--task", "rte", "--onnx"],
        ["promote", "scratch"],
        ["champion"],
        ["rollback", "--reason", "a test"],
        ["rollback", "--reason", "a test"],
        ["champion", "--json"],
    )
    assert [code for code, _ in said] == [0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 2, 0], said
    none, promoted, again, by_run, nothing, _, _, _, scratch, second, back, no_more, history = [
        text for _, text in said
    ]
    assert "none yet" in none
    verdict, _ = json.JSONDecoder().raw_decode(promoted[promoted.index("{") :])  # below the progress
    assert verdict["promoted"] and verdict["rules"][-1]["reason"] == "nothing is missing"
    assert "already the champion" in again and "already the champion" in by_run
    assert "no encoder 'nothing'" in nothing and "no run 'nothing' is recorded; available: pipeline-" in nothing
    now = r"scratch@[0-9a-f]{8} \(version 2 of cloze-encoder\) is now the champion\n"
    assert re.search(now, scratch) and "comparable: the same" in scratch
    assert "version 2" in second.splitlines()[0]
    assert "(version 1 of cloze-encoder) is the champion again" in back and "no champion before it" in no_more
    content = json.loads(history)
    assert content["champion"]["version"] == 1
    assert [event["act"] for event in content["history"]] == ["promoted", "promoted", "rolled back"]
    assert list(mlflow.rglob("encoder/model.safetensors")), "artifacts went through the server"
    assert not list((clone.root / ".cloze").rglob("*/registry/*")), "nothing is left of what was laid out"
    _the_encoder_is_the_same_everywhere(clone.root)
    _the_fine_tuned_model_is_the_same_everywhere(clone.root / "rte")

    _mlflow_answers_like_the_command_line(clone)
    for path in mlflow.rglob("*"):
        assert not path.is_file() or not _may_be_pickle(path.read_bytes()), path

    flip(clone.root / "build" / "pretrain" / "pretrained" / "model.safetensors")
    for code, text in clone.run_all(["export", "pretrained", "other"], ["promote"]):
        assert code == 2 and "build/pretrain/pretrained/model.safetensors: its MD5 is" in text
    assert not (clone.root / "other").exists()


def _may_be_pickle(content: bytes) -> bool:
    is_pickle = content[:1] == b"\x80" and content[1:2] in b"\x02\x03\x04\x05" and content.endswith(b".")
    return is_pickle or content.startswith(b"PK\x03\x04")  # torch and joblib write zip files


def _mlflow_answers_like_the_command_line(clone: Clone) -> None:
    import mlflow.pyfunc
    import pandas

    rows = [{"sentence1": f"The {number}th cat sat.", "sentence2": "A cat sat."} for number in range(1000)]
    texts = [row["sentence1"] for row in rows]
    (clone.root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (clone.root / "texts.txt").write_text("".join(text + "\n" for text in texts))
    clone.run("cloze", "predict", "rte", "rows.jsonl", "--model", "rte", "-o", "answers.jsonl")
    clone.run("cloze", "embed", "texts.txt", "--encoder", "out", "-o", "vectors.npy")
    expected = [json.loads(line) for line in (clone.root / "answers.jsonl").read_text().splitlines()]

    before, uri = mlflow.get_tracking_uri(), clone.environment["MLFLOW_TRACKING_URI"]
    mlflow.set_tracking_uri(uri)
    try:
        model = mlflow.pyfunc.load_model("models:/cloze-rte@champion")
        encoder = mlflow.pyfunc.load_model("models:/cloze-encoder@champion")
        example = model.metadata.load_input_example()
    finally:
        mlflow.set_tracking_uri(before)
    assert model.predict(pandas.DataFrame(rows)).to_dict("records") == expected
    vectors = encoder.predict(pandas.DataFrame({"text": texts}))
    np.testing.assert_array_equal(vectors, np.load(clone.root / "vectors.npy"))
    signature = model.metadata.signature
    assert signature.inputs.input_names() == list(example) == ["sentence1", "sentence2"]
    assert signature.outputs.input_names() == list(expected[0])
    with pytest.raises(mlflow.MlflowException, match="sentence2"):
        model.predict(pandas.DataFrame({"sentence1": ["no second one"]}))

    command = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri=models:/cloze-rte@champion"]
    port = free_port()
    bin_dir = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # MLflow starts uvicorn by its name
    server = Server(
        [*command, "--env-manager=local", f"--port={port}"],
        port,
        clone.root / "serve.log",
        {**clone.environment, "PATH": bin_dir},
    )
    server.start()
    try:
        body = json.dumps({"dataframe_records": rows[:3]}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["predictions"] == expected[:3]
    finally:
        server.end()


IDS = np.array([[2, 50, 60, 70, 3], [2, 80, 3, 0, 0]])
GIVEN = {"input_ids": IDS, "attention_mask": (IDS != 0).astype(np.int64), "token_type_ids": np.zeros_like(IDS)}
TENSORS = {name: torch.from_numpy(values) for name, values in GIVEN.items()}


def _the_encoder_is_the_same_everywhere(root: Path) -> None:
    import onnxruntime
    import transformers

    out = root / "out"
    assert (out / "model.safetensors").read_bytes() == (root / "again" / "model.safetensors").read_bytes()
    card = (out / "README.md").read_text()
    assert "Apache-2.0" in card and "## Limits" in card and "build/pretrain" in card
    assert yaml.safe_load(card.split("---\n")[1])["library_name"] == "transformers"
    with torch.no_grad():
        ours = load_encoder(out)(TENSORS["input_ids"], TENSORS["token_type_ids"], TENSORS["attention_mask"])
        model = transformers.AutoModelForPreTraining.from_pretrained(out).eval()
        theirs, masked = transformers.AutoModel.from_pretrained(out).eval()(**TENSORS), model(**TENSORS)
    sessions = [onnxruntime.InferenceSession(out / name) for name in ("model.onnx", "fill_mask.onnx")]
    runtime = sessions[0].run(["last_hidden_state", "pooler_output"], GIVEN)
    for one, other, third in zip(ours, (theirs.last_hidden_state, theirs.pooler_output), runtime):
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=1e-5)
        np.testing.assert_allclose(third, one.numpy(), atol=1e-4)
    np.testing.assert_allclose(sessions[1].run(["logits"], GIVEN)[0], masked.prediction_logits.numpy(), atol=1e-4)


def _the_fine_tuned_model_is_the_same_everywhere(folder: Path) -> None:
    import onnxruntime
    import transformers

    fine = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [["The cat sat.", "A cat sat."], ["It rains.", "It is dry, and has been for some days."]]
    given = tokenizer(*map(list, zip(*rows)), padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = fine(**given).logits
    labels = [fine.config.id2label[place] for place in range(2)]
    machine = HardwareOptions(accelerator="cpu", precision="fp32", num_threads=0)
    for row, expected in zip(load_finetuned(folder, machine=machine).predict(rows), theirs.softmax(-1)):
        assert [row["probabilities"][label] for label in labels] == pytest.approx(expected.tolist(), abs=1e-5)
    given = {name: values.numpy() for name, values in given.items()}
    [logits] = onnxruntime.InferenceSession(folder / "model.onnx").run(["logits"], given)
    np.testing.assert_allclose(logits, theirs.numpy(), atol=1e-4)
