"""Sharded tensors (of fully_shard): gather them, and shard them again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gather `tensors` on the CPU. Every rank has to call this, in the same order."""
    return {name: tensor.cpu() for name, tensor in wholes(tensors)}


def wholes(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Gather `tensors` one after the other. Every rank has to take all of them, in the same order."""
    for name, tensor in tensors.items():
        yield name, whole(tensor)


def whole(tensor: Tensor) -> Tensor:
    """Gather a tensor that may be sharded. Every rank has to call this."""
    tensor = tensor.detach()
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def own_part(tensor: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor like `like`, and return the result on this rank."""
    if not is_sharded(like):
        return tensor.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    # No source rank: every rank has the whole and cuts its own part, without sending anything.
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def own_shards(tensors: Mapping[str, Tensor], is_first_rank: bool) -> Iterator[tuple[str, Tensor]]:
    """This rank's shards of `tensors` that are not empty; on the first rank, also those that are not sharded."""
    for name, tensor in tensors.items():
        if local(tensor).numel() if is_sharded(tensor) else is_first_rank:
            yield name, local(tensor)


def own_offsets(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The offsets of this rank's shards in every dimension of the sharded ones among `tensors`."""
    offsets: dict[str, tuple[int, ...]] = {}
    for name, tensor in tensors.items():
        if is_sharded(tensor):
            from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

            _, offsets[name] = compute_local_shape_and_global_offset(
                tensor.shape, tensor.device_mesh, tensor.placements
            )
    return offsets


def local(tensor: Tensor) -> Tensor:
    """The local shard of a sharded tensor; any other tensor unchanged."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def as_parts(own: Tensor, like: Tensor) -> Tensor:
    """Wrap the local shard `own` as a tensor that is sharded like `like`."""
    if not is_sharded(like):
        return own
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(own, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Check, without importing torch.distributed.tensor, which is slow: no sharded tensor exists before the import."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
