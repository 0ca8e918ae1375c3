"""The encoder beside `transformers`, and its keyed dropout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForPreTraining

from model.config import EncoderConfig, EncoderShape
from model.counter import DropoutKey
from model.encoder import Encoder
from model.losses import cross_entropy_sum
from model.module import PretrainingModule
from model.weights import load_encoder, load_heads

CONFIG = EncoderConfig(vocab_size=200, hidden_size=32, num_hidden_layers=3, num_attention_heads=4)


def batch(config: EncoderConfig, num: int = 4, length: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, segments and a mask with padding in the second sample."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, config.vocab_size, (num, length), generator=generator)
    segments = (torch.arange(length) > length // 2).long().expand(num, length)
    mask = torch.ones(num, length, dtype=torch.long)
    mask[1, length // 2 :] = 0
    return ids, segments, mask


def their_model(config: EncoderConfig) -> BertForPreTraining:
    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig(**config.model_dump(), attn_implementation="eager")).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


@pytest.mark.parametrize("preset", ["tiny", "mini", "small", "medium"])
def test_hidden_states_and_logits_are_those_of_transformers(preset: str, tmp_path: Path) -> None:
    config = EncoderShape(preset=preset, max_position_embeddings=64).build(1000)
    theirs = their_model(config)
    theirs.save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path)
    masked, following = load_heads(tmp_path, config)
    ids, segments, mask = batch(config)
    with torch.no_grad():
        expected = theirs(input_ids=ids, token_type_ids=segments, attention_mask=mask, output_hidden_states=True)
        found = encoder(ids, segments, mask)
        logits = masked(found.last_hidden_state, encoder.embeddings.token.weight)
    real = mask.bool()
    assert (found.last_hidden_state - expected.hidden_states[-1])[real].abs().max() <= 1e-5
    assert (logits - expected.prediction_logits)[real].abs().max() <= 1e-5
    assert (following(found.pooler_output) - expected.seq_relationship_logits).abs().max() <= 1e-5


def test_loss_and_gradients_are_those_of_transformers(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    theirs = their_model(config)
    theirs.save_pretrained(tmp_path)
    module = PretrainingModule(config)
    module.encoder = load_encoder(tmp_path).train()
    module.masked, module.next_sentence = load_heads(tmp_path, config)
    ids, segments, mask = batch(config)
    positions = torch.tensor([[0, 3, 9, 17], [0, 1, 5, 12], [0, 2, 30, 39], [0, 7, 8, 0]])
    labels = torch.randint(0, 200, (4, 3), generator=torch.Generator().manual_seed(2))
    labels[3, 2] = -100
    not_next = torch.tensor([0, 1, 1, 0])
    weights = torch.tensor([1 / 11, 1 / 4])
    sites = DropoutKey(1, 1, torch.arange(4)).sites(module.encoder.num_sites)  # at a rate of 0
    loss, _ = module(ids, segments, mask.sum(1), positions, labels, not_next, sites, torch.zeros(4, 0), weights)
    loss.backward()

    everywhere = torch.full_like(ids, -100)
    for row in range(4):
        for position, label in zip(positions[row, 1:].tolist(), labels[row].tolist()):
            if label != -100:
                everywhere[row, position] = label
    expected = theirs(
        input_ids=ids, token_type_ids=segments, attention_mask=mask, labels=everywhere, next_sentence_label=not_next
    ).loss
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    own = module.encoder.layers[0].attention.query_key_value.weight.grad
    attention = theirs.bert.encoder.layer[0].attention.self
    their = torch.cat([attention.query.weight.grad, attention.key.weight.grad, attention.value.weight.grad])
    pairs = [
        (own, their),
        (module.encoder.embeddings.token.weight.grad, theirs.bert.embeddings.word_embeddings.weight.grad),
        (module.encoder.embeddings.position.weight.grad, theirs.bert.embeddings.position_embeddings.weight.grad),
        (module.encoder.layers[2].widen.weight.grad, theirs.bert.encoder.layer[2].intermediate.dense.weight.grad),
        (module.encoder.pooler.weight.grad, theirs.bert.pooler.dense.weight.grad),
        (module.masked.bias.grad, theirs.cls.predictions.bias.grad),
    ]
    for ours, expected_grad in pairs:
        assert (ours - expected_grad).norm() <= 1e-5 * expected_grad.norm()


def test_wanted_positions_are_those_of_the_full_computation() -> None:
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).train()
    ids, segments, mask = batch(CONFIG)
    key = DropoutKey(5, 6, torch.arange(4) + 100)
    positions = torch.tensor([[0, 3, 9], [0, 1, 5], [0, 2, 30], [0, 7, 8]])
    full = encoder(ids, segments, mask, dropout=key)
    part = encoder(ids, segments, mask, dropout=key, positions=positions)
    expected = full.last_hidden_state.gather(1, positions[:, :, None].expand(-1, -1, 32))
    torch.testing.assert_close(part.last_hidden_state, expected)
    torch.testing.assert_close(part.pooler_output, full.pooler_output)


def test_dropout_depends_on_the_sample_not_on_its_batch() -> None:
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).train()
    ids, segments, mask = batch(CONFIG)
    whole = encoder(ids, segments, mask, dropout=DropoutKey(1, 2, torch.arange(4))).last_hidden_state
    half = encoder(ids[2:], segments[2:], mask[2:], dropout=DropoutKey(1, 2, torch.tensor([2, 3]))).last_hidden_state
    torch.testing.assert_close(half, whole[2:])
    for other in (
        DropoutKey(1, 3, torch.arange(4)),
        DropoutKey(2, 2, torch.arange(4)),
        DropoutKey(1, 2, torch.arange(1, 5)),
    ):
        assert not torch.allclose(encoder(ids, segments, mask, dropout=other).last_hidden_state, whole)


def test_dropout_is_off_in_evaluation_and_without_a_key() -> None:
    encoder = Encoder(CONFIG).train()
    ids, segments, mask = batch(CONFIG)
    plain = encoder(ids, segments, mask).last_hidden_state
    encoder.eval()
    keyed = encoder(ids, segments, mask, dropout=DropoutKey(1, 2, torch.arange(4))).last_hidden_state
    torch.testing.assert_close(keyed, plain)


def test_padding_changes_nothing_for_the_others() -> None:
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).eval()
    ids, segments, _ = batch(CONFIG)
    short = encoder(ids[:, :20], segments[:, :20]).last_hidden_state
    mask = (torch.arange(40) < 20).long().expand(4, 40)
    padded = encoder(ids, segments, mask).last_hidden_state[:, :20]
    torch.testing.assert_close(padded, short, atol=1e-6, rtol=1e-5)


def test_cross_entropy_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(30, 90, generator=generator) * 5).requires_grad_()
    labels = torch.randint(0, 90, (30,), generator=generator)
    labels[[3, 7]] = -100
    found = cross_entropy_sum(logits, labels)
    (gradient,) = torch.autograd.grad(found.loss * 0.3, logits)
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    (expected_gradient,) = torch.autograd.grad(expected * 0.3, logits)
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    assert found.num_correct == (logits.argmax(1) == labels).sum()
