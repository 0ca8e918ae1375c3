"""Measure the FLOP/s of a training step as a fraction of the device's measured bf16 rate (one large matrix product)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from bench import comparison
from bench.processes import THREADS, ask, shape_of
from model.config.encoder import EncoderConfig
from model.config.hardware import Hardware
from model.engine.attention_autotune import candidates

# (preset, batch, length). The FLOPs count the head and the last layer only at the predicted 15 % of positions.
CPU_CASES = (("mini", 32, 128), ("base", 32, 128))
GPU_CASES = (("base", 256, 128), ("base", 64, 512), ("large", 128, 128), ("large", 32, 512))
ATTENTION_DROPOUT = (0.1, 0.0)  # the BERT paper's, and that of newer recipes (flash attention has no dropout)


def results() -> Iterator[dict[str, Any]]:
    """Yield a result per case: eager on a CPU; compiled on a GPU, for every attention kernel, deterministic or not."""
    if not torch.cuda.is_available():
        for preset, batch, length in CPU_CASES:
            task = {"shape": shape_of(preset), "batch": batch, "length": length, "steps": 5}
            yield share(f"share-{preset}-{batch}x{length}", task)
        return
    hardware = Hardware("gpu", "single", "bf16", THREADS, "cuda")
    for preset, batch, length in GPU_CASES:
        for rate in ATTENTION_DROPOUT:
            name = f"{preset}-{batch}x{length}-d{rate}"
            shape = {**shape_of(preset), "attention_probs_dropout_prob": rate}
            task = {"shape": shape, "batch": batch, "length": length, "steps": 20, "compile": True}
            fastest = float("inf")
            for kernel in candidates(EncoderConfig.parse(shape, preset), hardware, compiled=True):
                for deterministic in (True, False):
                    mode = "deterministic" if deterministic else "free"
                    found = share(
                        f"share-{name}-{kernel}-{mode}", {**task, "kernel": kernel, "deterministic": deterministic}
                    )
                    if deterministic:  # the setting of training
                        fastest = min(fastest, found["detail"]["seconds"])
                    yield found
            yield from compare_peer(f"pretrain-{name}-gpu", task, fastest)


def share(name: str, task: dict[str, Any]) -> dict[str, Any]:
    """Measure one case."""
    found = ask("bench.step", task={**task, "threads": THREADS, "profile": True})
    rate, unit = found["flops"] / found["seconds"] / 1e9, "GFLOP/s (peer: one large matrix product)"
    return comparison(name, rate, found["matmul_rate"] / 1e9, found["share"], unit, found)


def compare_peer(name: str, task: dict[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield comparisons with the peer, sdpa and compiled, on the same shapes."""
    for mode in ("sdpa", "compiled"):
        theirs = ask("bench.peer", "steps", task={**task, "threads": THREADS, "mode": mode})["seconds"]
        detail = {"batch": task["batch"], "length": task["length"]}
        yield comparison(f"{name}-{mode}", seconds, theirs, theirs / seconds, "seconds per step", detail)
