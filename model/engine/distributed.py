"""Distributed training with Lightning's Fabric: one device, replicas (ddp), or sharded parameters (sharded)."""

from __future__ import annotations

import functools
import logging
import os
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from model.common.errors import UserError
from model.config.hardware import Hardware, HardwareOptions
from model.encoder.encoder import Encoder

RANK_TIMEOUT = timedelta(minutes=10)
"""How long ranks wait for one that hangs (compiling takes minutes); torchrun reports a dead rank within seconds."""


def make_fabric(machine: HardwareOptions, hardware: Hardware) -> Fabric:
    """Return a launched Lightning Fabric; one for a single process is made once and kept, also for forks.

    Raises:
        UserError: several ranks are requested and this process was not started by torchrun.
    """
    if machine.world_size == 1:
        return _fabric_of_one_process(hardware.accelerator, hardware.precision)
    if "LOCAL_RANK" not in os.environ:
        raise UserError(
            f"machine: {machine.world_size} ranks are requested; start the process under torchrun "
            f"(--nproc-per-node={machine.num_devices})"
        )
    # Else Lightning sets the number of threads from the node's cores, and two nodes differ from two ranks on one.
    os.environ.setdefault("OMP_NUM_THREADS", str(hardware.num_threads))
    strategy: Strategy = DDPStrategy(gradient_as_bucket_view=True, timeout=RANK_TIMEOUT)
    if hardware.strategy == "sharded":
        strategy = ModelParallelStrategy(
            _shard, data_parallel_size=machine.world_size, tensor_parallel_size=1, timeout=RANK_TIMEOUT
        )
    return _launch(
        hardware.accelerator,
        hardware.precision,
        devices=machine.num_devices,
        num_nodes=machine.num_nodes,
        strategy=strategy,
    )


@functools.cache  # Fabric reads the metadata of all installed packages, which takes longer than a small job's data
def _fabric_of_one_process(accelerator: str, precision: str) -> Fabric:
    # Without this environment, the process would be taken for a rank of the Slurm job that it may run in.
    return _launch(accelerator, precision, devices=1, plugins=[LightningEnvironment()])


def _launch(accelerator: str, precision: str, **options: Any) -> Fabric:
    for name in ("lightning.fabric", "lightning.pytorch"):  # they print the settings that the user chose
        logging.getLogger(name).setLevel(logging.WARNING)
    fabric = Fabric(
        accelerator="cuda" if accelerator == "gpu" else "cpu",
        precision="bf16-mixed" if precision == "bf16" else "32-true",
        **options,
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


def shares_directory(fabric: Fabric, directory: Path) -> bool:
    """Check whether `directory` is the same on all ranks. Every rank has to call this."""
    probe = directory / f".shared.{uuid.uuid4().hex}"  # a new name: no file system can have cached that it is missing
    if fabric.is_global_zero:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
    seen = (directory / fabric.broadcast(probe.name)).exists()
    num_seen = fabric.all_reduce(torch.tensor(float(seen), device=fabric.device), reduce_op="sum")
    if fabric.is_global_zero:
        probe.unlink()
    assert isinstance(num_seen, torch.Tensor)
    return int(num_seen) == fabric.world_size


class SavingGroup:
    """The ranks that write the parts of a checkpoint together.

    They have a process group of their own, so that their background threads may talk while training uses the other
    group. Every rank has to create it, and to call its methods in the same order.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.rank, self.num_ranks = fabric.global_rank, fabric.world_size
        self._group = dist.new_group(backend="gloo", timeout=RANK_TIMEOUT)

    def from_first_rank(self, value: str | None = None) -> str:
        """Return the first rank's `value`."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._group)
        assert values[0] is not None
        return values[0]

    def merged(self, action: Callable[[], dict[str, str]]) -> dict[str, str]:
        """Run `action` on every rank, and return all results in one. Raises on every rank what it raised on any."""
        mine: dict[str, str] | Exception
        try:
            mine = action()
        except Exception as error:
            mine = error
        outcomes: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(outcomes, mine, group=self._group)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return {name: value for outcome in outcomes for name, value in outcome.items()}
