"""Weights on disk: the layout of `transformers`, both ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM, BertForPreTraining, BertModel

import model
from model.common.errors import UserError
from model.config.encoder import EncoderConfig
from model.encoder.encoder import Encoder
from model.encoder.init import initialize
from model.formats.hf_folder import load_encoder, load_heads, save_encoder
from model.objectives.masked_lm import PretrainingModule

CONFIG = EncoderConfig(
    vocab_size=120, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=48
)


@pytest.fixture
def module() -> PretrainingModule:
    module = PretrainingModule(CONFIG)
    initialize(module, seed=3, deviation=0.02)
    return module


def save(module: PretrainingModule, folder: Path, tokenizer_dir: Path | None = None) -> Path:
    heads = {"masked": module.masked, "next_sentence": module.next_sentence}
    save_encoder(module.encoder, folder, tokenizer_dir, **heads)
    return folder


def test_transformers_loads_ours(module: PretrainingModule, text_dir: Path, tmp_path: Path) -> None:
    save(module, tmp_path, text_dir / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    inputs = tokenizer(["w1 w2 w3", "w4"], return_tensors="pt", padding=True)
    found = module.encoder.eval()(inputs["input_ids"], inputs["token_type_ids"], inputs["attention_mask"])
    logits = module.masked(found.last_hidden_state, module.encoder.embeddings.token.weight)
    real = inputs["attention_mask"].bool()

    def theirs(kind: Any) -> Any:
        loaded, report = kind.from_pretrained(tmp_path, output_loading_info=True)
        assert not report["missing_keys"] and not report["mismatched_keys"]
        return loaded.eval()(**inputs)

    encoded, both, masked = (theirs(kind) for kind in (AutoModel, BertForPreTraining, BertForMaskedLM))
    for ours, expected in (
        (found.last_hidden_state[real], encoded.last_hidden_state[real]),
        (found.pooler_output, encoded.pooler_output),
        (logits[real], both.prediction_logits[real]),
        (module.next_sentence(found.pooler_output), both.seq_relationship_logits),
        (logits[real], masked.logits[real]),
    ):
        assert (ours - expected).abs().max() <= 1e-5


def test_the_package_itself_loads_and_saves(module: PretrainingModule, tmp_path: Path) -> None:
    model.save_encoder(module.encoder, str(tmp_path))
    loaded = model.load_encoder(str(tmp_path))
    for name, tensor in module.encoder.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    with pytest.raises(AttributeError, match="load_weights"):
        model.load_weights  # noqa: B018


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


def test_missing_heads_are_refused_or_first_weights(module: PretrainingModule, tmp_path: Path) -> None:
    torch.manual_seed(0)
    for kind in (BertModel, BertForMaskedLM):
        kind(BertConfig(**CONFIG.model_dump())).save_pretrained(tmp_path / kind.__name__)
        assert load_encoder(tmp_path / kind.__name__).pooler.weight.any() == (kind is BertModel)
    with pytest.raises(UserError, match=r"model\.safetensors: no tensor 'cls\.predictions"):
        load_heads(tmp_path / "BertModel", CONFIG)
    with pytest.raises(UserError, match=r"model\.safetensors: no tensor 'cls\.seq_relationship"):
        load_heads(tmp_path / "BertForMaskedLM", CONFIG)
    masked, following = load_heads(tmp_path / "BertModel", CONFIG, seed_of_missing=3)
    read, also_first = load_heads(tmp_path / "BertForMaskedLM", CONFIG, seed_of_missing=3)
    # `module` began from seed 3
    assert torch.equal(masked.transform.weight, module.masked.transform.weight)
    for head in (following, also_first):
        assert torch.equal(head.output.weight, module.next_sentence.output.weight)
    there = load_file(tmp_path / "BertForMaskedLM" / "model.safetensors")
    assert torch.equal(read.transform.weight, there["cls.predictions.transform.dense.weight"])
    del there["cls.predictions.bias"]
    save_file(there, tmp_path / "BertForMaskedLM" / "model.safetensors")
    with pytest.raises(UserError, match=r"cls\.predictions\.bias"):  # half a head is a fault in any case
        load_heads(tmp_path / "BertForMaskedLM", CONFIG, seed_of_missing=3)


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_a_second_copy_of_tied_weights_must_be_equal(module: PretrainingModule, tmp_path: Path) -> None:
    save(module, tmp_path)
    table, bias = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
    copies = {"cls.predictions.decoder.weight": table, "cls.predictions.decoder.bias": bias}
    rewrite(tmp_path, lambda tensors: tensors.update({copy: tensors[name].clone() for copy, name in copies.items()}))
    load_heads(tmp_path, CONFIG)
    whole = (tmp_path / "model.safetensors").read_bytes()
    rewrite(tmp_path, lambda tensors: [tensors.pop(name) for name in copies.values()] and None)
    assert torch.equal(load_encoder(tmp_path).embeddings.token.weight, module.encoder.embeddings.token.weight)
    load_heads(tmp_path, CONFIG)
    for copy, name in copies.items():
        (tmp_path / "model.safetensors").write_bytes(whole)
        rewrite(tmp_path, lambda tensors, copy=copy: tensors[copy].add_(1e-3))  # type: ignore[misc]
        with pytest.raises(UserError, match=f"'{copy}' differs from '{name}'"):
            load_heads(tmp_path, CONFIG)
        load_encoder(tmp_path)  # which does not need it


def test_rows_that_pad_the_vocabulary_are_cut_off(module: PretrainingModule, tmp_path: Path) -> None:
    save(module, tmp_path)

    def pad(to: int) -> Callable[[dict[str, torch.Tensor]], None]:
        def change(tensors: dict[str, torch.Tensor]) -> None:
            for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
                missing = to - len(tensors[name])
                tensors[name] = torch.cat([tensors[name], torch.zeros(missing, *tensors[name].shape[1:])])

        return change

    rewrite(tmp_path, pad(128))
    encoder = load_encoder(tmp_path)  # config.json says 120
    assert torch.equal(encoder.embeddings.token.weight, module.encoder.embeddings.token.weight)
    assert load_heads(tmp_path, encoder.config)[0].bias.shape == (120,)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 120', '"vocab_size": 128'))
    assert load_encoder(tmp_path).embeddings.token.weight.shape == (128, 32)
    rewrite(tmp_path, pad(256))
    with pytest.raises(UserError, match="has shape"):  # another vocabulary, not padding
        load_encoder(tmp_path)


def test_pickles_are_read_when_they_hold_tensors_alone(module: PretrainingModule, tmp_path: Path) -> None:
    save(module, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    pickled = tmp_path / "pytorch_model.bin"
    torch.save(tensors, pickled)
    assert torch.equal(load_encoder(tmp_path).pooler.weight, module.encoder.pooler.weight)
    whole = pickled.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"PK", whole[:-1]):
        pickled.write_bytes(content)
        with pytest.raises(UserError, match=r"pytorch_model\.bin: damaged.*without running code") as caught:
            load_encoder(tmp_path)
        assert "\n" not in str(caught.value)
    for unwanted in ({"model": module}, {"opener": open}):
        torch.save(unwanted, pickled)
        with pytest.raises(UserError, match=r"pytorch_model\.bin: damaged or not only tensors") as caught:
            load_encoder(tmp_path)
        assert "\n" not in str(caught.value)
    for unwanted in ([1, 2], {"epoch": 3}):
        torch.save(unwanted, pickled)
        with pytest.raises(UserError, match=r"pytorch_model\.bin: expected only named tensors"):
            load_encoder(tmp_path)


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
        initialize(module, seed, 0.02)
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
