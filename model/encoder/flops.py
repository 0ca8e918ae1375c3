"""Floating-point operations of a training step, and the published and measured rates of a device."""

from __future__ import annotations

import re
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

# Published peak operations per second by the name that torch reports: bf16 on tensor cores without sparsity (and with
# accumulation in fp32), and fp32 (training does not use TF32). From NVIDIA's data sheets, which print some of the
# tensor-core rates with sparsity, twice the rates here; RTX 4090: Ada GPU Architecture whitepaper, appendix A.
_PUBLISHED_PEAKS = {
    r"NVIDIA A100[ -].*": {"bf16": 312e12, "fp32": 19.5e12},
    r"NVIDIA H100 80GB HBM3": {"bf16": 989.4e12, "fp32": 67e12},  # SXM
    r"NVIDIA H100 PCIe": {"bf16": 756e12, "fp32": 51e12},
    r"NVIDIA H100 NVL": {"bf16": 835e12, "fp32": 60e12},
    r"NVIDIA H200": {"bf16": 989.4e12, "fp32": 67e12},  # SXM
    r"NVIDIA H200 NVL": {"bf16": 835e12, "fp32": 60e12},
    r"NVIDIA L4": {"bf16": 121e12, "fp32": 30.3e12},
    r"NVIDIA L40S": {"bf16": 362e12, "fp32": 91.6e12},
    r"NVIDIA A10": {"bf16": 125e12, "fp32": 31.2e12},
    r"Tesla V100-SXM2-.*": {"fp32": 15.7e12},
    r"Tesla V100-PCIE-.*": {"fp32": 14e12},
    r"Tesla T4": {"fp32": 8.1e12},
    r"NVIDIA GeForce RTX 4090": {"bf16": 165.2e12, "fp32": 82.6e12},
}


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


def published_peak(device_name: str, precision: str) -> float | None:
    """Published dense peak of a GPU in operations per second, the denominator of MFU; None if it is unknown.

    A part of a GPU (MIG) has no published peak.
    """
    if " MIG " in device_name:
        return None
    found = (peaks for name, peaks in _PUBLISHED_PEAKS.items() if re.fullmatch(name, device_name))
    return next(found, {}).get(precision)


def matmul_rate(device: torch.device, precision: str) -> float:
    """Measure the operations per second of a large matrix product (F.linear) on `device`.

    Published rates do not hold for shared or throttled devices, and CPUs have none.
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
