"""The encoder: wanted positions, padding, keyed dropout, and its loss."""

from __future__ import annotations

import torch

from model.config.encoder import EncoderConfig
from model.encoder.encoder import Encoder
from model.ops.attention_kernels import AttentionMetadata
from model.ops.forward_context import ForwardContext
from model.ops.keyed_dropout import DropoutKey

CONFIG = EncoderConfig(vocab_size=200, hidden_size=32, num_hidden_layers=3, num_attention_heads=4)


def batch(config: EncoderConfig, num: int = 4, length: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, segments and a mask with padding in the second sample."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, config.vocab_size, (num, length), generator=generator)
    segments = (torch.arange(length) > length // 2).long().expand(num, length)
    mask = torch.ones(num, length, dtype=torch.long)
    mask[1, length // 2 :] = 0
    return ids, segments, mask


def with_dropout(key: DropoutKey, attention: AttentionMetadata | None = None) -> ForwardContext:
    return ForwardContext(attention=attention, dropout_keys=key.expand(1 + 3 * CONFIG.num_hidden_layers))


def test_wanted_positions_are_those_of_the_full_computation() -> None:
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).train()
    ids, segments, mask = batch(CONFIG)
    key = DropoutKey(5, 6, torch.arange(4) + 100)
    positions = torch.tensor([[0, 3, 9], [0, 1, 5], [0, 2, 30], [0, 7, 8]])
    queries = positions + torch.arange(4)[:, None] * 40
    full = encoder(ids, segments, mask, context=with_dropout(key))
    part = encoder(
        ids, segments, context=with_dropout(key, AttentionMetadata(4, 40, mask.bool(), query_indices=queries))
    )
    expected = full.last_hidden_state.gather(1, positions[:, :, None].expand(-1, -1, 32))
    torch.testing.assert_close(part.last_hidden_state, expected)
    torch.testing.assert_close(part.pooler_output, full.pooler_output)


def test_dropout_depends_on_the_sample_not_on_its_batch() -> None:
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).train()
    ids, segments, mask = batch(CONFIG)
    whole = encoder(ids, segments, mask, context=with_dropout(DropoutKey(1, 2, torch.arange(4)))).last_hidden_state
    half = encoder(
        ids[2:], segments[2:], mask[2:], context=with_dropout(DropoutKey(1, 2, torch.tensor([2, 3])))
    ).last_hidden_state
    torch.testing.assert_close(half, whole[2:])
    for other in (
        DropoutKey(1, 3, torch.arange(4)),
        DropoutKey(2, 2, torch.arange(4)),
        DropoutKey(1, 2, torch.arange(1, 5)),
    ):
        assert not torch.allclose(encoder(ids, segments, mask, context=with_dropout(other)).last_hidden_state, whole)


def test_dropout_is_off_in_evaluation_and_without_a_key() -> None:
    encoder = Encoder(CONFIG).train()
    ids, segments, mask = batch(CONFIG)
    plain = encoder(ids, segments, mask).last_hidden_state
    encoder.eval()
    keyed = encoder(ids, segments, mask, context=with_dropout(DropoutKey(1, 2, torch.arange(4)))).last_hidden_state
    torch.testing.assert_close(keyed, plain)


def test_padding_changes_nothing_for_the_others() -> None:
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).eval()
    ids, segments, _ = batch(CONFIG)
    short = encoder(ids[:, :20], segments[:, :20]).last_hidden_state
    mask = (torch.arange(40) < 20).long().expand(4, 40)
    padded = encoder(ids, segments, mask).last_hidden_state[:, :20]
    torch.testing.assert_close(padded, short, atol=1e-6, rtol=1e-5)
