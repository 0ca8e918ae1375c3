"""A finished run is registered, promoted, handed on; what was damaged is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

from model.benchmarks.table import BENCHMARKS
from model.weights import load_encoder
from tests.flows.clone import Clone
from tests.tasks.registry.registered import flip

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pipeline")]


def test_a_finished_run_becomes_champion_and_is_handed_on(finished: Clone, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    clone = finished.copy(tmp_path / "project")
    assert "none yet" in clone.run("cloze", "champion")
    assert "FAIL  no degenerate task: every run gave one answer" in clone.run("cloze", "promote", code=1)
    clone.params(lambda content: content.update(promotion={"may_be_degenerate": list(BENCHMARKS), "margin": 100}))
    verdict, _ = json.JSONDecoder().raw_decode(clone.run("cloze", "promote", "--json"))
    assert verdict["promoted"] and verdict["rules"][-1]["reason"] == "nothing is missing"
    assert "the champion already" in clone.run("cloze", "promote")
    assert "version 1" in clone.run("cloze", "champion").splitlines()[0]

    clone.run("cloze", "export", "pretrained", "out")
    clone.run("cloze", "export", "champion", "again")
    clone.run("cloze", "export", "rte", "fine", "--encoder", "pretrained")
    out = clone.root / "out"
    assert (out / "model.safetensors").read_bytes() == (clone.root / "again" / "model.safetensors").read_bytes()
    card = (out / "README.md").read_text()
    assert "Apache-2.0" in card and "## Limits" in card and "build/pretrain" in card
    assert yaml.safe_load(card.split("---\n")[1])["library_name"] == "transformers"
    ids = torch.tensor([[2, 50, 60, 70, 3]])
    with torch.no_grad():
        theirs = transformers.AutoModel.from_pretrained(out).eval()(input_ids=ids).last_hidden_state
        torch.testing.assert_close(theirs, load_encoder(out)(ids).last_hidden_state, atol=1e-5, rtol=0)
    fine = transformers.AutoModelForSequenceClassification.from_pretrained(clone.root / "fine")
    assert set(fine.config.id2label.values()) == {"entailment", "not_entailment"}

    said = clone.run("cloze", "promote", "scratch")
    assert "comparable: the same" in said and "scratch (version 2 of cloze-encoder): promoted" in said
    assert "version 2" in clone.run("cloze", "champion").splitlines()[0]
    assert "champion: version 1" in clone.run("cloze", "rollback", "--reason", "a test")
    assert "no champion before it" in clone.run("cloze", "rollback", "--reason", "a test", code=2)
    assert "rolled back" in clone.run("cloze", "champion").splitlines()[-1]

    flip(clone.root / "build" / "pretrain" / "pretrained" / "model.safetensors")
    said = clone.run("cloze", "export", "pretrained", "other", code=2)
    assert "build/pretrain/pretrained/model.safetensors: its MD5 is" in said and "Traceback" not in said
    assert not (clone.root / "other").exists()
    said = clone.run("cloze", "promote", code=2)
    assert "build/pretrain/pretrained/model.safetensors" in said
