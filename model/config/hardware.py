"""Hardware options of a process, and their resolution on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from model.common.config_base import Settings
from model.common.errors import UserError

COMPILE_REPAYS_AFTER_SECONDS = 300.0
"""torch.compile takes one to two minutes on two cores; where it pays, it saves a third of a step."""

# How torch's threads wait for work, set before torch is imported: they spin for some microseconds. Spinning longer
# makes a step next to another busy process 1.6 times as slow; sleeping at once costs 5 % on a quiet machine.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}


class HardwareOptions(Settings):
    """Hardware that a process uses; `auto` is resolved from what the machine has."""

    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """Device type; auto selects gpu if there is one, else cpu."""
    num_devices: int = Field(default=1, ge=1)
    """Processes on each node; each has one device (or a share of the cores)."""
    num_nodes: int = Field(default=1, ge=1)
    """Nodes of the job."""
    strategy: Literal["auto", "single", "ddp", "sharded"] = "auto"
    """single for one process; for several processes ddp (a full copy on each) or sharded (weights, gradients and
    moments are distributed, for encoders that do not fit on one device). auto selects single or ddp."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of matrix products; weights, optimizer state and losses are always fp32."""
    num_threads: int = Field(default=0, ge=0)
    """Threads of a process on a CPU; 0 for all cores."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; auto enables it if the planned run is long enough to repay the compilation."""
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
        raise UserError("machine.accelerator: gpu was demanded, but torch sees none; say auto or cpu")
    on_gpu = machine.accelerator != "cpu" and torch.cuda.is_available()
    strategy = machine.strategy
    if strategy == "auto":
        strategy = "single" if machine.world_size == 1 else "ddp"
    if strategy == "single" and machine.world_size > 1:
        raise UserError(f"machine.strategy: single runs one process, not {machine.world_size}; say ddp")
    if strategy == "sharded" and machine.world_size == 1:
        raise UserError("machine.strategy: sharded spreads an encoder over several processes; say single for one")
    if strategy == "sharded" and machine.compile == "on":
        raise UserError("machine.compile: an encoder that is sharded is not compiled; say auto or off")
    if machine.attention in ("flex", "flash") and not on_gpu:
        raise UserError(f"machine.attention: {machine.attention} trains on a GPU alone; say auto or batched")
    precision = _fast_precision(on_gpu) if machine.precision == "auto" else machine.precision
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    num_threads = machine.num_threads or max(1, cores // (1 if on_gpu else machine.num_devices))
    return Hardware("gpu" if on_gpu else "cpu", strategy, precision, num_threads, "cuda" if on_gpu else "cpu")


def be_deterministic() -> None:
    """Restrict torch to deterministic algorithms."""
    import torch

    torch.use_deterministic_algorithms(True)
    # A debugging aid of that mode, which costs a pass over all new memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _fast_precision(on_gpu: bool) -> str:
    import torch

    if on_gpu:
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    # With bf16 products in the instruction set a step takes half the time; without them bf16 is emulated.
    return "bf16" if torch.cpu._is_avx512_bf16_supported() or products_are_fast() else "fp32"


def products_are_fast() -> bool:
    """Whether this CPU has matrix units (AMX). Without them, compiling saves nothing (docs/performance.md)."""
    import torch

    return torch.cpu._is_amx_tile_supported()


def is_compiled(machine: HardwareOptions, hardware: Hardware, planned_seconds: float) -> bool:
    """Decide whether training uses torch.compile, for a run that takes `planned_seconds` in eager mode."""
    if machine.compile != "auto":
        return machine.compile == "on"
    if hardware.strategy == "sharded" or (hardware.accelerator == "cpu" and not products_are_fast()):
        return False
    return planned_seconds > COMPILE_REPAYS_AFTER_SECONDS
