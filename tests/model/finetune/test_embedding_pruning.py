"""Training the used rows alone gives what training the whole embedding gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bench.parity import fabric_of
from model.benchmarks.table import BENCHMARKS
from model.config.finetuning import FinetuneRecipe
from model.finetune.data import UsedTokens
from model.finetune.training import make_trainer, unused_row_decay
from model.formats.hf_folder import load_encoder
from model.heads.features import Features, Ragged
from model.heads.task_model import TaskModel


def features() -> Features:
    rows = [[2, token, token + 2, 3] for token in (7, 9, 7, 15, 9, 7)]
    return Features(Ragged.of(rows), np.full(6, 4), np.array([0, 1, 0, 1, 1, 0]))


@pytest.mark.parametrize("bias_correction", [True, False])
def test_the_same_encoder_comes_out(small_encoder: Path, bias_correction: bool) -> None:
    recipe = FinetuneRecipe(batch_size=2, num_epochs=4, learning_rate=1e-2, bias_correction=bias_correction)
    states = []
    for narrowed in (False, True):
        encoder, rows = load_encoder(small_encoder), features()
        vocab_size = encoder.config.vocab_size
        tokens = UsedTokens([rows], 0, vocab_size)
        if narrowed:
            rows = tokens.renumber(rows)
            tokens.narrow(encoder)
            assert encoder.embeddings.token.weight.shape[0] == len(tokens.ids) == 8
        model = TaskModel(encoder, BENCHMARKS["sst2"], 0.1, 1).train()
        trainer = make_trainer(fabric_of(), model, rows, recipe, 1, tokens.pad_id if narrowed else 0)
        trainer.train()
        if narrowed:
            decay = unused_row_decay(trainer, model, trainer.num_steps)
            assert decay < 0.9995
            tokens.widen(encoder, decay)
        assert encoder.embeddings.token.weight.shape[0] == vocab_size
        states.append(model.state_dict())
    for name, tensor in states[0].items():
        torch.testing.assert_close(
            states[1][name], tensor, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: name + text
        )


def test_renumbered_sequences_name_the_same_tokens() -> None:
    rows = features()
    tokens = UsedTokens([rows], pad_id=0, vocab_size=40)
    assert tokens.ids.tolist() == [0, 2, 3, 7, 9, 11, 15, 17]
    assert tokens.pad_id == 0
    renumbered = tokens.renumber(rows)
    assert tokens.ids[renumbered.sequences.values].tolist() == rows.sequences.values.tolist()
