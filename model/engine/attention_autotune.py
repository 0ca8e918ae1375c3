"""Which kernel computes attention: decided by measuring on the device at hand."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.config.encoder import EncoderConfig
from model.config.hardware import Hardware
from model.config.pretraining import PretrainRecipe, PretrainRun
from model.encoder.attention import SelfAttention
from model.engine.checkpoint import Checkpoint
from model.engine.distributed import Fabric
from model.ops.attention_kernels import KERNELS, AttentionKernel, AttentionMetadata
from model.ops.forward_context import ForwardContext

_TURNS, _WARM_UP = 5, 3
# Kernels round at other places (`flex` differs from `batched` by 0.4 % on a CPU in bf16); a wrong one is off by all.
_MOST_DIFFERENCE = 0.03


def kernel_of_run(
    run: PretrainRun,
    config: EncoderConfig,
    hardware: Hardware,
    compiled: bool,
    found: Checkpoint | None,
    fabric: Fabric,
    say: Callable[[str], None],
) -> AttentionKernel:
    """As the machine's settings say; else what the run had before (at the checkpoint `found`), so that its bits stay;
    else what is fastest. All ranks are to ask, and get the first one's answer."""
    kernel: AttentionKernel | None = None if run.machine.attention == "auto" else run.machine.attention
    if kernel is None and found is not None:
        before = found.state["environment"].get("attention")
        if before in candidates(config, hardware, compiled):  # it may go on on another device
            kernel = before
    if kernel is None and fabric.is_global_zero:
        kernel = choose_kernel(config, run.recipe, hardware, compiled, fabric.world_size, fabric.device, say)
    kernel = fabric.broadcast(kernel)
    assert kernel is not None, "the first rank has chosen"
    return kernel


def choose_kernel(
    config: EncoderConfig,
    recipe: PretrainRecipe,
    hardware: Hardware,
    compiled: bool,
    num_ranks: int,
    device: torch.device,
    say: Callable[[str], None],
) -> AttentionKernel:
    """The kernel with which the run's attention takes the least time.

    On a CPU that is always `batched`. Elsewhere each candidate runs one layer forward and backward on the shapes of
    every phase. One that fails, or gives something else than `batched` does, is left out, and `say` tells it.
    """
    cases = []
    for phase in recipe.phases:
        rows = max(1, phase.batch_size // (num_ranks * recipe.accumulate))
        cases.append(Case(rows, phase.sequence_length, phase.num_steps or 1))
    return fastest(candidates(config, hardware, compiled), config, cases, compiled, device, say)


def candidates(config: EncoderConfig, hardware: Hardware, compiled: bool) -> tuple[AttentionKernel, ...]:
    """What can be tried, `batched` first: on a CPU nothing else trains; flash has no dropout and computes in bf16, and
    flex is slow unless it is compiled."""
    on_gpu = hardware.accelerator == "gpu"
    able = {
        "batched": True,
        "flex": on_gpu and compiled,
        "flash": on_gpu and config.attention_probs_dropout_prob == 0.0 and hardware.precision == "bf16",
    }
    return tuple(kernel for kernel in KERNELS if able[kernel])


@dataclass(frozen=True)
class Case:
    """Shapes that a kernel is tried on."""

    batch: int
    length: int
    weight: float
    """How much its time counts: steps."""


def fastest(
    kernels: Sequence[AttentionKernel],
    config: EncoderConfig,
    cases: Sequence[Case],
    compiled: bool,
    device: torch.device,
    say: Callable[[str], None],
) -> AttentionKernel:
    """Of `kernels`, the first of which is right by definition, the one that takes least time over all cases."""
    if len(kernels) == 1:
        return kernels[0]
    spent: dict[AttentionKernel, float] = {}
    expected: list[list[Tensor]] = []
    for kernel in kernels:
        try:
            trials = [try_kernel(kernel, config, case, compiled, device) for case in cases]
        except Exception as error:  # whatever a kernel does not like about this device
            if kernel == kernels[0]:
                raise
            reason = (str(error).splitlines() or ["no message"])[0]
            say(f"attention: {kernel} does not run here ({type(error).__name__}: {reason})")
            continue
        found = [tensors for tensors, _ in trials]
        expected = expected or found
        worst = max(_difference(ours, right) for a, b in zip(found, expected) for ours, right in zip(a, b))
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
    """One layer's attention on random tokens: its output and the gradient of its input, and the seconds of both."""
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


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
