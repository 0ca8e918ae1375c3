"""Frozen features: the states that the paper names, kept or computed anew, and the small model on top of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertModel

from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError
from model.config.encoder import EncoderConfig
from model.config.finetuning import FinetuneRecipe
from model.encoder.encoder import Encoder
from model.finetune.build import load_head, make_model, untrained_model
from model.finetune.frozen_features import FeatureModel, StateStore, chosen_layers, pooled
from model.formats.hf_folder import load_encoder, save_encoder
from model.heads.batches import collate
from model.heads.features import Features
from model.ops.keyed_dropout import DropoutKey
from tests.model.heads.test_task_model import features_of


@pytest.fixture(scope="module")
def deep_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers of width 16."""
    folder = tmp_path_factory.mktemp("deep")
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=6, num_attention_heads=2, max_position_embeddings=32
    )
    save_encoder(Encoder(config), folder)
    return folder


def model_of(folder: Path, name: str = "ner", seed: int = 1, dropout: float = 0.0, **adapt: Any) -> FeatureModel:
    recipe = FinetuneRecipe(dropout=dropout, adapt={"kind": "features", "lstm_size": 8, **adapt})
    model = make_model(load_encoder(folder), BENCHMARKS[name], recipe, seed)
    assert isinstance(model, FeatureModel)
    return model


def batch_of(features: Features) -> Any:
    return collate(features, np.arange(features.num_rows), 0)


@pytest.mark.parametrize(
    ("combination", "expected"),
    [
        ("embeddings", (0,)),
        ("second_to_last", (5,)),
        ("last", (6,)),
        ("weighted_last_four", (3, 4, 5, 6)),
        ("concatenated_last_four", (3, 4, 5, 6)),
        ("weighted_all", (1, 2, 3, 4, 5, 6)),
    ],
)
@pytest.mark.parametrize("is_stored", [True, False])
def test_the_six_combinations_are_those_of_transformers_hidden_states(
    deep_encoder: Path, combination: Any, expected: tuple[int, ...], is_stored: bool
) -> None:
    features = features_of("ner")
    batch = batch_of(features)
    model = model_of(deep_encoder, combination=combination)
    if is_stored:
        model.store.fill([features], 0, bf16=False)
    theirs = BertModel.from_pretrained(deep_encoder).eval()
    with torch.inference_mode():
        output = theirs(batch.input_ids, batch.attention_mask, batch.token_type_ids, output_hidden_states=True)
    hidden = torch.stack([output.hidden_states[number] for number in expected], 2)  # 0 is after the embeddings
    if model.mix is not None:
        with torch.no_grad():
            model.mix.copy_(torch.arange(len(expected) + 1) / 10)
        weights = torch.softmax(torch.arange(len(expected)) / 10, 0)
        by_hand = (hidden * weights[:, None]).sum(2) * (1 + len(expected) / 10)
    else:
        by_hand = hidden.flatten(2)
    assert (model.mix is not None) == combination.startswith("weighted")
    with torch.inference_mode():
        found = model._combined(model.store.of(batch))
    inside = batch.attention_mask
    torch.testing.assert_close(found[inside], by_hand[inside], atol=2e-5, rtol=1e-4)


def test_shallow_encoders_give_what_they_have() -> None:
    assert chosen_layers("weighted_last_four", 2) == chosen_layers("concatenated_last_four", 2) == (1, 2)
    assert chosen_layers("weighted_all", 3) == chosen_layers("weighted_last_four", 3) == (1, 2, 3)
    assert chosen_layers("embeddings", 1) == (0,) and chosen_layers("last", 1) == (1,)
    for combination in ("second_to_last", "weighted_last_four", "concatenated_last_four", "weighted_all"):
        with pytest.raises(UserError, match="needs an encoder of 2 layers or more; take last"):
            chosen_layers(combination, 1)  # type: ignore[arg-type]


def test_pooling_by_hand() -> None:
    states = torch.arange(24.0).view(2, 3, 2, 2)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert torch.equal(pooled(states, mask, "mean")[0], (states[0, 0] + states[0, 1]) / 2)
    assert torch.equal(pooled(states, mask, "mean")[1], states[1].mean(0))
    assert torch.equal(pooled(states, None, "mean"), states.mean(1))
    assert torch.equal(pooled(states, mask, "cls"), states[:, 0])


@pytest.mark.parametrize("name", ["ner", "squad1", "sst2", "stsb", "swag"])
def test_kept_features_are_those_computed_anew(deep_encoder: Path, name: str) -> None:
    features = features_of(name)
    kept, anew = model_of(deep_encoder, name).eval(), model_of(deep_encoder, name, max_feature_bytes=10).eval()
    for model in (kept, anew):
        model.store.fill([features, features], 0, bf16=False)
    assert kept.store._values is not None and anew.store._values is None
    batch = batch_of(features)
    with torch.inference_mode():
        torch.testing.assert_close(kept(batch), anew(batch), atol=1e-5, rtol=1e-4)
        alone = collate(features, np.array([0]), 0)
        length = alone.input_ids.shape[1]
        whole = kept(batch)[:1, :length] if kept.head.reads_tokens else kept(batch)[:1]
        inside = alone.attention_mask if kept.head.reads_tokens and alone.attention_mask is not None else ...
        torch.testing.assert_close(kept(alone)[inside], whole[inside], atol=1e-5, rtol=1e-4)


def test_sequences_that_were_not_kept_are_computed(deep_encoder: Path) -> None:
    features = features_of("ner")
    model, fresh = model_of(deep_encoder).eval(), model_of(deep_encoder).eval()
    model.store.fill([], 0, bf16=False)
    batch = batch_of(features)
    with torch.inference_mode():
        torch.testing.assert_close(model(batch), fresh(batch))


def test_too_large_features_are_said_and_computed_anew(deep_encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features = features_of("ner")
    num_bytes = len(features.sequences.values) * 2 * 16 * 4
    large, fitting = (
        StateStore(load_encoder(deep_encoder), (3, 4), None, max_bytes) for max_bytes in (num_bytes - 1, num_bytes)
    )
    large.fill([features], 0, False)
    assert "more than max_feature_bytes" in capsys.readouterr().out
    assert large._values is None
    fitting.fill([features], 0, False)
    assert fitting._values is not None and not capsys.readouterr().out


def test_the_encoder_neither_learns_nor_drops(deep_encoder: Path) -> None:
    model = model_of(deep_encoder, "ner", dropout=0.5, combination="weighted_all").train()
    assert not model.encoder.training
    batch = batch_of(features_of("ner"))
    model.loss(model(batch, DropoutKey(1, 0, batch.samples)), batch.targets).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("encoder."), name


def test_dropout_is_a_function_of_its_key(deep_encoder: Path) -> None:
    model, features = model_of(deep_encoder, "ner", dropout=0.3).train(), features_of("ner")
    batch, alone = batch_of(features), collate(features, np.array([1]), 0)
    first = model(batch, DropoutKey(1, 5, batch.samples))
    assert torch.equal(first, model(batch, DropoutKey(1, 5, batch.samples)))
    assert not torch.equal(first, model(batch, DropoutKey(1, 6, batch.samples)))
    torch.testing.assert_close(model(alone, DropoutKey(1, 5, alone.samples))[0], first[1], atol=1e-5, rtol=1e-4)


def test_first_weights_follow_the_seed(deep_encoder: Path) -> None:
    one, again, other = (model_of(deep_encoder, seed=seed)._own_state() for seed in (1, 1, 2))
    assert {"lstms.0.weight_ih_l0_reverse", "lstms.1.weight_hh_l0", "classifier.weight"} <= one.keys()
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if "bias" not in name)
    assert not torch.equal(one["lstms.0.weight_hh_l0"], one["lstms.1.weight_hh_l0"])


def test_a_saved_head_is_read_again(deep_encoder: Path, tmp_path: Path) -> None:
    model = model_of(deep_encoder).eval()
    model.save_head(tmp_path)
    other = untrained_model(
        load_encoder(deep_encoder), BENCHMARKS["ner"], FinetuneRecipe(adapt={"kind": "features", "lstm_size": 8}), 2
    ).eval()
    assert isinstance(other, FeatureModel)
    batch = batch_of(features_of("ner"))
    assert not torch.equal(model(batch), other(batch))
    load_head(other, tmp_path)
    assert torch.equal(model(batch), other(batch))
    with pytest.raises(UserError, match="does not fit head.json"):
        model_of(deep_encoder, lstm_size=16).load_head(tmp_path)
    (tmp_path / "features_head.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="damaged"):
        other.load_head(tmp_path)
    with pytest.raises(UserError, match="missing"):
        other.load_head(tmp_path / "none")
