"""Hardware options of a process, and how `auto` is resolved on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from model.common.bounds import Processes, ProcessesOrZero
from model.common.config_base import Settings
from model.common.errors import UserError

COMPILE_REPAYS_AFTER_SECONDS = 300.0
"""torch.compile takes one to two minutes on two cores and can shorten a step by a third."""

# Idle OpenMP threads spin for a few microseconds before they sleep; set before torch is imported. Longer spinning slows
# a step next to another busy process by a factor of 1.6; sleeping at once costs 5 % on an idle machine.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}


class HardwareOptions(Settings):
    """Hardware options of a process; `auto` depends on the machine."""

    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """Device type; auto uses a GPU if one is available, else the CPU."""
    num_devices: Processes = 1
    """Processes per node, each with one device (or a share of the cores)."""
    num_nodes: Processes = 1
    """Number of nodes."""
    strategy: Literal["auto", "single", "ddp", "sharded"] = "auto"
    """single: one process; ddp: a full copy per process; sharded: weights, gradients and moments are distributed over
    the processes, for encoders that do not fit on one device. auto selects single or ddp."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of matrix products; weights, optimizer state and losses are always fp32."""
    num_threads: ProcessesOrZero = 0
    """CPU threads per process; 0 uses all cores."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Use torch.compile; auto enables it if the run is long enough to repay the compilation."""
    attention: Literal["auto", "batched", "flex", "flash"] = "auto"
    """The attention kernel (see model/ops/attention_kernels.py). auto selects batched on a CPU and the fastest kernel
    on a GPU, measured at the start and recorded in the checkpoints; flash needs attention_probs_dropout_prob 0."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.num_devices * self.num_nodes


@dataclass(frozen=True)
class Hardware:
    """Resolved hardware options, without `auto`."""

    accelerator: str
    strategy: str
    precision: str
    num_threads: int
    device: str


def resolve(machine: HardwareOptions) -> Hardware:
    """Resolve every `auto` on this machine.

    Raises:
        UserError: a GPU is required and there is none, or the strategy does not fit the other options.
    """
    import torch

    if machine.accelerator == "gpu" and not torch.cuda.is_available():
        raise UserError("machine.accelerator: gpu, but torch finds no GPU; set it to auto or cpu")
    on_gpu = machine.accelerator != "cpu" and torch.cuda.is_available()
    strategy = machine.strategy
    if strategy == "auto":
        strategy = "single" if machine.world_size == 1 else "ddp"
    if strategy == "single" and machine.world_size > 1:
        raise UserError(f"machine.strategy: single runs one process, not {machine.world_size}; set it to ddp")
    if strategy == "sharded" and machine.world_size == 1:
        raise UserError("machine.strategy: sharded needs several processes; set it to single")
    if strategy == "sharded" and machine.compile == "on":
        raise UserError("machine.compile: sharded encoders cannot be compiled; set it to auto or off")
    if machine.attention in ("flex", "flash") and not on_gpu:
        raise UserError(f"machine.attention: {machine.attention} requires a GPU; set it to auto or batched")
    precision = _fast_precision(on_gpu) if machine.precision == "auto" else machine.precision
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    num_threads = machine.num_threads or max(1, cores // (1 if on_gpu else machine.num_devices))
    return Hardware("gpu" if on_gpu else "cpu", strategy, precision, num_threads, "cuda" if on_gpu else "cpu")


def be_deterministic() -> None:
    """Restrict torch to deterministic algorithms."""
    import torch

    torch.use_deterministic_algorithms(True)
    # This debugging aid of the deterministic mode writes to all new memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _fast_precision(on_gpu: bool) -> str:
    import torch

    if on_gpu:
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    # CPUs with bf16 instructions halve the time of a step; others emulate bf16.
    return "bf16" if torch.cpu._is_avx512_bf16_supported() or products_are_fast() else "fp32"


def products_are_fast() -> bool:
    """Check whether this CPU has matrix units (AMX); compiling saves nothing without them (bench/RESULTS.md)."""
    import torch

    return torch.cpu._is_amx_tile_supported()


def is_compiled(machine: HardwareOptions, hardware: Hardware, planned_seconds: float) -> bool:
    """Decide whether training uses torch.compile, for a run that takes `planned_seconds` in eager mode."""
    if machine.compile != "auto":
        return machine.compile == "on"
    if hardware.strategy == "sharded" or (hardware.accelerator == "cpu" and not products_are_fast()):
        return False
    return planned_seconds > COMPILE_REPAYS_AFTER_SECONDS
