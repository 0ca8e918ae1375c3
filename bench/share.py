"""The share of the device's measured bf16 rate (one large matrix product) that a training step reaches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from bench.processes import THREADS, ask, shape_of

# (preset, batch, length); FLOPs are those that are computed: the head and the last layer at 15 % of the positions.
CPU_CASES = (("mini", 32, 128), ("base", 32, 128))
GPU_CASES = (("base", 256, 128), ("base", 64, 512), ("large", 128, 128), ("large", 32, 512))


def results() -> Iterator[dict[str, Any]]:
    """On a CPU eager, on a GPU compiled, there with deterministic algorithms and without."""
    on_gpu = torch.cuda.is_available()
    for preset, batch, length in GPU_CASES if on_gpu else CPU_CASES:
        for deterministic in (True, False) if on_gpu else (True,):
            task = {
                "shape": shape_of(preset),
                "batch": batch,
                "length": length,
                "threads": THREADS,
                "steps": 20 if on_gpu else 5,
                "compile": on_gpu,
                "deterministic": deterministic,
                "profile": True,
            }
            found = ask("bench.step", task=task)
            mode = "" if not on_gpu else ("-deterministic" if deterministic else "-free")
            yield {
                "name": f"share-{preset}-{batch}x{length}{mode}",
                "ours": found["flops"] / found["seconds"] / 1e9,
                "peer": found["matmul_rate"] / 1e9,
                "ratio": found["share"],
                "unit": "GFLOP/s (peer: one large matrix product)",
                "detail": found,
            }
            if on_gpu and deterministic:
                yield from beside_peer(task, found["seconds"])


def beside_peer(task: dict[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
    """The peer eager and compiled on the same shapes."""
    for mode in ("sdpa", "compiled"):
        theirs = ask("bench.peer", "steps", task={**task, "mode": mode})["seconds"]
        yield {
            "name": f"pretrain-{task['batch']}x{task['length']}-h{task['shape']['hidden_size']}-gpu-{mode}",
            "ours": seconds,
            "peer": theirs,
            "ratio": theirs / seconds,
            "unit": "seconds per step",
            "detail": {"batch": task["batch"], "length": task["length"]},
        }
