"""Attention autotuning: the kernel of a run is the fastest one that computes correctly on its device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from model.config.encoder import EncoderConfig
from model.config.hardware import Hardware
from model.config.pretraining import PretrainRun
from model.encoder.attention import SelfAttention
from model.engine.checkpoint import Checkpoint
from model.engine.distributed import Fabric
from model.ops.attention_kernels import KERNELS, AttentionKernel, AttentionMetadata
from model.ops.forward_context import ForwardContext

_TURNS, _WARM_UP = 5, 3
# Kernels round at other places (`flex` differs from `batched` by 0.4 % on a CPU in bf16); a wrong one is off by all.
_MOST_DIFFERENCE = 0.03


class Case(NamedTuple):
    """Shapes that a kernel is tried on, and the number of steps that have them."""

    batch: int
    length: int
    weight: float


def kernel_of_run(
    run: PretrainRun,
    config: EncoderConfig,
    hardware: Hardware,
    compiled: bool,
    found: Checkpoint | None,
    fabric: Fabric,
    say: Callable[[str], None],
) -> AttentionKernel:
    """The kernel that the machine's settings name, else that of the checkpoint `found`, so that the run keeps its bits,
    else the one that takes the least time on the shapes of all phases. Every rank has to call this."""
    if run.machine.attention != "auto":
        return run.machine.attention
    able = candidates(config, hardware, compiled)
    kernel: Any = None if found is None else found.state["environment"].get("attention")
    if kernel not in able and fabric.is_global_zero:  # not measured before, or on another device
        parts = fabric.world_size * run.recipe.accumulate
        cases = [Case(max(1, p.batch_size // parts), p.sequence_length, p.num_steps or 1) for p in run.recipe.phases]
        kernel = fastest(able, config, cases, compiled, fabric.device, say)
    chosen: AttentionKernel = fabric.broadcast(kernel)
    return chosen


def candidates(config: EncoderConfig, hardware: Hardware, compiled: bool) -> tuple[AttentionKernel, ...]:
    """Kernels to try, `batched` first: on a CPU nothing else trains; flash has no dropout and computes in bf16, and
    flex is slow unless it is compiled."""
    on_gpu = hardware.accelerator == "gpu"
    able = {
        "batched": True,
        "flex": on_gpu and compiled,
        "flash": on_gpu and config.attention_probs_dropout_prob == 0.0 and hardware.precision == "bf16",
    }
    return tuple(kernel for kernel in KERNELS if able[kernel])


def fastest(
    kernels: Sequence[AttentionKernel],
    config: EncoderConfig,
    cases: Sequence[Case],
    compiled: bool,
    device: torch.device,
    say: Callable[[str], None],
) -> AttentionKernel:
    """The kernel that takes the least time over all cases: one layer, forward and backward.

    The first of `kernels` is the reference. A kernel that fails or computes something else is reported and left out.
    """
    if len(kernels) == 1:
        return kernels[0]
    spent: dict[AttentionKernel, float] = {}
    expected: list[Tensor] = []
    for kernel in kernels:
        try:
            trials = [try_kernel(kernel, config, case, compiled, device) for case in cases]
        except Exception as error:  # whatever a kernel does not like about this device
            if kernel == kernels[0]:
                raise
            reason = (str(error).splitlines() or ["no message"])[0]
            say(f"attention: {kernel} does not run here ({type(error).__name__}: {reason})")
            continue
        found = [tensor for tensors, _ in trials for tensor in tensors]
        expected = expected or found
        worst = max(float((ours - right).norm() / right.norm()) for ours, right in zip(found, expected))
        if not worst <= _MOST_DIFFERENCE:
            say(f"attention: {kernel} is left out, it differs from {kernels[0]} by {100 * worst:.2g} %")
            continue
        spent[kernel] = sum(case.weight * seconds for case, (_, seconds) in zip(cases, trials))
    chosen = min(spent, key=lambda kernel: spent[kernel])
    times = ", ".join(f"{kernel} {seconds / spent[kernels[0]]:.2f}" for kernel, seconds in spent.items())
    say(f"attention: {chosen} (time of a layer's attention: {times})")
    return chosen


def try_kernel(
    kernel: AttentionKernel, config: EncoderConfig, case: Case, compiled: bool, device: torch.device
) -> tuple[list[Tensor], float]:
    """Output and input gradient of one layer's attention on random tokens, and the seconds that both take."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        layer = SelfAttention(config, site=0).to(device)
    num_tokens = case.batch * case.length
    hidden = torch.randn(num_tokens, config.hidden_size, generator=generator).to(device).requires_grad_()
    keys = torch.randint(-(2**31), 2**31, (case.batch, 2), generator=generator).to(device, torch.int32)
    cu_seqlens = torch.arange(0, num_tokens + 1, case.length, dtype=torch.int32, device=device)
    attention = AttentionMetadata(case.batch, case.length, cu_seqlens=cu_seqlens)
    context = ForwardContext(kernel, dropout_keys=keys[None]).start(attention, training=True, device=device)

    def forward(states: Tensor) -> Tensor:
        return layer(states, context)

    if compiled:
        torch._dynamo.reset()  # type: ignore[no-untyped-call]  # code of other shapes and kernels counts against a limit
    run = torch.compile(forward, dynamic=False) if compiled else forward
    seconds = []
    for _ in range(_WARM_UP + _TURNS):
        hidden.grad = None
        before = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16):
            output = run(hidden)
        output.float().square().sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - before)
    assert hidden.grad is not None
    return [output.detach().float(), hidden.grad.float()], statistics.median(seconds[_WARM_UP:])
