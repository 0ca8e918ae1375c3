"""Without padding, and by every kernel of attention: the same loss and the same gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from model.config.encoder import EncoderConfig
from model.config.pretraining import Masking
from model.data.collator import Collator, PretrainBatch
from model.data.sampler import EpochSampler
from model.data.token_store import TokenStore
from model.data.unpadding import Unpadding, unpad
from model.encoder.init import initialize
from model.objectives.masked_lm import PretrainingModule
from model.ops.attention_kernels import AttentionKernel, AttentionMetadata
from model.ops.forward_context import ForwardContext
from model.tokenizer.wordpiece import SpecialIds, Vocabulary

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

LENGTH, BATCH = 48, 12
SPECIALS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
CONFIG = EncoderConfig(
    vocab_size=120, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=48
)


def batch_of(store: TokenStore, objective: str, granule: int | None) -> PretrainBatch:
    sampler = EpochSampler(store, LENGTH, objective=objective, short_probability=0.5, keys=(1, 0))
    vocabulary = Vocabulary(SPECIALS, np.zeros(store.vocab_size, dtype=bool))
    num_dropouts = 1 + 3 * CONFIG.num_hidden_layers
    unpadding = None if granule is None else Unpadding(granule, 0.0)
    collator = Collator(sampler, vocabulary, Masking(), 1, num_dropouts, unpadding=unpadding)
    return collator.build(sampler.samples(0, BATCH), 0, 0)


def loss_and_gradients(
    batch: PretrainBatch, kernel: AttentionKernel, has_pairs: bool, dropout: float
) -> tuple[float, dict[str, Tensor]]:
    config = CONFIG.model_copy(update={"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout})
    module = PretrainingModule(config, has_pairs).train()
    initialize(module, 3, 0.1)
    loss, _ = module(batch, torch.tensor([0.01, 0.0, 0.1, 0.0]), ForwardContext(kernel))
    loss.backward()
    return loss.item(), {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def varlen_attention(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, *_: object, **__: object) -> Tensor:
    """What torch's flash attention computes for (num_tokens, heads, size), which it does on CUDA alone."""
    pieces = torch.bucketize(torch.arange(len(query)), cu_seqlens, right=True)
    scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[2] ** 0.5
    scores = scores.masked_fill(pieces[:, None] != pieces[None], -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)


@pytest.mark.parametrize("objective", ["next_sentence", "none"])
@pytest.mark.parametrize(
    ("kernel", "granule", "dropout"),
    [("batched", 1, 0.0), ("batched", 64, 0.2), ("batched", 500, 0.2), ("flex", 64, 0.2), ("flash", 64, 0.0)],
)
def test_loss_and_gradients_are_those_of_the_rectangle(
    store: TokenStore,
    kernel: AttentionKernel,
    objective: str,
    granule: int,
    dropout: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # torch refuses flex_attention's backward on a CPU, since it compiles none; uncompiled it has one.
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attention)
    has_pairs = objective != "none"
    rectangle, unpadded = batch_of(store, objective, None), batch_of(store, objective, granule)
    assert len(rectangle.indices) == 0 and int(rectangle.lengths.sum()) <= len(unpadded.indices) <= BATCH * LENGTH
    expected, their = loss_and_gradients(rectangle, "batched", has_pairs, dropout)
    found, ours = loss_and_gradients(unpadded, kernel, has_pairs, dropout)
    assert found == pytest.approx(expected, rel=1e-5)
    assert ours.keys() == their.keys()
    for name, gradient in their.items():
        scale = their[name.replace("query_key_value.bias", "output.bias")].norm()  # the keys' part of it is all but 0
        assert (ours[name] - gradient).norm() <= 2e-5 * scale, name


@pytest.mark.parametrize("objective", ["next_sentence", "none"])
@pytest.mark.parametrize("granule", [1, 16, 100, 10_000])
def test_tokens_and_borders(store: TokenStore, objective: str, granule: int) -> None:
    batch, rectangle = batch_of(store, objective, granule), batch_of(store, objective, None)
    tokens, borders, num_real = batch.indices, batch.cu_seqlens, int(batch.lengths.sum())
    assert len(tokens.unique()) == len(tokens) and len(tokens) in (BATCH * LENGTH, -(-num_real // granule) * granule)
    is_token = (torch.arange(LENGTH) < batch.lengths[:, None]).flatten()
    assert is_token[tokens[:num_real]].all() and not is_token[tokens[num_real:]].any()
    assert tokens[:num_real].diff().min() >= 1
    assert borders[0] == 0 and borders[-1] == len(tokens) and borders.diff().min() >= 0
    assert borders.diff().max() <= LENGTH and num_real in borders
    begins = rectangle.input_ids.flatten()[tokens[:num_real]] == SPECIALS.cls
    if objective == "none":  # every piece begins with [CLS], and nothing else is one
        assert set(borders[borders < num_real].tolist()) == set(begins.nonzero()[:, 0].tolist())
    ids = batch.input_ids.flatten()[tokens][batch.positions]
    assert torch.equal(ids, rectangle.input_ids.gather(1, rectangle.positions))


def test_pieces_are_counted_in_few_shapes() -> None:
    generator = np.random.default_rng(1)
    shapes = set()
    for _ in range(200):
        starts = np.sort(generator.choice(np.arange(0, LENGTH, 6), (BATCH, LENGTH)), axis=1)
        starts[:, 0] = 0
        starts = np.maximum.accumulate(starts, axis=1)
        shapes.add(len(unpad(np.full(BATCH, LENGTH), starts, LENGTH, 64)[1]))
    assert len(shapes) <= 4


def test_blocks_hold_all_that_see_each_other() -> None:
    borders = torch.tensor([0, 100, 128, 128, 500, 777, 777], dtype=torch.int32)
    blocks = AttentionMetadata(1, 777, cu_seqlens=borders).prepare("flex", borders.device).blocks
    assert blocks is not None
    pieces = torch.bucketize(torch.arange(777), borders, right=True)
    needed = torch.zeros(7 * 128, 7 * 128, dtype=torch.bool)
    needed[:777, :777] = pieces[:, None] == pieces[None]
    needed = needed.view(7, 128, 7, 128).any(3).any(1)
    listed = torch.zeros(7, 7, dtype=torch.bool)
    for row, count in enumerate(blocks.kv_num_blocks[0, 0].tolist()):
        listed[row, blocks.kv_indices[0, 0, row, :count].long()] = True
    assert torch.equal(listed, needed)
