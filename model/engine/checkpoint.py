"""Checkpoints: a folder per step, complete or absent, with digests that a reader checks.

    step-00001000/
        model.safetensors      the module's weights
        optimizer.safetensors  the optimizer's moments, by parameter name
        state.json             the rest of the training state
        digests.json           SHA-256 of the other files

A folder is filled under another name and renamed, so a kill leaves the old checkpoints or one more.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric import Fabric
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model.common import files
from model.common.checkpoint_files import DIGESTS, Damaged, check_files, folder_name
from model.optim.sharding import own_part

_Layout = list[tuple[str, torch.Size, torch.dtype]]  # of tensors by name


class Checkpoint(NamedTuple):
    """The content of a checkpoint."""

    path: Path
    state: dict[str, Any]
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]


class Checkpoints:
    """The checkpoints in `directory`, of which the newest `num_kept` stay."""

    def __init__(self, directory: Path, num_kept: int) -> None:
        self.directory, self._num_kept = directory, num_kept

    def paths(self) -> list[Path]:
        """Folders of checkpoints, newest first."""
        return sorted(self.directory.glob("step-*"), reverse=True)

    def save(
        self, step: int, state: Mapping[str, Any], weights: Mapping[str, Tensor], moments: Mapping[str, Tensor]
    ) -> Path:
        """Write the checkpoint of `step`, then remove those that are too old."""
        path = self.directory / folder_name(step)
        with files.atomic_directory(path) as partial:
            save_file(dict(weights), partial / "model.safetensors")
            save_file(dict(moments), partial / "optimizer.safetensors")
            files.write_json(partial / "state.json", state)
            written = sorted(partial.iterdir())
            for file in written:
                _sync(file)
            files.write_json(partial / DIGESTS, {file.name: files.digest_of_file(file) for file in written})
        _sync(self.directory)
        for old in self.paths()[self._num_kept :]:
            shutil.rmtree(old)
        return path

    def newest(self, refuse: Callable[[str], None]) -> Checkpoint | None:
        """The newest intact checkpoint; `refuse` is called with a line about each damaged one."""
        paths = self.paths()
        for path in paths:
            try:
                return load_checkpoint(path)
            except Damaged as fault:
                then = "training starts over" if path == paths[-1] else "the checkpoint before it is used"
                refuse(f"{fault}; refused, {then}")
        return None


def of_first_rank(fabric: Fabric, find: Callable[[], Checkpoint | None]) -> Checkpoint | None:
    """Return what `find` returns on rank 0, on every rank.

    Other ranks may see older checkpoints, on a network file system for example, or none.
    """
    if fabric.world_size == 1:
        return find()
    found = find() if fabric.is_global_zero else None
    header: tuple[Path, dict[str, Any], list[_Layout]] | None = None
    if found is not None:
        header = found.path, found.state, [_layout(found.weights), _layout(found.moments)]
    header = fabric.broadcast(header)
    if header is None:
        return None
    path, state, layouts = header
    parts: list[dict[str, Tensor]] = []
    for own, layout in zip((found.weights, found.moments) if found else ({}, {}), layouts, strict=True):
        parts.append({})
        for name, shape, dtype in layout:
            tensor = own[name].to(fabric.device) if found else torch.empty(shape, dtype=dtype, device=fabric.device)
            torch.distributed.broadcast(tensor, src=0)
            parts[-1][name] = tensor.cpu()
    weights, moments = parts
    return Checkpoint(path, state, weights, moments)


def _layout(tensors: Mapping[str, Tensor]) -> _Layout:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        Damaged: a file is missing or does not match its digest.
    """
    check_files(path)
    state = files.read_json(path / "state.json")
    return Checkpoint(path, state, load_file(path / "model.safetensors"), load_file(path / "optimizer.safetensors"))


def optimizer_moments(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors as {moment.parameter: tensor}."""
    return {
        f"{moment}.{name}": value
        for name, parameter in module.named_parameters()
        for moment, value in optimizer.state.get(parameter, {}).items()
    }


def restore_moments(module: nn.Module, optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor]) -> None:
    """Restore the result of `optimizer_moments`."""
    for key, value in moments.items():
        moment, name = key.split(".", 1)
        parameter = module.get_parameter(name)
        optimizer.state[parameter][moment] = own_part(value, parameter) if value.ndim else value.to(parameter.device)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
