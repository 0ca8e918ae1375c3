"""Sharded tensors (of fully_shard): gather them, and shard them again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def gathered(tensors: Mapping[str, Tensor], keep: bool = True) -> dict[str, Tensor]:
    """Gather `tensors` on the CPU. Every rank has to call this, in the same order.

    Args:
        keep: False on ranks that only take part: they copy nothing, and the result is empty.
    """
    found = {}
    for name, tensor in tensors.items():
        full = whole(tensor)
        if keep:
            found[name] = full.cpu()
    return found


def whole(tensor: Tensor) -> Tensor:
    """Gather a tensor that may be sharded. Every rank has to call this."""
    tensor = tensor.detach()
    return tensor.full_tensor() if _is_in_parts(tensor) else tensor


def own_part(tensor: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor like `like`, and return the result on this rank."""
    if not _is_in_parts(like):
        return tensor.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    # No source rank: every rank has the whole and cuts its own part, without sending anything.
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def local(tensor: Tensor) -> Tensor:
    """The local shard of a sharded tensor; any other tensor unchanged."""
    return tensor.to_local() if _is_in_parts(tensor) else tensor


def as_parts(own: Tensor, like: Tensor) -> Tensor:
    """Wrap the local shard `own` as a tensor that is sharded like `like`."""
    if not _is_in_parts(like):
        return own
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(own, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())


def _is_in_parts(tensor: Tensor) -> TypeGuard[DTensor]:
    """Check without importing torch.distributed.tensor, which is slow: no such tensor exists before the import."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
