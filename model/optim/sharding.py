"""Tensors that ranks hold in parts (fully_shard's): made whole, and cut into parts again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_HOME = "torch.distributed.tensor"


def gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All of `tensors` whole and on the CPU; every rank has to ask, in the same order."""
    return {name: whole(tensor).cpu() for name, tensor in tensors.items()}


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that ranks may hold in parts; every rank has to ask."""
    tensor = tensor.detach()
    return tensor.full_tensor() if _is_in_parts(tensor) else tensor


def own_part(tensor: Tensor, like: Tensor) -> Tensor:
    """Of a whole tensor, what this rank keeps of it if it keeps `like` in parts."""
    if not _is_in_parts(like):
        return tensor.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    # No source rank: every rank has the whole and cuts its own part, without sending anything.
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that ranks hold in parts; any other tensor itself."""
    return tensor.to_local() if _is_in_parts(tensor) else tensor


def as_parts(own: Tensor, like: Tensor) -> Tensor:
    """`own` as this rank's part of a tensor that is held as `like` is."""
    if not _is_in_parts(like):
        return own
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(own, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())


def _is_in_parts(tensor: Tensor) -> TypeGuard[DTensor]:
    """Nobody can hold such a tensor before its module is imported, which takes as long as half of torch."""
    module = sys.modules.get(_HOME)
    return module is not None and isinstance(tensor, module.DTensor)
