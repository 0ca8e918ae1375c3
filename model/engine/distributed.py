"""How ranks share a run, by Lightning's strategies: one device, copies of the module (ddp), or its parts (sharded)."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from model.common.errors import UserError
from model.config.hardware import Hardware
from model.config.pretrain_run import PretrainRun
from model.engine.fabric import DDPStrategy, Fabric, ModelParallelStrategy, Strategy

SILENCE = timedelta(minutes=10)
"""How long ranks wait for one that hangs (compiling takes minutes); of a dead one torchrun tells them in seconds."""


def make_fabric(run: PretrainRun, hardware: Hardware) -> Fabric:
    """Lightning's Fabric for this run, launched.

    Raises:
        UserError: several ranks are asked for and this process is not one of them.
    """
    machine = run.machine
    if machine.world_size > 1 and "LOCAL_RANK" not in os.environ:
        raise UserError(
            f"machine: {machine.world_size} ranks are asked for; start the process under torchrun "
            f"(--nproc-per-node={machine.num_devices})"
        )
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces what RUN.json says
    strategies: dict[str, Any] = {
        "single": "auto",
        "ddp": DDPStrategy(gradient_as_bucket_view=True, timeout=SILENCE),
        "sharded": ModelParallelStrategy(
            _shard, data_parallel_size=machine.world_size, tensor_parallel_size=1, timeout=SILENCE
        ),
    }
    strategy: Strategy | str = strategies[hardware.strategy]
    fabric = Fabric(
        accelerator="cuda" if hardware.accelerator == "gpu" else "cpu",
        devices=machine.num_devices,
        num_nodes=machine.num_nodes,
        strategy=strategy,
        precision="bf16-mixed" if hardware.precision == "bf16" else "32-true",
    )
    fabric.launch()
    return fabric


def _shard(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Each layer's parameters are spread over the ranks and gathered when it computes; the rest is one more unit."""
    data_mesh = mesh["data_parallel"]
    for layer in module.encoder.layers:  # type: ignore[union-attr]
        fully_shard(layer, mesh=data_mesh)
    fully_shard(module, mesh=data_mesh)
    return module


def is_loss_of_a_rank(error: Exception) -> bool:
    """Whether `error` is what the other ranks see when one is gone or silent."""
    signs = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "remote process exited")
    return isinstance(error, dist.DistError) or any(sign in str(error) for sign in signs)
