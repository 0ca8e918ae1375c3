"""Files of tensors: the bytes of safetensors, digests without reading back, parts that torch reads too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor

from model.common.files import digest_of_file
from model.engine.tensor_files import HostCopies, read_tensors, write_tensors


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    kinds = [torch.int64, torch.float64, torch.float32, torch.int32, torch.bfloat16, torch.float16, torch.int16]
    kinds += [torch.int8, torch.uint8, torch.bool]
    found = {
        f"{name}.{kind}": torch.randint(0, 2, shape, generator=generator).to(kind)
        for kind in reversed(kinds)
        for name, shape in (("z", (3, 5)), ("a", (7,)), ("scalar", ()), ("empty", (0, 4)))
    }
    return {**found, 'a "name" \\ é': torch.randn(2_200_000, generator=generator), "b": torch.tensor([1.0, torch.nan])}


@pytest.mark.parametrize("is_direct", [True, False])
def test_the_bytes_are_those_of_safetensors_and_the_digest_is_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_direct: bool
) -> None:
    if not is_direct:  # as on macOS
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    for number, content in enumerate((tensors(), {"one": torch.ones(1)}, {})):
        ours, theirs = tmp_path / f"ours{number}", tmp_path / f"theirs{number}"
        digest = write_tensors(ours, content)
        save_file(content, theirs)
        assert ours.read_bytes() == theirs.read_bytes()
        assert digest == digest_of_file(ours)


def test_parts_are_read_as_one_also_by_torch(tmp_path: Path) -> None:
    whole = {"w": torch.randn(7, 4), "b": torch.randn(3), "n": torch.tensor(5.0), "t": torch.arange(6).bfloat16()}
    cuts = {"w": [(0, 3), (3, 6), (6, 7)], "b": [(0, 2), (2, 3)], "t": [(0, 6)]}  # "b" and "t" are not in every part
    paths = []
    for part in range(3):
        own = {name: cut[part] for name, cut in cuts.items() if part < len(cut)}
        shards = {name: whole[name][begin:end].clone() for name, (begin, end) in own.items()}
        offsets = {name: (begin, *[0] * (whole[name].ndim - 1)) for name, (begin, _) in own.items()}
        paths.append(tmp_path / f"{part}.safetensors")
        write_tensors(paths[-1], {**shards, **({"n": whole["n"]} if part == 0 else {})}, offsets)
    found = read_tensors(paths)
    assert found.keys() == whole.keys() and all(torch.equal(found[name], whole[name]) for name in whole)
    theirs = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    dcp.load(theirs, storage_reader=dcp.HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    assert all(torch.equal(theirs[name], whole[name]) for name in whole)


def test_copies_are_reused_and_do_not_follow_their_sources() -> None:
    host, source = HostCopies(), {"w": torch.ones(1000, 10), "transposed": torch.randn(3, 5).T}
    first = host.of(source.items())
    places = {name: copy.data_ptr() for name, copy in first.items()}
    assert all(copy.is_contiguous() and torch.equal(copy, source[name]) for name, copy in first.items())
    source["w"].add_(1)
    assert first["w"].eq(1).all()
    again = host.of(source.items())
    assert {name: copy.data_ptr() for name, copy in again.items()} == places and again["w"].eq(2).all()
    final = host.of(source.items(), is_final=True)
    assert final["w"].data_ptr() == source["w"].data_ptr() and final["transposed"].is_contiguous()
    after = host.of(source.items())
    assert after["w"].data_ptr() != source["w"].data_ptr()  # no copy for good
