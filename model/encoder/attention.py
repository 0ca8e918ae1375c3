"""Multi-head self-attention (Vaswani et al. 2017), with dropout that is a function of its place.

One layer, three kernels for its inner part, which `model.engine.attention_autotune` chooses from by measuring:

- `batched`: scores of whole rectangles (batch, length, length) by batched products. Runs everywhere, and is the
  reference that the others are compared with.
- `flex`: torch's flex_attention over the tokens without padding; scores never reach memory. Same dropout.
- `flash`: torch's variable-length flash attention; CUDA alone, and only without dropout of the probabilities (it would
  draw from a generator with state).

`scaled_dot_product_attention` is none of them: its backward pass is slow on a CPU (DESIGN, section 10), and its dropout
draws from a generator, too.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from model.config.encoder import EncoderConfig
from model.ops.keyed_dropout import keep_at, keep_factors, row_hashes
from model.ops.linear import Linear

Kernel = Literal["batched", "flex", "flash"]
KERNELS: tuple[Kernel, ...] = ("batched", "flex", "flash")

HIDDEN = torch.finfo(torch.float32).min
"""Added to the scores of what is not seen; a row that sees nothing stays finite."""
_DROPPED = -40.0  # added to a score instead: e^-40 of a probability is none, and gradients stay finite
_BLOCK = 128  # of flex_attention


class Seen(NamedTuple):
    """Where the tokens of a flat batch lie, and which of them see each other."""

    batch: int
    length: int
    """Of the rectangle that the tokens are taken from, row by row."""
    tokens: Tensor | None
    """(num_tokens,) int64: the place in the flattened rectangle of each token; None where all places are tokens."""
    bias: Tensor | None
    """(batch, 1 or length, length) fp32, added to the scores of every head; None where all is seen. For `batched`."""
    borders: Tensor | None
    """(num_pieces + 1,) int32: tokens from one border to the next see each other and nothing else; those that stand
    for padding are pieces, too, and pieces may be empty. For `flex` and `flash`."""
    blocks: BlockMask | None
    """The same for `flex`."""

    def places(self, device: torch.device) -> Tensor:
        """(num_tokens,) int64: the place in the flattened rectangle of each token."""
        if self.tokens is None:
            return torch.arange(self.batch * self.length, device=device)
        return self.tokens


class _FromRectangle(torch.autograd.Function):
    """Rows of a tensor at places that are all different; its backward copies, where index_select's would add."""

    @staticmethod
    def forward(ctx: Any, rectangle: Tensor, tokens: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(tokens)
        ctx.num_places = len(rectangle)
        return rectangle.index_select(0, tokens)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (tokens,) = ctx.saved_tensors
        return grad.new_zeros((ctx.num_places, grad.shape[1])).index_copy_(0, tokens, grad), None


def blocks_of(borders: Tensor, num_tokens: int) -> BlockMask:
    """Which blocks of tokens hold any that see each other, for flex_attention.

    Args:
        borders: see `Seen`.
        num_tokens: where the last of them lies.
    """
    device = borders.device
    pieces = torch.bucketize(torch.arange(num_tokens, device=device), borders, right=True) - 1
    num_blocks = -(-num_tokens // _BLOCK)
    first = torch.arange(num_blocks, device=device) * _BLOCK
    last = (first + _BLOCK - 1).clamp(max=num_tokens - 1)
    begin = borders[pieces[first]] // _BLOCK  # tokens that see each other are neighbours, so blocks are, too
    end = (borders[pieces[last] + 1] - 1) // _BLOCK
    numbers = (begin[:, None] + torch.arange(num_blocks, dtype=torch.int32, device=device)) % num_blocks

    def is_same(_batch: Tensor, _head: Tensor, asking: Tensor, asked: Tensor) -> Tensor:
        return pieces[asking] == pieces[asked]

    return BlockMask.from_kv_blocks(
        (end - begin + 1)[None, None].to(torch.int32),
        numbers[None, None].to(torch.int32),
        BLOCK_SIZE=_BLOCK,
        mask_mod=is_same,
        seq_lengths=(num_tokens, num_tokens),
    )


def to_rectangle(flat: Tensor, seen: Seen) -> Tensor:
    """(num_tokens, width) as (batch, length, width), 0 at places without a token."""
    if seen.tokens is not None:
        flat = flat.new_zeros((seen.batch * seen.length, flat.shape[1])).index_copy(0, seen.tokens, flat)
    return flat.view(seen.batch, seen.length, -1)


def from_rectangle(rectangle: Tensor, seen: Seen) -> Tensor:
    """(batch, length, width) at the tokens, as (num_tokens, width)."""
    flat = rectangle.reshape(seen.batch * seen.length, -1)
    return flat if seen.tokens is None else _FromRectangle.apply(flat, seen.tokens)


class SelfAttention(nn.Module):
    """Queries, keys and values by one product, a kernel, and the output projection."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_size = config.hidden_size // config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.kernel: Kernel = "batched"
        self.query_key_value = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, wanted: Tensor | None, seen: Seen, keys: Tensor | None) -> Tensor:
        """Attend.

        Args:
            hidden: (num_tokens, hidden), what is looked at.
            wanted: (batch, num_wanted) int64, the tokens that look, those of each row of the rectangle; None where all
                do.
            seen: where the tokens lie and what they see.
            keys: (batch, 2), the dropout keys of this layer's probabilities; None for no dropout.

        Returns:
            (num_tokens or batch * num_wanted, hidden), after the output projection, before dropout and the residual
            sum.
        """
        if self.kernel == "batched" or not self.training:
            return self.output(self._batched(hidden, wanted, seen, keys))
        projected = self.query_key_value(hidden).view(-1, 3, self.num_heads, self.head_size)
        query, key, value = projected.unbind(1)
        mixed = (
            self._flash(query, key, value, seen)
            if self.kernel == "flash"
            else self._flex(query, key, value, seen, keys)
        )
        mixed = mixed.reshape(len(hidden), -1)
        return self.output(mixed if wanted is None else mixed.index_select(0, wanted.flatten()))

    def _batched(self, hidden: Tensor, wanted: Tensor | None, seen: Seen, keys: Tensor | None) -> Tensor:
        batch, length, heads = seen.batch, seen.length, self.num_heads
        query, key, value = self._project(hidden, wanted, seen)
        num_rows = query.shape[1]
        bias, rows = seen.bias, torch.arange(length, dtype=torch.int32, device=hidden.device)[None]
        if wanted is not None:
            places = wanted if seen.tokens is None else seen.tokens.index_select(0, wanted.flatten()).view(batch, -1)
            rows = (places % length).to(torch.int32)
            if bias is not None and bias.shape[1] > 1:
                bias = bias.reshape(-1, length).index_select(0, places.flatten()).view(batch, -1, length)
        scale = 1.0 / math.sqrt(self.head_size)
        if bias is None:
            scores = torch.bmm(query * scale, key.transpose(1, 2))
        else:
            spread = bias[:, None].expand(batch, heads, num_rows, length).reshape(-1, num_rows, length)
            scores = torch.baddbmm(spread.to(query.dtype), query, key.transpose(1, 2), alpha=scale)
        probabilities = torch.softmax(scores, dim=-1)
        if keys is not None:
            head = torch.arange(heads, dtype=torch.int32, device=rows.device)[:, None]
            kept = keep_factors(keys, (rows[:, None] * heads + head).flatten(1), length, self.dropout)
            probabilities = probabilities * kept.view(probabilities.shape).to(probabilities.dtype)
        mixed = torch.bmm(probabilities, value).view(batch, heads, num_rows, self.head_size).transpose(1, 2)
        if wanted is not None:
            return mixed.reshape(batch * num_rows, -1)
        return from_rectangle(mixed.reshape(batch, length, -1), seen)

    def _project(self, hidden: Tensor, wanted: Tensor | None, seen: Seen) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (batch * heads, num_rows, size), keys and values (batch * heads, length, size)."""
        batch, length, width = seen.batch, seen.length, hidden.shape[1]
        heads, size = self.num_heads, self.head_size
        if wanted is None:
            projected = to_rectangle(self.query_key_value(hidden), seen).view(batch, length, 3, heads, size)
            # One copy brings all three into place.
            query, key, value = projected.permute(2, 0, 3, 1, 4).reshape(3, -1, length, size).unbind(0)
            return query, key, value
        asking = hidden.index_select(0, wanted.flatten())
        asked, others = self.query_key_value.by_parts((asking, hidden), [width, 2 * width])
        asked = asked.view(batch, -1, heads, size)
        query = asked.transpose(1, 2).reshape(batch * heads, -1, size)
        pair = to_rectangle(others, seen).view(batch, length, 2, heads, size)
        key, value = pair.permute(2, 0, 3, 1, 4).reshape(2, batch * heads, length, size).unbind(0)
        return query, key, value

    def _flash(self, query: Tensor, key: Tensor, value: Tensor, seen: Seen) -> Tensor:
        """(num_tokens, heads, size) of each; the same of what is mixed."""
        from torch.nn.attention.varlen import varlen_attn

        assert seen.borders is not None and self.dropout == 0.0, "flash needs borders, and has no dropout"
        mixed = varlen_attn(query, key, value, seen.borders, seen.borders, seen.length, seen.length)
        assert isinstance(mixed, Tensor)
        return mixed

    def _flex(self, query: Tensor, key: Tensor, value: Tensor, seen: Seen, keys: Tensor | None) -> Tensor:
        """(num_tokens, heads, size) of each; the same of what is mixed.

        Dropping a probability is taking its score away and dividing by the sum of all exponentials, not by that of
        those that are left. The first sum comes from a second pass, over keys alone.
        """
        query, key, value = (part.transpose(0, 1)[None] for part in (query, key, value))
        if keys is None:
            return flex_attention(query, key, value, block_mask=seen.blocks)[0].transpose(0, 1)  # type: ignore[index, union-attr]
        rate, places = self.dropout, seen.places(query.device)
        samples, rows = places // seen.length, (places % seen.length).to(torch.int32)
        head_rows = rows[:, None] * self.num_heads + torch.arange(self.num_heads, dtype=torch.int32, device=rows.device)
        first, second = row_hashes(keys[samples][:, None], head_rows)  # (num_tokens, heads)

        def drop(score: Tensor, _batch: Tensor, head: Tensor, asking: Tensor, asked: Tensor) -> Tensor:
            kept = keep_at(first[asking, head], second[asking, head], rows[asked], rate)
            return torch.where(kept, score, score + _DROPPED)

        lse = AuxRequest(lse=True)
        mixed, left = flex_attention(query, key, value, drop, seen.blocks, return_aux=lse)
        _, everything = flex_attention(query, key, value[..., :16], block_mask=seen.blocks, return_aux=lse)
        assert left.lse is not None and everything.lse is not None  # type: ignore[union-attr]
        share = torch.exp(left.lse - everything.lse) / (1.0 - rate)  # type: ignore[union-attr]
        return (mixed * share[..., None].to(mixed.dtype))[0].transpose(0, 1)  # type: ignore[union-attr]
