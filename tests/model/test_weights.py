"""Weights on disk: the layout of `transformers`, both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForPreTraining

from model.config import EncoderConfig
from model.encoder import Encoder
from model.errors import UserError
from model.initialisation import initialise
from model.module import PretrainingModule
from model.weights import load_encoder, load_heads, save_encoder

CONFIG = EncoderConfig(
    vocab_size=120, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=48
)


@pytest.fixture
def module() -> PretrainingModule:
    module = PretrainingModule(CONFIG)
    initialise(module, seed=3, deviation=0.02)
    return module


def save(module: PretrainingModule, folder: Path, tokenizer_dir: Path | None = None) -> Path:
    heads = {"masked": module.masked, "next_sentence": module.next_sentence}
    save_encoder(module.encoder, folder, tokenizer_dir, **heads)
    return folder


def test_theirs_to_ours_to_theirs_is_bit_equal(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = BertForPreTraining(BertConfig(**CONFIG.model_dump()))
    theirs.save_pretrained(tmp_path / "theirs")
    encoder = load_encoder(tmp_path / "theirs")
    masked, following = load_heads(tmp_path / "theirs", encoder.config)
    save_encoder(encoder, tmp_path / "ours", masked=masked, next_sentence=following)
    back = BertForPreTraining.from_pretrained(tmp_path / "ours")
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


def test_transformers_loads_ours(module: PretrainingModule, text_dir: Path, tmp_path: Path) -> None:
    save(module, tmp_path, text_dir / "tokenizer")
    theirs = AutoModel.from_pretrained(tmp_path).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    inputs = tokenizer(["w1 w2 w3", "w4"], return_tensors="pt", padding=True)
    found = module.encoder.eval()(inputs["input_ids"], inputs["token_type_ids"], inputs["attention_mask"])
    expected = theirs(**inputs)
    assert (found.last_hidden_state - expected.last_hidden_state).abs().max() <= 1e-5
    assert (found.pooler_output - expected.pooler_output).abs().max() <= 1e-5


def test_equal_weights_give_equal_bytes(module: PretrainingModule, tmp_path: Path) -> None:
    first, second = save(module, tmp_path / "a"), save(module, tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_old_spellings_and_bare_encoders_are_read(module: PretrainingModule, tmp_path: Path) -> None:
    save(module, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    bare = {
        name.removeprefix("bert.")
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
        if name.startswith("bert.") and "pooler" not in name
    }
    save_file(bare, tmp_path / "model.safetensors")
    loaded = load_encoder(tmp_path)
    assert torch.equal(loaded.layers[1].widen.weight, module.encoder.layers[1].widen.weight)
    assert not loaded.pooler.weight.any()
    with pytest.raises(UserError, match=r"cls\.predictions"):
        load_heads(tmp_path, loaded.config)


def test_faults_are_named(module: PretrainingModule, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="config.json: missing"):
        load_encoder(tmp_path)
    save(module, tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="damaged"):
        load_encoder(tmp_path)
    weights.write_bytes(whole)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"hidden_size": 32', '"hidden_size": 64'))
    with pytest.raises(UserError, match="has shape"):
        load_encoder(tmp_path)
    (tmp_path / "config.json").write_text(config.replace('"model_type": "bert"', '"model_type": "gpt2"'))
    with pytest.raises(UserError, match="model_type"):
        load_encoder(tmp_path)


def test_first_weights_are_a_function_of_the_seed() -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        module = PretrainingModule(CONFIG)
        initialise(module, seed, 0.02)
        return module.state_dict()

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    table = first["encoder.embeddings.token.weight"]
    assert not torch.equal(table, other["encoder.embeddings.token.weight"])
    # cut off at two deviations, which leaves 0.88 of the deviation
    assert table.abs().max() <= 0.04 and table.std().item() == pytest.approx(0.0176, rel=0.05)
    assert (first["encoder.layers.0.output_norm.weight"] == 1).all()
    assert not first["encoder.layers.0.widen.bias"].any()


def test_an_encoder_without_heads_is_a_bert_model(tmp_path: Path) -> None:
    encoder = Encoder(CONFIG)
    save_encoder(encoder, tmp_path)
    assert AutoModel.from_pretrained(tmp_path).config.architectures == ["BertModel"]
