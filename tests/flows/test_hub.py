"""A model of a hub is fetched, competes in a run, and encoders are published, with a server in place of the hub."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from model.formats.hf_folder import load_encoder
from tasks.params.fetch import MODEL_FILES
from tests.flows.clone import Clone
from tests.hub import COMMIT, TOKEN, Hub

pytestmark = [pytest.mark.slow]
TRANSFORMERS = """
import json, sys, torch
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained(sys.argv[1]).eval()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
with torch.no_grad():
    outputs = model(**tokenizer("the garden of the museum", return_tensors="pt")).last_hidden_state
print(json.dumps({"ids": tokenizer("the garden of the museum").input_ids, "outputs": outputs.tolist()}))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture
def clone(served: Clone, tmp_path: Path, hub: Hub) -> Clone:
    clone = served.copy(tmp_path / "project")
    hf = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN_PATH": str(tmp_path / "token")}
    clone.environment = {name: value for name, value in clone.environment.items() if not name.startswith("HF_")} | hf
    return clone


def test_a_model_of_the_hub_competes(clone: Clone, hub: Hub) -> None:
    folder = clone.root / "build" / "pretrain" / "pretrained"
    files = {name: (folder / name).read_bytes() for name in MODEL_FILES if (folder / name).exists()}
    repository = hub.add("someone/tiny", files, "model")
    source = {"name": "tiny", "kind": "model", "repo": "someone/tiny", "revision": COMMIT, "to": "encoders/tiny"}
    clone.params(lambda content: content.update(fetch={"sources": [source]}))
    clone.params(lambda content: content["finetune"].update(encoders=[{"name": "other", "path": "encoders/tiny"}]))
    assert "data/encoders/tiny is not a directory; run `cloze fetch`" in clone.run("cloze", "run", code=2)
    assert not hub.requests
    plan = clone.run("cloze", "fetch", "--dry-run")
    assert plan == f"tiny: model, hub:someone/tiny, revision {COMMIT}, to data/encoders/tiny\n" and not hub.requests
    assert "cloze run --accept-data" in clone.run("cloze", "fetch")
    assert "other has the same files as pretrained" in clone.run("cloze", "run", "--accept-data", code=2)

    weights = load(files["model.safetensors"])
    weights["bert.embeddings.LayerNorm.bias"] += 0.01
    repository.files["model.safetensors"] = save(weights)
    repository.commit = source["revision"] = "f" * 40
    clone.params(lambda content: content.update(fetch={"sources": [source]}))
    clone.run("cloze", "fetch")
    clone.run("cloze", "run", "--accept-data")
    systems = {system["name"]: system for system in clone.board()["systems"]}
    assert systems["other"]["kind"] == "external"
    assert systems["other"]["average"] is not None
    assert "up to date" in clone.run("cloze", "run")


def test_push(clone: Clone, hub: Hub) -> None:
    name = "someone/encoder"
    for words, message in (
        (["pretrained", name], "no token for the hub; set HF_TOKEN"),
        (["nothing", name, "--dry-run"], "no encoder 'nothing'"),
        (["pretrained", "../encoder"], "expected a repository such as"),
    ):
        assert message in clone.run("cloze", "push", *words, code=2)
    planned = clone.run("cloze", "push", "pretrained", name, "--dry-run")
    assert re.search(r"^model.safetensors  [\d,]+ bytes$", planned, re.M) and not hub.requests

    clone.environment["HF_TOKEN"] = "another"
    assert "the token may not write there" in clone.run("cloze", "push", "pretrained", name, code=2)
    clone.environment["HF_TOKEN"] = TOKEN
    pushed = clone.run("cloze", "push", "pretrained", name, "--private")
    repository = hub.repositories["model", name]
    assert f"{hub.url}/{name}/commit/{repository.commit}" in pushed and repository.is_private
    folder = clone.root / "build" / "pretrain" / "pretrained"
    assert repository.files["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    card = repository.files["README.md"].decode()
    assert f'AutoModel.from_pretrained("{name}")' in card.replace("AutoModelForPreTraining", "AutoModel")
    assert "library_name: transformers" in card

    before = repository.commit
    clone.run("cloze", "push", "pretrained", name)
    assert repository.commit == before, "an unchanged encoder makes no commit"
    clone.run("cloze", "push", "rte", name)
    assert repository.commit != before and "head.json" in repository.files

    clone.run("cloze", "push", "pretrained", name)
    assert "head.json" not in repository.files, "files of the former model are removed"
    said = clone.run(sys.executable, "-c", TRANSFORMERS, name)
    [loaded] = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    with torch.no_grad():
        expected = load_encoder(folder)(torch.tensor([loaded["ids"]]))[0].numpy()
    np.testing.assert_allclose(np.array(loaded["outputs"]), expected, atol=1e-5)
    hub.close()
    assert "the connection failed" in clone.run("cloze", "push", "pretrained", name, code=75)
