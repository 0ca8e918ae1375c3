"""Runs that continue from a checkpoint: what they take over, what they measure first, and that they resume exactly."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from model.common.errors import Paused
from model.common.files import read_json
from model.config.pretraining import PretrainRun
from model.data.token_store import HELDOUT, TokenStore, TokenStoreWriter
from model.formats.hf_folder import load_config, load_encoder, load_heads
from model.pretrain.training import Pretraining
from tests.model.pretraining import MakeRun, journal_steps, outputs, result_of, train

FIRST = [{"sequence_length": 32, "batch_size": 16, "num_steps": 12, "learning_rate": 3e-3}]


@pytest.fixture
def checkpoint(make_run: MakeRun) -> Path:
    """A trained BertForPreTraining."""
    run = make_run("first", phases=FIRST)
    train(run)
    return run.run_dir / "encoder"


def continued(run: PretrainRun, checkpoint: Path) -> PretrainRun:
    start = {"name": "encoders/first", "directory": checkpoint, "digest": "d", "config": load_config(checkpoint)}
    return PretrainRun.parse({**run.model_dump(), "start": start}, "test")


def test_weights_and_heads_are_those_of_the_checkpoint(make_run: MakeRun, checkpoint: Path) -> None:
    module = Pretraining(continued(make_run(seed=5), checkpoint), None, lambda: False).module
    encoder, heads = load_encoder(checkpoint), load_heads(checkpoint, load_config(checkpoint))
    for ours, theirs in ((module.encoder, encoder), (module.masked, heads[0]), (module.next_sentence, heads[1])):
        for name, tensor in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[name], tensor), name


def test_the_first_validation_is_the_checkpoint_s_last(make_run: MakeRun, checkpoint: Path) -> None:
    run = continued(make_run(), checkpoint)
    train(run)
    result, first = result_of(run), result_of(make_run("first"))
    assert [entry["step"] for entry in result["heldout"]] == [0, 12, 24] == journal_steps(run, "heldout")
    assert {**result["heldout"][0], "step": 12} == first["heldout"][-1]
    assert result["start"] == {"from": "encoders/first", "digest": "d", "initialized": []}


@pytest.mark.parametrize(
    ("given", "wanted", "initialized"),
    [
        ("next_sentence", "sentence_order", ["sentence order head"]),
        ("none", "next_sentence", ["pooler", "next sentence head"]),
        ("sentence_order", "none", []),
    ],
)
def test_parts_that_the_checkpoint_lacks_are_named(
    make_run: MakeRun, given: str, wanted: str, initialized: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    first = make_run("first", phases=FIRST, sentence_objective=given)
    train(first)
    run = continued(make_run(sentence_objective=wanted, validation_batches=0), first.run_dir / "encoder")
    train(run)
    assert result_of(run)["start"]["initialized"] == initialized
    assert ("not in the checkpoint" in capsys.readouterr().out) == bool(initialized)


def test_a_continued_run_resumes_exactly(make_run: MakeRun, checkpoint: Path) -> None:
    whole, stopped = (continued(make_run(name), checkpoint) for name in ("whole", "stopped"))
    train(whole)
    with pytest.raises(Paused):
        train(stopped, 13)
    train(stopped)
    assert outputs(stopped) == outputs(whole)


def test_text_of_other_sources_is_measured_and_not_trained_on(
    make_run: MakeRun, checkpoint: Path, text_dir: Path, tmp_path: Path
) -> None:
    """The general text has words that the domain lacks, so its loss rises while the domain's falls."""
    train_part, index = TokenStore.open(text_dir / "tokens"), read_json(text_dir / "tokens" / "index.json")

    def write(folder: Path, **more: Any) -> PretrainRun:
        digest = index["tokenizer_digest"]
        writer = TokenStoreWriter(folder, index["vocab_size"], tokenizer_digest=digest, **more)
        for number in range(60):
            sentence = 5 + (torch.arange(8) * (number + 1)).numpy() % 12
            writer.add_document([sentence] * 6, HELDOUT if number < 10 else "train")
        if more:
            for first, last in zip(train_part.document_offsets[:20], train_part.document_offsets[1:21]):
                spans = train_part.sentence_offsets[first : last + 1]
                sentences = [train_part.tokens[begin:end] for begin, end in itertools.pairwise(spans)]
                writer.add_document(sentences, "heldout-general")
        writer.close()
        run = continued(make_run(folder.name, validate_every_steps=6), checkpoint)
        return run.model_copy(update={"tokens_dir": folder})

    alone, measured = write(tmp_path / "alone-tokens"), write(tmp_path / "tokens-both", heldout_sources=["general"])
    for run in (alone, measured):
        train(run)
    result = result_of(measured)
    domain, general = result["heldout"], result["heldout_sources"]["heldout-general"]
    assert [entry["step"] for entry in general] == [0, 6, 12, 18, 24] == journal_steps(measured, "heldout-general")
    assert domain[-1]["mlm_loss"] < domain[0]["mlm_loss"] and general[-1]["mlm_loss"] > general[0]["mlm_loss"]
    assert result["final"]["heldout-general/mlm_loss"] == general[-1]["mlm_loss"]
    weights = [(run.run_dir / "encoder" / "model.safetensors").read_bytes() for run in (alone, measured)]
    assert weights[0] == weights[1] and "heldout_sources" not in result_of(alone)
