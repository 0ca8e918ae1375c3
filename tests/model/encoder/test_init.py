"""First weights: keyed by name, and heads that attend to the neighbors of each token where asked for."""

from __future__ import annotations

import pytest
import torch

from model.config.encoder import EncoderShape
from model.encoder.init import Start, initialize
from model.objectives.masked_lm import PretrainingModule


def module(start: Start, preset: str = "tiny", deviation: float = 0.05) -> PretrainingModule:
    made = PretrainingModule(EncoderShape(preset=preset).build(500), True)
    initialize(made, seed=1, deviation=deviation, start=start)
    return made


@torch.no_grad()
def first_attention(made: PretrainingModule, ids: torch.Tensor) -> torch.Tensor:
    """(head, query, key): the first layer's probabilities, written out."""
    embeddings, config = made.encoder.embeddings, made.encoder.config
    states = embeddings.token.weight[ids] + embeddings.position.weight[: len(ids)] + embeddings.segment.weight[0]
    states = embeddings.norm(states)
    query, key, _ = made.encoder.layers[0].attention.query_key_value(states).chunk(3, dim=1)
    query, key = (x.view(len(ids), config.num_attention_heads, -1).transpose(0, 1) for x in (query, key))
    return (query @ key.transpose(1, 2) / query.shape[2] ** 0.5).softmax(dim=2)


@pytest.mark.parametrize(("preset", "deviation"), [("tiny", 0.06), ("mini", 0.04), ("small", 0.03), ("base", 0.02)])
def test_the_heads_of_the_first_layer_look_beside(preset: str, deviation: float) -> None:
    ids = torch.randint(5, 500, (200,), generator=torch.Generator().manual_seed(0))
    attention = first_attention(module("neighbors", preset, deviation), ids)
    for head, probabilities in enumerate(attention):
        offset = (head // 2 + 1) * (1 if head % 2 else -1)
        by_offset = {step: probabilities.diagonal(step).mean().item() for step in range(-9, 10)}
        assert max(by_offset, key=by_offset.__getitem__) == offset
        assert by_offset[offset] > 0.1  # 1/200 where a head looks everywhere alike


def test_random_is_bert_s_and_neighbors_changes_two_weights() -> None:
    plain, neighbors = module("random").state_dict(), module("neighbors").state_dict()
    changed = {name for name, value in plain.items() if not torch.equal(value, neighbors[name])}
    assert changed == {"encoder.embeddings.position.weight", "encoder.layers.0.attention.query_key_value.weight"}
    # a normal of deviation 0.05 cut off at two deviations has 0.8796 of it; 64,000 draws: +- 0.6 % (2 sigma)
    assert plain["encoder.embeddings.token.weight"].std().item() == pytest.approx(0.05 * 0.8796, rel=0.01)
    assert all(torch.equal(value, module("random").state_dict()[name]) for name, value in plain.items())
