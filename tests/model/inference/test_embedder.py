"""Sentence vectors and filled masks, beside `transformers` with the same weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM, pipeline

from model import load_embedder, load_fill_mask
from model.common.errors import UserError
from model.common.files import write_json
from model.config.hardware import HardwareOptions
from model.tokenizer.wordpiece import SPECIAL_TOKENS, make_tokenizer, save_tokenizer

CPU = HardwareOptions(accelerator="cpu", precision="fp32")
WORDS = ["the", "a", "film", "was", "good", "bad", "anna", "ben", "in", "rome", "and", "it", "is", "who", "where"]
TEXTS = ["the film was good", "", "anna", "who is in rome and where is ben ? " * 6, "bad film .", "the film was good"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BertForMaskedLM with random weights, which has no pooler."""
    place = tmp_path_factory.mktemp("encoder")
    tokenizer = make_tokenizer([*SPECIAL_TOKENS, *WORDS, ".", ",", "?", "##s"])
    save_tokenizer(tokenizer, place)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForMaskedLM(BertConfig(**sizes, vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=48))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(place)
    return place


def theirs(folder: Path, texts: list[str], max_length: int, pooling: str, normalize: bool) -> np.ndarray:
    """What transformers, a mask and a mean give."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][:, :, None].float()
    if pooling == "mean":
        pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
    else:
        pooled = hidden[:, 0] if pooling == "cls" else hidden.masked_fill(mask == 0, -1e9).amax(dim=1)
    found: np.ndarray = (F.normalize(pooled, dim=-1) if normalize else pooled).numpy()
    return found


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_are_those_of_transformers(folder: Path, pooling: Any, normalize: bool) -> None:
    embedder = load_embedder(folder, pooling=pooling, normalize=normalize, machine=CPU)
    expected = theirs(folder, TEXTS, 48, pooling, normalize)
    np.testing.assert_allclose(embedder.embed(TEXTS), expected, atol=1e-5)
    windows = list(embedder.stream(iter(TEXTS), window_rows=4))
    assert [len(window) for window in windows] == [4, 2]
    np.testing.assert_allclose(np.concatenate(windows), expected, atol=1e-5)
    assert embedder.embed([]).shape == (0, 32)
    np.testing.assert_allclose(embedder.embed(TEXTS[0]), expected[:1], atol=1e-5)


def sentence_transformer(folder: Path, place: Path, pooling: dict[str, Any], *more: str, length: int = 12) -> Path:
    """The layout of sentence-transformers: the encoder in a folder of its own, as older ones have it."""
    place.mkdir()
    (place / "0_BERT").symlink_to(folder)
    modules = ["Transformer", "Pooling", *more]
    places = {"Transformer": "0_BERT", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    listed = [
        {"idx": n, "name": str(n), "path": places.get(name, ""), "type": f"sentence_transformers.models.{name}"}
        for n, name in enumerate(modules)
    ]
    (place / "modules.json").write_text(json.dumps(listed))
    write_json(place / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})
    write_json(place / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, **pooling})
    return place


def test_a_sentence_transformers_folder_says_how(folder: Path, tmp_path: Path) -> None:
    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": False}
    place = sentence_transformer(folder, tmp_path / "cls", modes, "Normalize")
    embedder = load_embedder(place, machine=CPU)
    assert (embedder.pooling, embedder.normalize, embedder.max_length) == ("cls", True, 12)
    np.testing.assert_allclose(embedder.embed(TEXTS), theirs(folder, TEXTS, 12, "cls", True), atol=1e-5)
    other = load_embedder(place, pooling="mean", normalize=False, max_length=20, machine=CPU)
    np.testing.assert_allclose(other.embed(TEXTS), theirs(folder, TEXTS, 20, "mean", False), atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "more", "message"),
    [
        ({"pooling_mode_lasttoken": True}, (), "pooling lasttoken; expected one of mean_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, (), "cls_token and mean_tokens"),
        ({"pooling_mode_mean_tokens": True}, ("Dense",), "modules.json: Dense; only pooled encoders are supported"),
    ],
)
def test_what_is_not_known_is_refused(
    folder: Path, tmp_path: Path, pooling: dict[str, Any], more: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load_embedder(sentence_transformer(folder, tmp_path / "st", pooling, *more), machine=CPU)


def test_lengths_that_do_not_fit_are_refused(folder: Path) -> None:
    for length in (2, 49):
        with pytest.raises(UserError, match=f"max_length {length}: expected 3 to 48"):
            load_embedder(folder, max_length=length, machine=CPU)


REAL_TEXTS = [
    "A man is playing a guitar.",
    "Someone plays an instrument.",
    "The stock market fell by 2.5 % on Tuesday, its worst day since March 2009.",
    "Naïve readers of the café's menu were surprised.",
    "Yes.",
    "It rained for days, and nobody left the house. " * 40,  # longer than what the model reads
]


@pytest.mark.slow
def test_a_real_sentence_encoder_gives_the_vectors_of_transformers() -> None:
    """CLOZE_REAL_CHECKPOINT names a folder with a published sentence encoder (tests/model/test_parity.py)."""
    place = os.environ.get("CLOZE_REAL_CHECKPOINT")
    if not place or not (Path(place) / "1_Pooling").is_dir():
        pytest.skip("CLOZE_REAL_CHECKPOINT names no folder with a sentence encoder (1_Pooling/config.json)")
    embedder = load_embedder(place, machine=CPU)
    assert (embedder.pooling, embedder.normalize, embedder.max_length) == ("mean", True, 256)
    expected = theirs(Path(place), REAL_TEXTS, 256, "mean", True)
    difference = np.abs(embedder.embed(REAL_TEXTS) - expected).max()
    rounded = load_embedder(place, machine=HardwareOptions(accelerator="cpu", precision="bf16")).embed(REAL_TEXTS)
    cosines = (rounded * expected).sum(axis=1)
    print({"fp32": difference, "bf16 cosines": cosines})
    assert difference <= 1e-5
    assert cosines.min() >= 0.999


MASKED = ["the [MASK] was good .", "[MASK]", "[MASK] is in [MASK] and ben [MASK] .", "who  is\t[MASK]?"]


def test_masks_are_filled_as_by_transformers(folder: Path) -> None:
    found = load_fill_mask(folder, machine=CPU).fill(MASKED, top=4)
    expected = pipeline("fill-mask", model=str(folder), top_k=4, device="cpu")(MASKED)
    assert [answer["text"] for answer in found] == MASKED
    for text, answer, wanted in zip(MASKED, found, expected):
        wanted = wanted if isinstance(wanted[0], list) else [wanted]
        assert len(answer["masks"]) == len(wanted) == text.count("[MASK]")
        for mask, candidates in zip(answer["masks"], wanted):
            assert text[mask["start"] : mask["end"]] == "[MASK]"
            assert [one["token"] for one in mask["candidates"]] == [one["token_str"] for one in candidates]
            scores = [one["score"] for one in candidates]
            np.testing.assert_allclose([one["score"] for one in mask["candidates"]], scores, atol=2e-6)
        assert "[MASK]" not in answer["filled"]


def test_masks_that_cannot_be_filled(folder: Path, small_encoder: Path) -> None:
    fill_mask = load_fill_mask(folder, machine=CPU)
    with pytest.raises(UserError, match=r"text 1: no \[MASK\]"):
        fill_mask.fill(["[MASK]", "none"])
    with pytest.raises(UserError, match="text 0: 62 tokens, more than the encoder's 48"):
        fill_mask.fill(["[MASK] " + "film " * 59])
    assert len(fill_mask.fill(["[MASK]"], top=10_000)[0]["masks"][0]["candidates"]) == 5 + len(WORDS) + 4
    assert fill_mask.fill([]) == []
    with pytest.raises(UserError, match="no masked language modeling head"):
        load_fill_mask(small_encoder, machine=CPU)
