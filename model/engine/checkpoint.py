"""Checkpoints: a folder per step, complete or absent, with digests that a reader checks.

    step-00001000/
        model.safetensors      the module's weights
        optimizer.safetensors  the optimizer's moments, by parameter name
        state.json             the rest of the training state
        digests.json           SHA-256 of the other files

A folder is filled under another name and renamed, so a kill leaves the old checkpoints or one more. Ranks that share a
sharded module write a part each, model-00001-of-00002.safetensors and so on, which any number of ranks can read.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from model.common import files
from model.common.checkpoint_files import DIGESTS, KINDS, STATE, Damaged, check_files, folder_name, tensor_file
from model.engine.distributed import SavingGroup
from model.engine.tensor_files import read_tensors, write_tensors
from model.optim.sharding import own_part

_Layout = list[tuple[str, torch.Size, torch.dtype]]  # of tensors by name


class Checkpoint(NamedTuple):
    """The content of a checkpoint."""

    path: Path
    state: dict[str, Any]
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]


class Checkpoints:
    """The checkpoints in `directory`, of which the newest `num_kept` stay.

    Args:
        require_ownership: called right before a checkpoint appears, and raises if another process owns the directory.
    """

    def __init__(self, directory: Path, num_kept: int, require_ownership: Callable[[], None] = lambda: None) -> None:
        self.directory, self._num_kept, self._require_ownership = directory, num_kept, require_ownership

    def paths(self) -> list[Path]:
        """Folders of checkpoints, newest first."""
        return sorted(self.directory.glob("step-*"), reverse=True)

    def save(
        self,
        step: int,
        state: bytes,
        weights: Mapping[str, Tensor],
        moments: Mapping[str, Tensor],
        group: SavingGroup | None = None,
        offsets: Mapping[str, Sequence[int]] | None = None,
    ) -> Path:
        """Write the checkpoint of `step`, then remove those that are too old.

        Args:
            state: JSON.
            weights, moments: contiguous tensors in host memory, which do not change meanwhile.
            group: the ranks that all call this, each with its shards; None if this rank has everything.
            offsets: with a group, the place of each shard in its tensor (see `write_tensors`).
        """
        path = self.directory / folder_name(step)
        write = functools.partial(_write_part, dict(zip(KINDS, (weights, moments))), group, offsets)
        if group is not None and group.rank > 0:
            folder = self.directory / group.from_first_rank()
            group.merged(lambda: write(folder))
            return path
        try:
            with files.atomic_directory(path) as partial:
                if group is not None:
                    group.from_first_rank(partial.name)
                    digests = group.merged(lambda: write(partial))
                else:
                    digests = write(partial)
                files.write_bytes(partial / STATE, state)
                digests[STATE] = hashlib.sha256(state).hexdigest()
                files.write_json(partial / DIGESTS, digests)
                self._require_ownership()
        except OSError:
            self._require_ownership()  # the next owner may have removed the files
            raise
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
    names = check_files(path)
    weights, moments = (read_tensors([path / name for name in names if name.startswith(kind)]) for kind in KINDS)
    return Checkpoint(path, files.read_json(path / STATE), weights, moments)


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


def _write_part(
    tensors: Mapping[str, Mapping[str, Tensor]],
    group: SavingGroup | None,
    offsets: Mapping[str, Sequence[int]] | None,
    folder: Path,
) -> dict[str, str]:
    """Write this rank's tensors of each kind to `folder`; return the digests of its files."""
    part, num_parts = (0, 1) if group is None else (group.rank, group.num_ranks)
    names = {tensor_file(kind, part, num_parts): kind for kind in tensors}
    return {name: write_tensors(folder / name, tensors[kind], offsets) for name, kind in names.items()}
