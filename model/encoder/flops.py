"""Floating-point operations of a training step, and the peak rate of a device."""

from __future__ import annotations

import statistics
import time

import torch

from model.config.encoder import EncoderConfig
from model.config.hardware import Hardware
from model.config.pretraining import PretrainRecipe

# Operations a second that eager training reaches on a thread of a CPU (measured on an AMD EPYC 9004 core), and on a GPU
# (of the A100's generation). Only for the choice between eager and compiled, which must not depend on a clock: a
# resumed run has to make the same choice.
_CPU_RATES = {"fp32": 6e10, "bf16": 1.1e11}
_GPU_RATES = {"fp32": 3e13, "bf16": 6e13}


def training_flops(config: EncoderConfig, batch_size: int, length: float, num_predictions: float) -> float:
    """Operations of one step on `batch_size` sequences of `length` tokens (means, where they differ), as computed here.

    A multiply-add counts as two; backward costs twice forward (hence 6). The last layer is computed at the
    `num_predictions` masked positions of each sequence and at [CLS] alone, as is the head at the masked ones;
    embeddings, norms and activations are left out.
    """
    hidden, wide, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    wanted = num_predictions + 1
    keys_and_values = 2 * hidden * hidden
    rest = 2 * hidden * hidden + 2 * hidden * wide  # queries, attention output, feed-forward
    full_layer = length * (keys_and_values + rest) + 2 * length * length * hidden
    last_layer = length * keys_and_values + wanted * rest + 2 * wanted * length * hidden
    head = num_predictions * (hidden * hidden + hidden * config.vocab_size)
    return 6.0 * batch_size * ((layers - 1) * full_layer + last_layer + head)


def planned_seconds(config: EncoderConfig, recipe: PretrainRecipe, hardware: Hardware) -> float:
    """Estimated duration of a run in eager mode: its operations divided by a typical rate of the hardware."""
    total = 0.0
    for phase in recipe.phases:
        predictions = recipe.masking.max_predictions or phase.sequence_length
        predictions = min(predictions, round(recipe.masking.rate * phase.sequence_length))
        flops = training_flops(config, phase.batch_size, phase.sequence_length, predictions)
        total += phase.num_steps * flops
    if hardware.accelerator == "gpu":
        seconds = total / _GPU_RATES[hardware.precision]
    else:
        seconds = total / (_CPU_RATES[hardware.precision] * hardware.num_threads)
    return min(seconds, recipe.finish_within_seconds or seconds)


def matmul_rate(device: torch.device, precision: str) -> float:
    """Operations per second of a large matrix product (F.linear) on `device`: the peak rate used for MFU.

    It is measured, because nominal rates do not hold for shared or throttled devices.
    """
    size = 8192 if device.type == "cuda" else 2048
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    # Not of ones: where few bits change, a GPU needs less power and runs a tenth faster.
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, dtype=dtype, device=device, generator=generator) for _ in range(2))
    seconds = []
    for _ in range(4):
        before = time.perf_counter()
        torch.nn.functional.linear(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - before)
    return 2.0 * size**3 / statistics.median(seconds[1:])
