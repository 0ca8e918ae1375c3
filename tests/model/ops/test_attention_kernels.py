"""The mask rule, and the attention kernels that implement it, against a loop over pairs of positions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from model.ops.attention_kernels import AttentionMetadata, batched_attention, flash_attention, flex_kernel

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

BATCH, LENGTH, HEADS, SIZE = 2, 200, 2, 8
LENGTHS = (200, 130)
PACKED = ((60, 50, 90), (70, 40, 20))  # lengths of the segments of each row; what is left is padding
POSITION = torch.arange(LENGTH).expand(BATCH, LENGTH)
IS_TOKEN = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]

CASES: dict[str, dict[str, object]] = {
    "padding": {},
    "packed": {"is_packed": True},
    "left to right": {"ranks": "position"},
    "packed, left to right": {"is_packed": True, "ranks": "position"},
    "prefix": {"ranks": (POSITION - 30).clamp(min=0)},
    "permuted": {"ranks": torch.rand(BATCH, LENGTH, generator=torch.Generator().manual_seed(3)).argsort(1)},
    "window": {"window": 5},
    "packed window, left to right": {"is_packed": True, "ranks": "position", "window": 5},
}


def metadata_of(case: dict[str, object], unpadded: bool) -> AttentionMetadata:
    segments, lengths = IS_TOKEN, [part for used in LENGTHS for part in (used, LENGTH - used)]
    if case.get("is_packed"):
        rows = [(*row, LENGTH - sum(row)) for row in PACKED]
        segments = torch.stack([torch.arange(4).repeat_interleave(torch.tensor(row)) for row in rows])
        lengths = [part for row in rows for part in row]
    indices = None
    if unpadded:  # each row's last segment is its padding
        width = len(lengths) // BATCH
        lengths = [part for number, part in enumerate(lengths) if number % width != width - 1]
        indices = IS_TOKEN.flatten().nonzero()[:, 0]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return AttentionMetadata(BATCH, LENGTH, segments, indices=indices, cu_seqlens=cu_seqlens)._replace(**case)  # type: ignore[arg-type]


def naive(query: Tensor, key: Tensor, value: Tensor, metadata: AttentionMetadata) -> Tensor:
    """(batch, heads, length, size) of each, position by position; returns (batch, length, hidden)."""
    assert metadata.segments is not None
    segments = metadata.segments.tolist()
    ranks = metadata.ranks
    ranks = POSITION if ranks == "position" else torch.zeros(BATCH, LENGTH) if ranks is None else ranks
    assert isinstance(ranks, Tensor)
    ranked = ranks.tolist()
    limit = LENGTH if metadata.window is None else metadata.window
    mixed = torch.zeros(BATCH, LENGTH, HEADS * SIZE)
    for b in range(BATCH):
        for i in range(LENGTH):
            seen = [
                j
                for j in range(LENGTH)
                if segments[b][j] == segments[b][i] and ranked[b][j] <= ranked[b][i] and abs(i - j) <= limit
            ]
            scores = (key[b][:, seen] @ query[b, :, i, :, None])[..., 0] / math.sqrt(SIZE)
            mixed[b, i] = (scores.softmax(-1)[:, None] @ value[b][:, seen])[:, 0].flatten()
    return mixed


def states() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    query, key, value = torch.randn(3, BATCH, HEADS, LENGTH, SIZE, generator=generator).unbind(0)
    return query, key, value


@pytest.fixture(autouse=True)
def _flex_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)


@pytest.mark.parametrize("unpadded", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_batched_and_flex_follow_the_mask_rule(name: str, unpadded: bool) -> None:
    query, key, value = states()
    metadata = metadata_of(CASES[name], unpadded)
    expected = naive(query, key, value, metadata)[IS_TOKEN]
    device = query.device
    tokens = IS_TOKEN if metadata.indices is None else torch.ones(len(metadata.indices), dtype=torch.bool)

    per_head = query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
    mixed = batched_attention(*per_head, HEADS, metadata.prepare("batched", device), None, 0.0)
    torch.testing.assert_close(mixed[tokens.flatten()], expected, atol=1e-5, rtol=1e-5)

    positions = metadata.positions(device)
    every = [part.transpose(1, 2).reshape(-1, HEADS, SIZE)[positions] for part in (query, key, value)]
    flat = every[0], every[1], every[2]
    mixed = flex_kernel(*flat, metadata.prepare("flex", device), None, 0.0)
    torch.testing.assert_close(mixed.flatten(1)[tokens.flatten()], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_last_layer_masks_its_queries_alike(name: str) -> None:
    query, key, value = states()
    metadata = metadata_of(CASES[name], unpadded=True)
    chosen = torch.tensor([[0, 7, 100], [0, 61, 129]])
    numbers = chosen + torch.tensor([[0], [LENGTHS[0]]])
    expected = naive(query, key, value, metadata)[torch.arange(BATCH)[:, None], chosen]
    at_queries = query.gather(2, chosen[:, None, :, None].expand(-1, HEADS, -1, SIZE)).flatten(0, 1)
    prepared = metadata.prepare("batched", query.device)._replace(query_indices=numbers)
    mixed = batched_attention(at_queries, key.flatten(0, 1), value.flatten(0, 1), HEADS, prepared, None, 0.0)
    torch.testing.assert_close(mixed.view(BATCH, 3, -1), expected, atol=1e-5, rtol=1e-5)


def test_flash_gets_causal_masks_and_windows_and_refuses_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def varlen_attn(query: Tensor, *_: object, window_size: tuple[int, int]) -> Tensor:
        asked.append(window_size)
        return query

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    zeros = torch.zeros(BATCH * LENGTH, HEADS, SIZE)
    flat = zeros, zeros, zeros
    for name in ("padding", "left to right", "window", "packed window, left to right"):
        flash_attention(*flat, metadata_of(CASES[name], False))
    assert asked == [(-1, -1), (-1, 0), (5, 5), (5, 0)]
    with pytest.raises(ValueError, match="causal and windowed"):
        flash_attention(*flat, metadata_of(CASES["prefix"], False))
