"""What is exported loads in `transformers` and in onnxruntime, with the outputs that it has here."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from model.benchmarks.table import BENCHMARKS
from model.common.digests import check_digests
from model.common.errors import UserError
from model.common.files import read_json, write_json
from model.encoder.encoder import Encoder
from model.formats.hf_folder import load_encoder, load_masked_head, save_encoder
from tasks.dvc.integrity import check_recorded
from tasks.project.project import Project
from tasks.registry.artifacts import export_folder
from tests.tasks.registry.registered import flip, save_tiny

IDS = torch.tensor([[2, 7, 9, 11, 3], [2, 8, 3, 0, 0]])
MASK = (IDS != 0).long()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """build/pretrain with an encoder as a run leaves it."""
    folder = tmp_path_factory.mktemp("pretrain")
    save_tiny(folder / "tiny")
    (folder / "tiny" / "metrics.json").write_text("{}")
    (folder / "tiny" / "checkpoint").mkdir()
    (folder / "tiny" / "checkpoint" / "state.pt").write_text("state")
    return folder


def ours(encoder: Encoder) -> list[np.ndarray]:
    with torch.no_grad():
        return [values.numpy() for values in encoder(IDS, None, MASK)]


def test_transformers_reads_an_export(published: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "out"
    assert export_folder(published / "tiny", out, lambda folder: f"# {len(list(folder.iterdir()))} files") == {}
    assert not (out / "checkpoint").exists() and not (out / "metrics.json").exists()
    assert (out / "README.md").read_text() == "# 6 files"
    theirs = transformers.AutoModel.from_pretrained(out).eval()
    with torch.no_grad():
        found = theirs(input_ids=IDS, attention_mask=MASK)
    for one, other in zip(ours(load_encoder(out)), (found.last_hidden_state, found.pooler_output)):
        np.testing.assert_allclose(one, other.numpy(), atol=1e-5)
    whole = transformers.AutoModelForPreTraining.from_pretrained(out)
    assert whole.cls.predictions.bias.shape == (theirs.config.vocab_size,), "the heads of pre-training are there"
    assert transformers.AutoTokenizer.from_pretrained(out)("abc").input_ids[0] == 2
    with pytest.raises(UserError, match="is not empty"):
        export_folder(published / "tiny", out)


def test_a_flipped_bit_in_an_export_is_refused(published: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_folder(published / "tiny", out)
    flip(out / "model.safetensors")
    for act in (check_digests, load_encoder, lambda folder: export_folder(folder, tmp_path / "other")):
        with pytest.raises(UserError, match=r"model\.safetensors: its SHA-256 is"):
            act(out)
    assert not (tmp_path / "other").exists() and not list(tmp_path.glob(".*partial"))


@pytest.mark.slow
def test_a_flipped_bit_in_a_published_encoder_is_refused(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dvc.repo import Repo

    project = Project(tmp_path, tmp_path)
    shutil.copytree(published, project.build / "pretrain")
    assert not check_recorded(project, "build/pretrain", "tiny"), "DVC has no record"
    monkeypatch.chdir(tmp_path)
    repo = Repo.init(str(tmp_path), no_scm=True)
    [stage] = repo.add(["build/pretrain"])
    entry = f"{{path: build/pretrain, md5: {stage.outs[0].hash_info.value}}}"
    repo.close()
    (tmp_path / "dvc.lock").write_text(f"stages: {{pretrain: {{outs: [{entry}]}}}}\n")
    assert check_recorded(project, "build/pretrain", "tiny")
    path = project.build / "pretrain" / "tiny" / "model.safetensors"
    flip(path)
    with pytest.raises(UserError, match=r"build/pretrain/tiny/model\.safetensors: its MD5 is .*dvc checkout"):
        check_recorded(project, "build/pretrain", "tiny")
    path.unlink()
    with pytest.raises(UserError, match=r"model\.safetensors: missing, though dvc\.lock names it"):
        check_recorded(project, "build/pretrain", "tiny")


def test_onnx_says_what_we_say(published: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    out = tmp_path / "out"
    differences = export_folder(published / "tiny", out, onnx=True, fill_mask=True)
    assert set(differences) == {"model.onnx", "fill_mask.onnx"} and max(differences.values()) <= 1e-4
    check_digests(out)
    session = runtime.InferenceSession(str(out / "model.onnx"), providers=["CPUExecutionProvider"])
    given = {"input_ids": IDS.numpy(), "attention_mask": MASK.numpy(), "token_type_ids": np.zeros_like(IDS.numpy())}
    for one, other in zip(session.run(["last_hidden_state", "pooler_output"], given), ours(load_encoder(out))):
        np.testing.assert_allclose(one, other, atol=1e-4)
    session = runtime.InferenceSession(str(out / "fill_mask.onnx"), providers=["CPUExecutionProvider"])
    [logits] = session.run(None, given)
    with torch.no_grad():
        expected = load_masked_head(out, load_encoder(out).config)(
            load_encoder(out)(IDS, None, MASK).last_hidden_state, load_encoder(out).embeddings.token.weight
        )
    np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)


def test_an_export_of_an_encoder_without_pooler_has_no_pooler_output(published: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    encoder = load_encoder(published / "tiny")
    save_encoder(encoder, tmp_path / "encoder", has_pooler=False)
    export_folder(tmp_path / "encoder", tmp_path / "out", onnx=True)
    session = runtime.InferenceSession(str(tmp_path / "out" / "model.onnx"), providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["last_hidden_state"]
    with pytest.raises(UserError, match="no masked language modeling head"):
        export_folder(tmp_path / "encoder", tmp_path / "filled", fill_mask=True)


def test_a_fine_tuned_model_fills_no_masks(published: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    shutil.copytree(published / "tiny", tmp_path / "fine")
    (tmp_path / "fine" / "head.json").write_text("{}")
    with pytest.raises(UserError, match="--fill-mask needs an encoder"):
        export_folder(tmp_path / "fine", tmp_path / "out", fill_mask=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fine"]


def test_an_exported_classifier_names_its_labels(published: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(published / "tiny", model)
    row = BENCHMARKS["sst2"]
    write_json(model / "head.json", {"benchmark": "sst2", "row": row.model_dump(), "recipe": {}})
    config = read_json(model / "config.json") | {"id2label": {"0": "0", "1": "1"}, "label2id": {"0": 0, "1": 1}}
    write_json(model / "config.json", config)
    export_folder(model, tmp_path / "out")
    found = read_json(tmp_path / "out" / "config.json")
    assert found.pop("id2label") == {"0": "negative", "1": "positive"}
    assert found.pop("label2id") == {"negative": 0, "positive": 1}
    assert found == {key: value for key, value in config.items() if not key.endswith(("2label", "2id"))}
    assert read_json(model / "config.json") == config, "the published model is unchanged"
    check_digests(tmp_path / "out")
    write_json(model / "head.json", {"benchmark": "rte", "recipe": {}})  # as older versions wrote it
    export_folder(model, tmp_path / "words")
    assert read_json(tmp_path / "words" / "config.json") == config, "labels that are words stay"
