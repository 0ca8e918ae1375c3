"""The path that is fast (bf16 products, keyed dropout, cross-entropy in place, compiled) beside plain fp32."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.config.encoder import EncoderShape
from model.data.collator import PretrainBatch
from model.encoder.init import initialize
from model.objectives.masked_lm import PretrainingModule
from model.ops.keyed_dropout import DropoutKey
from tests.model.pretraining import one_thread

BATCH, LENGTH, PREDICTIONS = 16, 64, 10
# Of a gradient's norm; bf16 keeps eight bits, so each product is off by up to 0.4 %, and a few layers add up.
TOLERANCE = 0.02


def gradients(precise: bool, compiled: bool = False, num_layers: int | None = None) -> dict[str, Tensor]:
    """Of every parameter of an encoder with dropout, on one batch."""
    config = EncoderShape(preset="mini", num_hidden_layers=num_layers, max_position_embeddings=64).build(2000)
    module = PretrainingModule(config).train()
    initialize(module, 3, 0.02)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 2000, (BATCH, LENGTH), generator=generator)
    places = torch.rand(BATCH, LENGTH - 1, generator=generator).argsort(1)[:, :PREDICTIONS].sort(1)[0] + 1
    positions = torch.cat([torch.zeros(BATCH, 1, dtype=torch.long), places], 1)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (BATCH,), generator=generator)
    keys = DropoutKey(1, 2, torch.arange(BATCH)).expand(module.encoder.num_dropouts)
    # As they fall: with as many of both classes the gradients of the pair's biases would cancel to their rounding.
    labels, pair_label = ids.gather(1, places), torch.randint(0, 2, (BATCH,), generator=generator)
    nothing = torch.zeros(BATCH, 0), torch.zeros(0), torch.zeros(0)  # neither packed nor without padding
    batch = PretrainBatch(ids, ids % 2, lengths, positions, labels, pair_label, keys, *nothing)
    weights = torch.tensor([1 / (BATCH * PREDICTIONS), 0.0, 1 / BATCH, 0.0])
    if compiled:
        module.compile(dynamic=False)
    with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
        loss, _ = module(batch, weights)
    loss.backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def compare(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    relative = {}
    for name, gradient in expected.items():
        error, scale = (found[name] - gradient), gradient
        if name.endswith("query_key_value.bias"):
            # Adding to all keys alike changes nothing: that third of the gradient is rounding alone.
            error, scale = (torch.cat([part.chunk(3)[0], part.chunk(3)[2]]) for part in (error, scale))
        relative[name] = (error.norm() / scale.norm()).item()
    worst = max(relative, key=lambda name: relative[name])
    print(f"worst gradient: {worst} {relative[worst]:.2%}")
    assert relative[worst] < TOLERANCE


def test_every_gradient_is_that_of_fp32_but_for_its_rounding() -> None:
    compare(gradients(precise=False), gradients(precise=True))


@pytest.mark.slow
def test_every_gradient_of_the_compiled_step_too() -> None:
    # In a process of its own: what the compiler loads and sets stays there. Each layer takes it a quarter of a minute.
    script = (
        "import torch; torch.set_num_threads(1)\n"
        "from tests.model.pretrain.test_precision import compare, gradients\n"
        "compare(gradients(False, compiled=True, num_layers=1), gradients(True, num_layers=1))"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", script], check=True, timeout=550, env=one_thread(), cwd=root)
