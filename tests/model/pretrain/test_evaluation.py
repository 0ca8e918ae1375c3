"""Probes: they see what frozen features tell, leave the encoder and its training alone, and go to the journal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model.common.errors import UserError
from model.common.metrics_log import read_metrics
from model.common.state_files import read_state
from model.config.pretraining import ProbeSettings
from model.formats.hf_folder import load_encoder
from model.pretrain.evaluation import Probes
from model.tokenizer.wordpiece import load_tokenizer
from tests.model.pretraining import MakeRun, outputs, train


def probes(encoder_dir: Path, data_dir: Path, *benchmarks: str) -> Probes:
    settings = ProbeSettings(benchmarks=list(benchmarks), max_rows=240)
    return Probes(settings, data_dir, load_tokenizer(encoder_dir), 64)


def test_what_the_words_tell_is_found(small_encoder: Path, small_data: Path) -> None:
    encoder = load_encoder(small_encoder).train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    one = probes(small_encoder, small_data, "sst2", "stsb")
    found = one.run(encoder)
    # One word of six decides SST-2's label; STS-B's score is a sum of two such. Chance is 50 and 0.
    assert found["sst2_accuracy"] > 90 and found["stsb_spearman"] > 80
    assert one.run(encoder) == found
    assert encoder.training and all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_benchmarks_without_a_label_for_the_text_are_refused(small_encoder: Path, small_data: Path) -> None:
    with pytest.raises(UserError, match="swag has no label for a whole text"):
        probes(small_encoder, small_data, "swag")


def test_training_is_the_same_with_probes(make_run: MakeRun, small_data: Path) -> None:
    plain, probed = make_run("plain"), make_run("probed", probes={"benchmarks": ["sst2"], "every_steps": 10})
    probed = probed.model_copy(update={"data_dir": small_data})
    train(plain)
    train(probed)
    entries = [entry for entry, _ in read_metrics(probed.run_dir / "journal.jsonl") if entry["stream"] == "probe"]
    assert [entry["step"] for entry in entries] == [10, 20, 24]
    assert all(0 <= entry["metrics"]["probe/sst2_accuracy"] <= 100 for entry in entries)
    assert outputs(probed) == outputs(plain)
    assert "probe" not in str(read_state(probed.run_dir / "result.json"))
    with pytest.raises(UserError, match="they need the benchmarks' data"):
        train(make_run("lost", probes={"benchmarks": ["sst2"]}))
