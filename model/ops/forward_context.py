"""The context of a forward pass: everything a layer reads besides its input and its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model.ops.attention_kernels import AttentionKernel, AttentionMetadata
from model.ops.fused_cpu import bits


class LowPrecisionCopy:
    """The bf16 copy of an fp32 master weight, and the gradient of that weight; see `MasterWeights`.

    Args:
        weight: (rows, width) fp32, on a CPU.
    """

    def __init__(self, weight: Tensor) -> None:
        self.values = weight.detach().bfloat16().requires_grad_(weight.requires_grad)
        """(rows, width) bf16, used in matrix products."""
        self.embedding_grad: Tensor | None = None
        """(rows, width) fp32, sparse and coalesced: the gradient of embedding look-ups, to be added to the bf16 one."""
        self._no_rows = np.full(len(weight), -1, dtype=np.int32)
        self._no_values = np.empty((0, weight.shape[1]), dtype=np.float32)

    def gradient_arrays(self, weight: Tensor) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        """The gradient of `weight` in the form that `model.ops.fused_cpu.adamw` reads: (gradient, places), extra."""
        assert weight.grad is not None
        if self.embedding_grad is None:
            return (bits(weight.grad), self._no_rows), self._no_values
        rows = self.embedding_grad.indices()[0].numpy()
        places = self._no_rows.copy()
        places[rows] = np.arange(len(rows), dtype=np.int32)
        return (bits(weight.grad), places), self.embedding_grad.values().numpy()


class ForwardContext(NamedTuple):
    """Options and metadata of one forward pass, handed down to every layer.

    Callers set the first four fields; the encoder fills in the others.
    """

    kernel: AttentionKernel = "batched"
    """The attention kernel. Evaluation always uses `batched`."""
    attention: AttentionMetadata | None = None
    """Layout and mask of the batch; None: each row is one sequence without padding."""
    dropout_keys: Tensor | None = None
    """(num_dropouts, batch, 2) int32: the key of each dropout layer and sequence; None for no dropout."""
    low_precision: Mapping[Tensor, LowPrecisionCopy] | None = None
    """The bf16 copies that matrix products use instead of the master weights."""
    row_keys: Tensor | None = None
    """(num_dropouts, num_keys, 2) int32: `dropout_keys` as `model.ops.dropout_add_norm.drop` reads them."""
    rows: Tensor | None = None
    """(num_keys or 1, rows per key) int32: position in its sequence of each row that is computed."""

    def start(self, attention: AttentionMetadata, training: bool, device: torch.device) -> ForwardContext:
        """The context of the encoder's layers, for a batch with this layout."""
        kernel = self.kernel if training else "batched"
        keys = self.dropout_keys if training else None
        positions = attention.positions(device)
        if attention.indices is None:  # all rows of a sequence share its key
            rows, row_keys = (positions % attention.length)[: attention.length][None], keys
        else:
            rows = (positions % attention.length)[:, None]
            row_keys = None if keys is None else keys.index_select(1, positions // attention.length)
        attention = attention._replace(query_indices=None).prepare(kernel, device)
        return self._replace(
            kernel=kernel, attention=attention, dropout_keys=keys, row_keys=row_keys, rows=rows.to(torch.int32)
        )

    def at_queries(self, query_indices: Tensor | None) -> ForwardContext:
        """The context of the last layer, which computes only the tokens `query_indices` (see `AttentionMetadata`)."""
        if query_indices is None:
            return self
        assert self.attention is not None
        attention = self.attention._replace(query_indices=query_indices)
        rows = (attention.query_positions() % attention.length).to(torch.int32)
        return self._replace(attention=attention, row_keys=self.dropout_keys, rows=rows)

    def dropout_at(self, site: int) -> tuple[Tensor, Tensor | None]:
        """Rows and keys of one dropout layer, as `model.ops.dropout_add_norm.drop` reads them."""
        assert self.rows is not None
        return self.rows, None if self.row_keys is None else self.row_keys[site]

    def weight(self, weight: Tensor) -> Tensor:
        """The tensor that matrix products use for `weight`: its bf16 copy if there is one."""
        if self.low_precision is None or weight not in self.low_precision:
            return weight
        return self.low_precision[weight].values


DEFAULT_CONTEXT = ForwardContext()
"""Evaluation: no dropout, no low-precision copies."""
