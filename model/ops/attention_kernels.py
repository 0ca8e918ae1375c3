"""Attention kernels: three ways to compute softmax(Q K^T) V, and the mask rule that they share.

- `batched`: batched matrix products over padded (batch, length, length) scores. Runs on every device, and is the
  reference for the other kernels.
- `flex`: torch's flex_attention over unpadded tokens. The scores are never written to memory. Same dropout.
- `flash`: torch's variable-length flash attention over unpadded tokens. CUDA only, without dropout of the
  probabilities (its dropout draws from a stateful generator), and only for masks that are causal or a window.

`scaled_dot_product_attention` is not used: its backward pass is slow on a CPU (DESIGN, section 10), and its dropout
draws from a stateful generator, too.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from model.ops.keyed_dropout import keep_at, keep_factors, row_hashes

AttentionKernel = Literal["batched", "flex", "flash"]
KERNELS: tuple[AttentionKernel, ...] = ("batched", "flex", "flash")

_MASKED_SCORE = torch.finfo(torch.float32).min  # finite, so that the softmax of a fully masked row stays finite
_DROPPED_SCORE = -40.0  # e^-40 is 0 next to any probability, and gradients stay finite
_BLOCK = 128  # tokens in a block of flex_attention


class MaskPositions(NamedTuple):
    """Positions as the mask rule sees them. The fields of queries and keys broadcast against each other."""

    segment: Tensor
    rank: Tensor | None
    position: Tensor


def attends(query: MaskPositions, key: MaskPositions, window: int | None) -> Tensor:
    """The mask rule: position i attends to j if they share a segment, rank[j] <= rank[i], and |i - j| <= window.

    Without ranks every rank is 0 (BERT); without a window the distance is unlimited.
    """
    visible = query.segment == key.segment
    if query.rank is not None and key.rank is not None:
        visible = visible & (key.rank <= query.rank)
    if window is not None:
        visible = visible & ((query.position - key.position).abs() <= window)
    return visible


class AttentionMetadata(NamedTuple):
    """The layout of a batch of tokens, and which of them attend to each other; names as in flash-attn.

    A batch is a padded rectangle (batch, length), of which only num_tokens positions are computed if `indices` is
    given.
    """

    batch: int
    length: int
    """Length of the padded rows."""
    segments: Tensor | None = None
    """(batch, length): the segment number of each position. None: each row is one segment. Read by `batched`."""
    is_packed: bool = False
    """Rows hold several segments. Otherwise `segments` is an attention mask: True for tokens, False for padding."""
    ranks: Tensor | Literal["position"] | None = None
    """(batch, length): the rank of each position. "position": left to right. None: 0 everywhere."""
    window: int | None = None
    """Largest distance between two tokens that attend to each other; None for no limit."""
    indices: Tensor | None = None
    """(num_tokens,) int64: position of each computed token in the flattened (batch, length); None for all positions."""
    query_indices: Tensor | None = None
    """(batch, num_queries) int64: the computed tokens, [CLS] first, at which the last layer is evaluated; None for all
    of them."""
    cu_seqlens: Tensor | None = None
    """(num_segments + 1,) int32: cumulative lengths of the segments among the computed tokens; padding forms segments,
    too, and segments may be empty. Read by `flex` and `flash`."""
    bias: Tensor | None = None
    """(batch, 1 or length, length) fp32, added to the scores of `batched`; set by `prepare`. None for no mask."""
    blocks: BlockMask | None = None
    """The mask of `flex`; set by `prepare`."""

    def prepare(self, kernel: AttentionKernel, device: torch.device) -> AttentionMetadata:
        """Compute what `kernel` needs once for all layers."""
        if kernel == "batched":
            return self._replace(bias=self._bias(device))
        assert self.cu_seqlens is not None, f"the attention kernel {kernel} needs cu_seqlens"
        return self._replace(blocks=self._block_mask(self.cu_seqlens)) if kernel == "flex" else self

    def positions(self, device: torch.device) -> Tensor:
        """(num_tokens,) int64: position of each computed token in the flattened (batch, length)."""
        return torch.arange(self.batch * self.length, device=device) if self.indices is None else self.indices

    def query_positions(self) -> Tensor:
        """(batch, num_queries) int64: position of each query in the flattened (batch, length)."""
        assert self.query_indices is not None
        if self.indices is None:
            return self.query_indices
        return self.indices.index_select(0, self.query_indices.flatten()).view(self.batch, -1)

    def at_tokens(self, values: Tensor) -> Tensor:
        """(batch, length) to (num_tokens,): the values of the computed tokens."""
        return values.flatten() if self.indices is None else values.flatten().index_select(0, self.indices)

    def _bias(self, device: torch.device) -> Tensor | None:
        if self.segments is None and self.ranks is None and self.window is None:
            return None
        index = torch.arange(self.length, device=device)
        segments = torch.ones((1, self.length), device=device) if self.segments is None else self.segments
        ranks = index[None] if self.ranks == "position" else self.ranks
        assert not isinstance(ranks, str)
        key = MaskPositions(segments[:, None], None if ranks is None else ranks[:, None], index)
        if self.is_packed or ranks is not None or self.window is not None:
            query = MaskPositions(segments[:, :, None], None if ranks is None else ranks[:, :, None], index[:, None])
        else:  # one row serves all tokens; the hidden states of padding are never read
            query = MaskPositions(torch.ones((), dtype=torch.bool, device=device), None, index)
        return (~attends(query, key, self.window)).to(torch.float32) * _MASKED_SCORE

    def _block_mask(self, cu_seqlens: Tensor) -> BlockMask:
        """The blocks of tokens that share a segment, and the mask rule within them."""
        device = cu_seqlens.device
        num_tokens = self.batch * self.length if self.indices is None else len(self.indices)
        segments = torch.bucketize(torch.arange(num_tokens, device=device), cu_seqlens, right=True) - 1
        ranks = self.at_tokens(self.ranks) if isinstance(self.ranks, Tensor) else self.ranks
        num_blocks = -(-num_tokens // _BLOCK)
        first = torch.arange(num_blocks, device=device) * _BLOCK
        last = (first + _BLOCK - 1).clamp(max=num_tokens - 1)
        begin = cu_seqlens[segments[first]] // _BLOCK  # the tokens of a segment are adjacent, and so are their blocks
        end = (cu_seqlens[segments[last] + 1] - 1) // _BLOCK
        numbers = (begin[:, None] + torch.arange(num_blocks, dtype=torch.int32, device=device)) % num_blocks

        def at(token: Tensor) -> MaskPositions:
            rank = ranks[token] if isinstance(ranks, Tensor) else token if ranks == "position" else None
            return MaskPositions(segments[token], rank, token)

        def mask_mod(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return attends(at(query), at(key), self.window)

        return BlockMask.from_kv_blocks(
            (end - begin + 1)[None, None].to(torch.int32),
            numbers[None, None].to(torch.int32),
            BLOCK_SIZE=_BLOCK,
            mask_mod=mask_mod,
            seq_lengths=(num_tokens, num_tokens),
        )


class _Unpad(torch.autograd.Function):
    """Select distinct rows of a padded tensor. The backward pass copies rows, where index_select's would add them."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, indices: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(indices)
        ctx.num_positions = len(padded)
        return padded.index_select(0, indices)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (indices,) = ctx.saved_tensors
        return grad.new_zeros((ctx.num_positions, grad.shape[1])).index_copy_(0, indices, grad), None


def pad(tokens: Tensor, metadata: AttentionMetadata) -> Tensor:
    """(num_tokens, width) to (batch, length, width), 0 at positions that are not computed."""
    if metadata.indices is not None:
        shape = metadata.batch * metadata.length, tokens.shape[1]
        tokens = tokens.new_zeros(shape).index_copy(0, metadata.indices, tokens)
    return tokens.view(metadata.batch, metadata.length, -1)


def unpad(padded: Tensor, metadata: AttentionMetadata) -> Tensor:
    """(batch, length, width) to (num_tokens, width)."""
    flat = padded.reshape(metadata.batch * metadata.length, -1)
    return flat if metadata.indices is None else _Unpad.apply(flat, metadata.indices)


def batched_attention(
    query: Tensor, key: Tensor, value: Tensor, heads: int, metadata: AttentionMetadata, keys: Tensor | None, rate: float
) -> Tensor:
    """Attention by batched matrix products.

    Args:
        query: (batch * heads, num_queries or length, head_size).
        key, value: (batch * heads, length, head_size).
        keys: (batch, 2), dropout keys of the probabilities; None for no dropout.

    Returns:
        (batch * num_queries or num_tokens, hidden).
    """
    batch, length, bias = metadata.batch, metadata.length, metadata.bias
    num_rows, size = query.shape[1], query.shape[2]
    rows = torch.arange(length, dtype=torch.int32, device=query.device)[None]
    if metadata.query_indices is not None:
        positions = metadata.query_positions()
        rows = (positions % length).to(torch.int32)
        if bias is not None and bias.shape[1] > 1:
            bias = bias.expand(batch, -1, -1).reshape(-1, length).index_select(0, positions.flatten())
            bias = bias.view(batch, -1, length)
    scale = 1.0 / math.sqrt(size)
    if bias is None:
        scores = torch.bmm(query * scale, key.transpose(1, 2))
    else:
        per_head = bias[:, None].expand(batch, heads, num_rows, length).reshape(-1, num_rows, length)
        scores = torch.baddbmm(per_head.to(query.dtype), query, key.transpose(1, 2), alpha=scale)
    probabilities = torch.softmax(scores, dim=-1)
    if keys is not None:
        head = torch.arange(heads, dtype=torch.int32, device=rows.device)[:, None]
        kept = keep_factors(keys, (rows[:, None] * heads + head).flatten(1), length, rate)
        probabilities = probabilities * kept.view(probabilities.shape).to(probabilities.dtype)
    mixed = torch.bmm(probabilities, value).view(batch, heads, num_rows, size).transpose(1, 2)
    if metadata.query_indices is not None:
        return mixed.reshape(batch * num_rows, -1)
    return unpad(mixed.reshape(batch, length, -1), metadata)


def flash_attention(query: Tensor, key: Tensor, value: Tensor, metadata: AttentionMetadata) -> Tensor:
    """Variable-length flash attention of (num_tokens, heads, head_size) each; returns the same shape."""
    from torch.nn.attention.varlen import varlen_attn

    if isinstance(metadata.ranks, Tensor):
        raise ValueError("flash attention supports causal and windowed masks only; use the kernel flex or batched")
    assert metadata.cu_seqlens is not None
    left = -1 if metadata.window is None else metadata.window
    window = left, 0 if metadata.ranks == "position" else left
    lengths = metadata.cu_seqlens, metadata.cu_seqlens, metadata.length, metadata.length
    mixed = varlen_attn(query, key, value, *lengths, window_size=window)
    assert isinstance(mixed, Tensor)
    return mixed


def flex_kernel(
    query: Tensor, key: Tensor, value: Tensor, metadata: AttentionMetadata, keys: Tensor | None, rate: float
) -> Tensor:
    """flex_attention of (num_tokens, heads, head_size) each; returns the same shape.

    Dropping a probability removes its score, but the softmax still divides by the sum of all exponentials. That sum
    comes from a second pass over the keys alone. `keys` (batch, 2) are the dropout keys; None for no dropout.
    """
    num_heads = query.shape[1]
    query, key, value = (part.transpose(0, 1)[None] for part in (query, key, value))
    if keys is None:
        return flex_attention(query, key, value, block_mask=metadata.blocks)[0].transpose(0, 1)  # type: ignore[index, union-attr]
    positions = metadata.positions(query.device)
    samples, rows = positions // metadata.length, (positions % metadata.length).to(torch.int32)
    head_rows = rows[:, None] * num_heads + torch.arange(num_heads, dtype=torch.int32, device=rows.device)
    first, second = row_hashes(keys[samples][:, None], head_rows)  # (num_tokens, heads)

    def drop(score: Tensor, _batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        kept = keep_at(first[query, head], second[query, head], rows[key], rate)
        return torch.where(kept, score, score + _DROPPED_SCORE)

    lse = AuxRequest(lse=True)
    mixed, kept = flex_attention(query, key, value, drop, metadata.blocks, return_aux=lse)
    _, full = flex_attention(query, key, value[..., :16], block_mask=metadata.blocks, return_aux=lse)
    assert kept.lse is not None and full.lse is not None  # type: ignore[union-attr]
    share = torch.exp(kept.lse - full.lse) / (1.0 - rate)  # type: ignore[union-attr]
    return (mixed * share[..., None].to(mixed.dtype))[0].transpose(0, 1)  # type: ignore[union-attr]
