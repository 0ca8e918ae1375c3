"""Safetensors files of checkpoints: written from host memory with their digests, and read from one or several parts.

torch's HuggingFaceStorageWriter writes such parts too, but builds each file in memory a second time, gives no digest
without reading it back, plans with collective operations, and its file names do not say how many parts there are.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

_CHUNK_BYTES = 2**23  # a multiple of the page size; large, since each takes the interpreter's lock from training
_DTYPES = {  # in the order in which safetensors writes them, so that equal tensors give equal bytes
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_RANK_OF_DTYPE = {dtype: rank for rank, dtype in enumerate(_DTYPES)}
_SHARDS, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"  # in the metadata, as torch.distributed.checkpoint has them


class HostCopies:
    """Copies of tensors in host memory, which is pinned if they come from a GPU and reused for the next copies."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def of(self, tensors: Iterable[tuple[str, Tensor]], is_final: bool = False) -> dict[str, Tensor]:
        """Copy named tensors; the result is valid until the next call.

        Args:
            is_final: nothing changes the tensors anymore, so those that are in host memory need no copy.
        """
        before, self._buffers = self._buffers, {}
        copies: dict[str, Tensor] = {}
        device = None
        for name, tensor in tensors:
            if is_final and not tensor.is_cuda:
                copies[name] = tensor.detach().contiguous()
                continue
            buffer = before.get(name)
            if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            copies[name] = self._buffers[name] = buffer.copy_(tensor.detach(), non_blocking=True)
            device = tensor.device
        if device is not None and device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        return copies


def write_tensors(path: Path, tensors: Mapping[str, Tensor], offsets: Mapping[str, Sequence[int]] | None = None) -> str:
    """Write contiguous tensors in host memory as safetensors, to the disk itself, and return the file's SHA-256.

    The bytes are those of `safetensors.torch.save_file`. Runs next to training: it copies a chunk at a time, and
    copies, writes and hashes release the interpreter's lock.

    Args:
        offsets: if the file is one of several parts, the place of each shard in its tensor, for `read_tensors` and for
            torch.distributed.checkpoint's HuggingFaceStorageReader. Whole tensors need none.
    """
    header: dict[str, Any] = {}
    if offsets is not None:
        places = {name: {_OFFSETS: [*offsets.get(name, [0] * tensors[name].ndim)]} for name in sorted(tensors)}
        header["__metadata__"] = {_SHARDS: json.dumps(places)}
    names = sorted(tensors, key=lambda name: (_RANK_OF_DTYPE[tensors[name].dtype], name))
    end = 0
    for name in names:
        tensor, begin = tensors[name], end
        end += tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [begin, end]}
    encoded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    length = len(encoded).to_bytes(8, "little")
    file = _DirectFile(path)
    try:
        file.write(np.frombuffer(length + encoded, np.uint8))
        for name in names:
            file.write(tensors[name].view(-1).view(torch.uint8).numpy())
        return file.finish()
    finally:
        file.close()


class _DirectFile:
    """A new file that is written around the system's cache of file pages, and hashed.

    Filling that cache takes several times as much of a core as everything else together, and training needs the cores.
    On a file system that refuses this (tmpfs), or a system without it, the cache is used.
    """

    def __init__(self, path: Path) -> None:
        self._memory = mmap.mmap(-1, _CHUNK_BYTES)  # page-aligned, as direct writes have to be
        self._buffer = np.frombuffer(self._memory, np.uint8)
        self._filled = self._size = 0
        self._digest = hashlib.sha256()
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
        self._is_direct = hasattr(os, "O_DIRECT")
        try:
            self._descriptor = os.open(path, flags | (os.O_DIRECT if self._is_direct else 0), 0o666)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._is_direct:
                raise
            self._is_direct = False
            self._descriptor = os.open(path, flags, 0o666)

    def write(self, content: npt.NDArray[np.uint8]) -> None:
        while len(content):
            part = content[: _CHUNK_BYTES - self._filled]
            np.copyto(self._buffer[self._filled : self._filled + len(part)], part)
            self._filled += len(part)
            content = content[len(part) :]
            if self._filled == _CHUNK_BYTES:
                self._flush()

    def finish(self) -> str:
        """Write the rest to the disk itself, and return the SHA-256."""
        self._flush()
        os.ftruncate(self._descriptor, self._size)
        os.fsync(self._descriptor)
        return self._digest.hexdigest()

    def close(self) -> None:
        os.close(self._descriptor)

    def _flush(self) -> None:
        content = self._buffer[: self._filled].data
        self._digest.update(content)
        self._size += self._filled
        # The last part is written with what follows it in the buffer, because direct writes have whole pages.
        end = -(-self._filled // mmap.PAGESIZE) * mmap.PAGESIZE if self._is_direct else self._filled
        done = 0
        while done < end:
            try:
                done += os.write(self._descriptor, self._buffer[done:end].data)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._is_direct:
                    raise
                self._is_direct = False  # the file system takes the flag, but no such writes
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, 0)
        self._filled = 0


def read_tensors(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Read a safetensors file, or assemble tensors from the parts that `write_tensors` wrote with offsets."""
    if len(paths) == 1:
        return load_file(paths[0])
    shards: dict[str, list[tuple[Sequence[int], Tensor]]] = {}
    for path in paths:
        with safe_open(path, "pt") as file:
            offsets = json.loads(file.metadata()[_SHARDS])
            for name in offsets:
                shards.setdefault(name, []).append((offsets[name][_OFFSETS], file.get_tensor(name)))
    return {name: _whole_of(shards.pop(name)) for name in list(shards)}


def _whole_of(shards: Sequence[tuple[Sequence[int], Tensor]]) -> Tensor:
    ends = [[begin + size for begin, size in zip(offset, shard.shape)] for offset, shard in shards]
    whole = shards[0][1].new_empty([max(sizes) for sizes in zip(*ends)])
    for (offset, shard), end in zip(shards, ends):
        whole[tuple(map(slice, offset, end))] = shard
    return whole
