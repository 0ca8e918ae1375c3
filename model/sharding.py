"""Tensors that ranks hold in parts (fully_shard's): made whole, and cut into parts again."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All of `tensors` whole and on the CPU; every rank has to ask, in the same order."""
    return {name: whole(tensor).cpu() for name, tensor in tensors.items()}


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that ranks may hold in parts; every rank has to ask."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_part(tensor: Tensor, like: Tensor) -> Tensor:
    """Of a whole tensor, what this rank keeps of it if it keeps `like` in parts."""
    if not isinstance(like, DTensor):
        return tensor.to(like.device)
    # No source rank: every rank has the whole and cuts its own part, without sending anything.
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that ranks hold in parts; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def as_parts(own: Tensor, like: Tensor) -> Tensor:
    """`own` as this rank's part of a tensor that is held as `like` is."""
    if not isinstance(like, DTensor):
        return own
    return DTensor.from_local(own, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())
