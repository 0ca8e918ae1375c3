"""The share of the device's measured bf16 rate (one large matrix product) that a training step reaches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from bench.processes import THREADS, ask, shape_of
from model.config.encoder import EncoderConfig
from model.config.hardware import Placement
from model.engine.attention_autotune import candidates

# (preset, batch, length); FLOPs are those that are computed: the head and the last layer at 15 % of the positions.
CPU_CASES = (("mini", 32, 128), ("base", 32, 128))
GPU_CASES = (("base", 256, 128), ("base", 64, 512), ("large", 128, 128), ("large", 32, 512))
ATTENTION_DROPOUT = (0.1, 0.0)  # the paper's, and what today's recipes do (flash has none)


def results() -> Iterator[dict[str, Any]]:
    """On a CPU eager; on a GPU compiled, by every kernel of attention, with deterministic algorithms and without."""
    if not torch.cuda.is_available():
        for preset, batch, length in CPU_CASES:
            task = {"shape": shape_of(preset), "batch": batch, "length": length, "steps": 5}
            yield share(f"share-{preset}-{batch}x{length}", task)
        return
    placement = Placement("gpu", "single", "bf16", THREADS, "cuda")
    for preset, batch, length in GPU_CASES:
        for rate in ATTENTION_DROPOUT:
            name = f"{preset}-{batch}x{length}-d{rate}"
            shape = {**shape_of(preset), "attention_probs_dropout_prob": rate}
            task = {"shape": shape, "batch": batch, "length": length, "steps": 20, "compile": True}
            fastest = float("inf")
            for kernel in candidates(EncoderConfig.parse(shape, preset), placement, compiled=True):
                for deterministic in (True, False):
                    mode = "deterministic" if deterministic else "free"
                    found = share(
                        f"share-{name}-{kernel}-{mode}", {**task, "kernel": kernel, "deterministic": deterministic}
                    )
                    if deterministic:  # as training runs
                        fastest = min(fastest, found["detail"]["seconds"])
                    yield found
            yield from beside_peer(f"pretrain-{name}-gpu", task, fastest)


def share(name: str, task: dict[str, Any]) -> dict[str, Any]:
    """One case."""
    found = ask("bench.step", task={**task, "threads": THREADS, "profile": True})
    return {
        "name": name,
        "ours": found["flops"] / found["seconds"] / 1e9,
        "peer": found["matmul_rate"] / 1e9,
        "ratio": found["share"],
        "unit": "GFLOP/s (peer: one large matrix product)",
        "detail": found,
    }


def beside_peer(name: str, task: dict[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
    """The peer eager and compiled on the same shapes."""
    for mode in ("sdpa", "compiled"):
        theirs = ask("bench.peer", "steps", task={**task, "threads": THREADS, "mode": mode})["seconds"]
        yield {
            "name": f"{name}-{mode}",
            "ours": seconds,
            "peer": theirs,
            "ratio": theirs / seconds,
            "unit": "seconds per step",
            "detail": {"batch": task["batch"], "length": task["length"]},
        }
