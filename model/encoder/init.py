"""Initial weights: BERT's random ones, optionally with first-layer heads that attend to neighboring tokens."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

from model.common.rng import Domain, Key
from model.encoder.encoder import Encoder, Layer

Start = Literal["random", "neighbors"]

_POSITION_WEIGHT = 3.0  # deviation of the waves beside that of the token embeddings: a head must tell places from words
_GAIN = 1.0  # of a wave in queries and keys: about a third to a half of a head's attention falls on its place
_SHORTEST, _LONGEST = 4, 400  # wave lengths, in positions


def initialize(module: nn.Module, seed: int, deviation: float, start: Start = "random") -> None:
    """Set the initial weights: truncated normal for matrices, 0 for biases, 1 for LayerNorm's scale.

    Every parameter has its own generator, keyed by (seed, name). The normal is cut off at two standard
    deviations, as TensorFlow's truncated_normal_initializer in the released code does. With `start` "neighbors" the
    encoder's positions and first attention are then set by `attend_to_neighbors`.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim >= 2:
                generator = torch.Generator().manual_seed(Key(seed).for_(Domain.INITIALIZATION, *name.encode()))
                value = torch.empty(parameter.shape)
                nn.init.trunc_normal_(value, 0.0, deviation, -2 * deviation, 2 * deviation, generator=generator)
                parameter.copy_(value)
            else:
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        if start == "neighbors":
            for part in module.modules():
                if isinstance(part, Encoder):
                    attend_to_neighbors(part, deviation)


@torch.no_grad()
def attend_to_neighbors(encoder: Encoder, deviation: float) -> None:
    """Initialize the heads of the first layer to attend to the tokens at offsets -1, +1, -2, +2, ...

    Masked language modeling starts with a long plateau at the loss of word frequencies: [MASK] itself carries no
    information, so nothing is learned until some heads attend to its neighbors. Positions therefore start as sines and
    cosines, and queries as keys rotated by the offset of the head, added to the random weights (similar to mimetic
    initialization: Trockman and Kolter 2023, arXiv:2305.09828). These weights are trained like any others, and the
    architecture is BERT's.
    """
    positions = encoder.embeddings.position.weight  # (positions, hidden)
    num_positions, hidden = positions.shape
    num_heads = encoder.config.num_attention_heads
    size, num_waves = hidden // num_heads, hidden // 2
    rates = 2 * math.pi * torch.logspace(-math.log10(_SHORTEST), -math.log10(_LONGEST), num_waves)
    angles = torch.arange(num_positions)[:, None] * rates
    waves = torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)  # (positions, hidden): sine, cosine, sine, ...
    positions[:, : 2 * num_waves] = waves * (_POSITION_WEIGHT * deviation * math.sqrt(2))
    layer = encoder.layers[0]
    assert isinstance(layer, Layer)
    weight = layer.attention.query_key_value.weight  # (3 hidden, hidden)
    stride = num_waves // (size // 2)
    for head in range(num_heads):
        offset = (head // 2 + 1) * (1 if head % 2 else -1)
        for turn in range(size // 2):  # every head has waves of all lengths
            wave = turn * stride + head % stride
            sine, cosine = 2 * wave, 2 * wave + 1
            query, key = head * size + 2 * turn, hidden + head * size + 2 * turn
            by = float(rates[wave]) * offset
            # the query of a place is the wave `offset` further on: sin(a + b) = sin a cos b + cos a sin b, and so on
            weight[query, sine] += _GAIN * math.cos(by)
            weight[query, cosine] += _GAIN * math.sin(by)
            weight[query + 1, sine] -= _GAIN * math.sin(by)
            weight[query + 1, cosine] += _GAIN * math.cos(by)
            weight[key, sine] += _GAIN
            weight[key + 1, cosine] += _GAIN
