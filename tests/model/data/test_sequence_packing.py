"""Packed rows: full, cut where documents end, and computed as their pieces would be alone."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from model.config.encoder import EncoderConfig
from model.config.pretraining import Masking
from model.data.collator import Collator, PretrainBatch
from model.data.sampler import LEAST_SEGMENT, EpochSampler
from model.data.token_store import TokenStore, TokenStoreWriter
from model.encoder.encoder import Encoder
from model.objectives.masked_lm import PretrainingModule, attention_metadata
from model.ops.forward_context import ForwardContext
from model.ops.keyed_dropout import DropoutKey
from model.tokenizer.wordpiece import SpecialIds, Vocabulary

LENGTH = 32
SPECIALS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
MASKING = Masking()
CONFIG = EncoderConfig(
    vocab_size=120, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=48
)


def sampler(store: TokenStore, seed: int = 1) -> EpochSampler:
    return EpochSampler(store, LENGTH, objective="none", short_probability=0.5, keys=(seed, 0))


def batch_of(store: TokenStore, count: int = 16, masking: Masking = MASKING, num_dropouts: int = 0) -> PretrainBatch:
    epoch = sampler(store)
    vocabulary = Vocabulary(SPECIALS, np.zeros(store.vocab_size, dtype=bool))
    collator = Collator(epoch, vocabulary, masking, 1, num_dropouts)
    return collator.build(epoch.samples(0, count), 0, 0)


def pieces_of(samples: np.ndarray, borders: np.ndarray) -> list[list[tuple[int, int]]]:
    """Begin and end of each piece of each row."""
    rows = []
    for start, length in zip(samples["first_start"].tolist(), samples["first_length"].tolist()):
        inner = borders[(borders > start) & (borders < start + length)].tolist()
        edges = [start, *inner, start + length]
        rows.append(list(itertools.pairwise(edges)))
    return rows


def test_every_token_is_in_one_row_and_rows_are_full(store: TokenStore) -> None:
    epoch = sampler(store)
    samples = epoch.samples(0, epoch.epoch_size(0))
    rows = np.argsort(samples["first_start"])
    starts, lengths = samples["first_start"][rows], samples["first_length"][rows]
    assert starts[0] == 0 and np.array_equal(starts[1:], (starts + lengths)[:-1])
    assert starts[-1] + lengths[-1] == store.num_tokens
    borders = store.sentence_offsets[store.document_offsets]
    pieces = pieces_of(samples, borders)
    assert (samples["length"] - samples["first_length"]).tolist() == [2 * len(row) for row in pieces]
    assert samples["length"].max() == LENGTH
    ordered = samples["length"][rows]
    assert (ordered[1:-1] >= LENGTH - LEAST_SEGMENT - 1).all()  # but the first, and what remains for the last
    begun = [end - begin for row in pieces for begin, end in row if begin in borders and end not in borders]
    assert min(begun) >= LEAST_SEGMENT


def test_borders_differ_between_epochs_and_seeds(store: TokenStore) -> None:
    firsts = set()
    for seed in range(3):
        epoch, first = sampler(store, seed), 0
        for number in range(3):
            samples = epoch.samples(first, epoch.epoch_size(number))
            first += epoch.epoch_size(number)
            firsts.add(tuple(np.sort(samples["first_start"])))
    assert len(firsts) >= 8


def test_samples_do_not_depend_on_how_they_are_asked_for(store: TokenStore) -> None:
    size = sampler(store).epoch_size(0)
    whole, parts = sampler(store).samples(0, 3 * size), sampler(store)
    for first in (size - 5, 2 * size, 7):
        assert np.array_equal(parts.samples(first, 11), whole[first : first + 11])


def test_rows_name_the_document_they_begin_in(store: TokenStore) -> None:
    borders = store.sentence_offsets[store.document_offsets]
    for seed in range(3):
        epoch = sampler(store, seed)
        samples = epoch.samples(0, epoch.epoch_size(0))
        expected = np.searchsorted(borders, samples["first_start"], side="right") - 1
        assert np.array_equal(samples["second_start"], expected)


def test_layout(store: TokenStore) -> None:
    batch = batch_of(store, masking=Masking(mask=0.0, random=0.0))
    pieces = pieces_of(sampler(store).samples(0, 16), store.sentence_offsets[store.document_offsets])
    assert max(len(row) for row in pieces) > 2
    for row, spans in enumerate(pieces):
        expected, starts = [], []
        for begin, end in spans:
            starts += [len(expected)] * (end - begin + 2)
            expected += [SPECIALS.cls, *store.tokens[begin:end].tolist(), SPECIALS.sep]
        padding = LENGTH - len(expected)
        assert batch.lengths[row] == len(expected)
        assert batch.input_ids[row].tolist() == expected + [SPECIALS.pad] * padding
        assert batch.segment_starts[row].tolist() == starts + [len(expected)] * padding
        used = batch.labels[row] != -100
        assert used.sum() == round(0.15 * len(expected))
        masked = batch.positions[row, 1:][used]
        assert not set(batch.input_ids[row][masked].tolist()) & {SPECIALS.cls, SPECIALS.sep, SPECIALS.pad}
    assert not batch.token_type_ids.any() and not batch.pair_label.any()


def test_a_packed_row_computes_what_its_pieces_compute_alone(store: TokenStore) -> None:
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).eval()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    batch = batch_of(store)
    attention, position_ids = attention_metadata(batch)
    context = ForwardContext(attention=attention._replace(query_indices=None))
    with torch.no_grad():
        packed = encoder(batch.input_ids, position_ids=position_ids, context=context).last_hidden_state
        compared = 0
        for row, length in enumerate(batch.lengths.tolist()):
            for start in batch.segment_starts[row, :length].unique().tolist():
                own = (batch.segment_starts[row] == start).nonzero()[:, 0]
                alone = encoder(batch.input_ids[row, own][None]).last_hidden_state[0]
                assert (packed[row, own] - alone).abs().max() <= 1e-5
                compared += 1
    assert compared > 1.5 * len(batch.lengths)


def test_wanted_positions_are_those_of_the_full_computation(store: TokenStore) -> None:
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).train()
    batch = batch_of(store)
    attention, position_ids = attention_metadata(batch)
    keys = DropoutKey(5, 6, torch.arange(16)).expand(encoder.num_dropouts)
    full, part = (
        encoder(
            batch.input_ids, position_ids=position_ids, context=ForwardContext("batched", layout, keys)
        ).last_hidden_state
        for layout in (attention._replace(query_indices=None), attention)
    )
    torch.testing.assert_close(part, full.gather(1, batch.positions[:, :, None].expand(-1, -1, 32)))


def test_the_loss_reads_no_other_document(store: TokenStore) -> None:
    config = CONFIG.model_copy(update={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    torch.manual_seed(0)
    module = PretrainingModule(config, pairs=False)
    batch = batch_of(store, num_dropouts=module.encoder.num_dropouts)
    row = next(row for row in range(16) if len(batch.segment_starts[row].unique()) > 2)
    second = int(batch.segment_starts[row].unique()[1])
    inside = batch.positions < second  # predictions of the first piece alone
    labels = torch.where(inside[:, 1:], batch.labels, -100)
    losses = []
    for ids in (batch.input_ids, batch.input_ids.clone()):
        if losses:
            ids[row, second + 1] = 5 + (ids[row, second + 1] - 4) % 100
        changed = batch._replace(input_ids=ids, labels=labels)
        one = PretrainBatch(*(tensor[row : row + 1] for tensor in changed))
        one = one._replace(dropout_keys=changed.dropout_keys[:, :1])
        losses.append(module(one, torch.ones(2))[0])
    assert losses[0] > 0 and torch.equal(losses[0], losses[1])


@pytest.mark.parametrize("lengths", [[1], [40], [1] * 60, [28, 3, 2, 1, 90]])
def test_documents_of_any_length_are_packed(lengths: list[int], tmp_path: Path) -> None:
    writer = TokenStoreWriter(tmp_path, 100, tokenizer_digest="x")
    for length in lengths:
        writer.add_document([[7] * length])
    writer.close()
    for seed in range(20):
        epoch = sampler(TokenStore.open(tmp_path), seed)
        samples = epoch.samples(0, epoch.epoch_size(0))
        assert samples["first_length"].sum() == sum(lengths) and samples["first_length"].min() >= 1
        assert samples["length"].max() <= LENGTH
