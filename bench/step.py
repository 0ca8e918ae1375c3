"""Time our training step (module, dropout, clipping, optimizer) without Fabric, metrics log and checkpoints.

`python -m bench.step JSON` prints one line of JSON: the seconds per step, the fraction of the rate of a large matrix
product on the same device, and a profile by kind of operation. Runs on a GPU or a CPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.timing import device, median_seconds, random_pairs
from model.config.encoder import EncoderConfig
from model.config.hardware import be_deterministic
from model.data.collator import PretrainBatch
from model.data.masking import num_predictions
from model.encoder.flops import matmul_rate, training_flops
from model.objectives.masked_lm import PretrainingModule
from model.ops.forward_context import ForwardContext
from model.ops.keyed_dropout import DropoutKey
from model.optim.optimizers import MasterWeights, Optimizer, make_optimizer

# Prefixes of operation names by kind, for the profile.
KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::linear", "mkldnn", "aten::_addmm"),
    "attention products": ("aten::bmm", "aten::baddbmm"),
    "softmax, loss": ("aten::_softmax", "aten::_log_softmax", "_CrossEntropy"),
    "GELU, LayerNorm": ("aten::gelu", "aten::native_layer_norm", "_DropAddNorm"),
    "copies and casts": ("aten::copy_", "aten::_to_copy", "aten::fill_", "aten::cat", "aten::empty"),
    "optimizer, clipping": ("aten::_fused_adam", "Optimizer", "aten::linalg_vector_norm", "aten::mul_"),
}


def make_step(task: dict[str, Any]) -> Callable[[int], None]:
    """Return a function that takes step i; the task has shape, batch, length, threads, and optionally compile,
    deterministic and kernel."""
    torch.set_num_threads(task["threads"])
    if task.get("deterministic", True):
        be_deterministic()
    config = EncoderConfig.parse(task["shape"], "shape")
    batch, length = task["batch"], task["length"]
    predictions = num_predictions(length, 0.15, length)
    torch.manual_seed(0)
    ids, segments, pair_labels = random_pairs(batch, length, config.vocab_size)
    on = ids.device
    module = PretrainingModule(config).train().to(on)
    optimizer = make_optimizer(module, learning_rate=1e-4)
    eager_on_cpu = on.type == "cpu" and not task.get("compile", False)
    master_weights = MasterWeights(module, module.output_matrix, optimizer) if eager_on_cpu else None
    copies = None if master_weights is None else master_weights.copies
    context = ForwardContext(task.get("kernel", "batched"), low_precision=copies)
    if task.get("compile", False):
        module.compile(dynamic=False)
    places = torch.rand(batch, length - 2, device=on).argsort(1)[:, :predictions].sort(1)[0] + 1
    positions = torch.cat([torch.zeros(batch, 1, dtype=torch.long, device=on), places], 1)
    lengths = torch.full((batch,), length, device=on)
    fixed = ids, segments, lengths, positions, ids.gather(1, places), pair_labels
    whole = torch.zeros(batch, 0, device=on), torch.zeros(0, device=on)  # neither packing nor padding
    cu_seqlens = torch.arange(0, batch * length + 1, length, dtype=torch.int32, device=on)
    weights = torch.tensor([1 / (batch * predictions), 0.0, 1 / batch, 0.0], device=on)
    samples = torch.arange(batch)

    def step(number: int) -> None:
        keys = DropoutKey(0, number, samples).expand(module.encoder.num_dropouts).to(on, non_blocking=True)

        def loss() -> Tensor:
            return module(PretrainBatch(*fixed, keys, *whole, cu_seqlens), weights, context)[0]  # type: ignore[no-any-return]

        take_step(loss, module, optimizer, master_weights)

    return step


def take_step(
    make_loss: Callable[[], Tensor],
    module: PretrainingModule,
    optimizer: Optimizer,
    master_weights: MasterWeights | None,
    bf16: bool = True,
) -> None:
    """Run forward, backward, clipping to norm 1 and the optimizer, as the trainer does."""
    with torch.autocast(module.output_matrix.device.type, torch.bfloat16, enabled=bf16):
        loss = make_loss()
    loss.backward()
    if master_weights is None:
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    else:
        master_weights.collect_gradients(only_pass=True)
        master_weights.clip(1.0)
    optimizer.step()
    optimizer.zero_grad()


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Measure the median seconds and FLOPs of a step, the rate of a large matrix product, and the profile."""
    step = make_step(task)
    on = device()
    config, length = EncoderConfig.parse(task["shape"], "shape"), task["length"]
    before = matmul_rate(on, "bf16")
    seconds = median_seconds(step, task["steps"])
    rate = (before + matmul_rate(on, "bf16")) / 2
    flops = training_flops(config, task["batch"], length, num_predictions(length, 0.15, length))
    return {
        "seconds": seconds,
        "flops": flops,
        "matmul_rate": rate,
        "share": flops / seconds / rate,
        "parts": profile(step, on) if task.get("profile") else {},
        "device": torch.cuda.get_device_name() if on.type == "cuda" else "cpu",
    }


def profile(step: Callable[[int], None], on: torch.device, num_steps: int = 3) -> dict[str, float]:
    """Return the percentage of time by kind of operation."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    # Warm up: page faults of the profiler's first allocations would count as copies.
    schedule = torch.profiler.schedule(wait=0, warmup=4, active=num_steps, repeat=1)
    with torch.profiler.profile(activities=activities, schedule=schedule) as profiler:
        for number in range(4 + num_steps):
            step(number)
            profiler.step()
    spent: dict[str, float] = {}
    for event in profiler.key_averages():
        if event.key.startswith("ProfilerStep"):
            continue
        own = event.self_device_time_total if on.type == "cuda" else event.self_cpu_time_total
        kind = next((kind for kind, names in KINDS.items() if event.key.startswith(names)), "other")
        spent[kind] = spent.get(kind, 0.0) + own
    return {kind: round(100 * part / sum(spent.values()), 1) for kind, part in sorted(spent.items())}


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
