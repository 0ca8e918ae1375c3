"""Vectors on disk: every format holds the same numbers, and a file is there when it is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from model.common.errors import UserError
from tasks.predict.embedding_io import Chunk, write_vectors

VECTORS = np.random.default_rng(0).standard_normal((70, 5)).astype(np.float32)
TEXTS = [f'text {number} "é"' for number in range(70)]


def chunks() -> Iterator[Chunk]:
    for begin in (0, 32, 64):
        yield TEXTS[begin : begin + 32], VECTORS[begin : begin + 32]


def test_every_format_holds_the_same(tmp_path: Path) -> None:
    for ending in ("npy", "safetensors", "parquet", "jsonl"):
        assert write_vectors(tmp_path / f"v.{ending}", chunks(), 5) == 70
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").open()]
    table = pq.read_table(tmp_path / "v.parquet")
    assert [line["text"] for line in lines] == table["text"].to_pylist() == TEXTS
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), VECTORS)
    np.testing.assert_array_equal(load_file(tmp_path / "v.safetensors")["vectors"], VECTORS)
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), dtype=np.float32), VECTORS)
    np.testing.assert_allclose(np.array([line["vector"] for line in lines]), VECTORS, rtol=1e-6)
    assert len(list(tmp_path.iterdir())) == 4
    assert np.load(tmp_path / "v.npy", mmap_mode="r").shape == (70, 5)


@pytest.mark.parametrize("ending", ["npy", "safetensors", "parquet", "jsonl"])
def test_none_at_all(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"v.{ending}"
    assert write_vectors(path, iter([]), 5) == 0
    if ending == "npy":
        assert np.load(path).shape == (0, 5)
    if ending == "safetensors":
        assert load_file(path)["vectors"].shape == (0, 5)


def test_a_file_is_there_when_it_is_whole(tmp_path: Path) -> None:
    def broken() -> Iterator[Chunk]:
        yield TEXTS[:1], VECTORS[:1]
        raise UserError("line 2: not UTF-8")

    (tmp_path / "v.npy").write_bytes(b"before")
    with pytest.raises(UserError, match="line 2"):
        write_vectors(tmp_path / "v.npy", broken(), 5)
    assert (tmp_path / "v.npy").read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(UserError, match=r"v.txt: expected a file that ends in .jsonl, .npy, .safetensors, .parquet"):
        write_vectors(tmp_path / "v.txt", chunks(), 5)
    with pytest.raises(UserError, match="no such directory"):
        write_vectors(tmp_path / "none" / "v.npy", chunks(), 5)
