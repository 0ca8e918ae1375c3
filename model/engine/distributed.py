"""Distributed training with Lightning's Fabric: one device, replicas (ddp), or sharded parameters (sharded)."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from model.common.errors import UserError
from model.config.hardware import Hardware, HardwareOptions
from model.encoder.encoder import Encoder

__all__ = ["Fabric", "is_loss_of_a_rank", "make_fabric"]

RANK_TIMEOUT = timedelta(minutes=10)
"""How long ranks wait for one that hangs (compiling takes minutes); torchrun reports a dead rank within seconds."""


def make_fabric(machine: HardwareOptions, hardware: Hardware) -> Fabric:
    """Make and launch Lightning's Fabric.

    Raises:
        UserError: several ranks are requested and this process was not started by torchrun.
    """
    if machine.world_size > 1 and "LOCAL_RANK" not in os.environ:
        raise UserError(
            f"machine: {machine.world_size} ranks are requested; start the process under torchrun "
            f"(--nproc-per-node={machine.num_devices})"
        )
    for name in ("lightning.fabric", "lightning.pytorch"):  # they print the settings that the user chose
        logging.getLogger(name).setLevel(logging.WARNING)
    strategies: dict[str, Any] = {
        "single": "auto",
        "ddp": DDPStrategy(gradient_as_bucket_view=True, timeout=RANK_TIMEOUT),
        "sharded": ModelParallelStrategy(
            _shard, data_parallel_size=machine.world_size, tensor_parallel_size=1, timeout=RANK_TIMEOUT
        ),
    }
    fabric = Fabric(
        accelerator="cuda" if hardware.accelerator == "gpu" else "cpu",
        devices=machine.num_devices,
        num_nodes=machine.num_nodes,
        strategy=strategies[hardware.strategy],
        precision="bf16-mixed" if hardware.precision == "bf16" else "32-true",
        # A single process must not be taken for a rank of the Slurm job that it may run in.
        plugins=[LightningEnvironment()] if machine.world_size == 1 else None,
    )
    fabric.launch()
    return fabric


def _shard(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard the parameters of each layer, which are gathered when it computes; the rest is one more unit."""
    data_mesh = mesh["data_parallel"]
    for encoder in [part for part in module.modules() if isinstance(part, Encoder)]:
        for layer in encoder.layers:
            fully_shard(layer, mesh=data_mesh)
    fully_shard(module, mesh=data_mesh)
    return module


def is_loss_of_a_rank(error: Exception) -> bool:
    """Check whether `error` is what ranks see when another rank exited or timed out."""
    signs = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "remote process exited")
    return isinstance(error, dist.DistError) or any(sign in str(error) for sign in signs)
