"""Heads beside those of `transformers`, padding that changes nothing, and dropout that is a function of its
key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from model.benchmarks.table import BENCHMARKS
from model.finetune.run import save_model
from model.formats.hf_folder import load_encoder
from model.heads import batches
from model.heads.batches import collate
from model.heads.features import Features, Ragged
from model.heads.task_model import TaskModel
from model.ops.forward_context import ForwardContext
from model.ops.fused_cpu import IGNORED
from model.ops.keyed_dropout import DropoutKey
from model.optim.optimizers import MasterWeights, make_optimizer

CLASSES = {
    "sst2": transformers.BertForSequenceClassification,
    "stsb": transformers.BertForSequenceClassification,
    "swag": transformers.BertForMultipleChoice,
    "squad1": transformers.BertForQuestionAnswering,
    "ner": transformers.BertForTokenClassification,
}


def model_of(name: str, folder: Path, dropout: float = 0.0, seed: int = 1) -> TaskModel:
    return TaskModel(load_encoder(folder), BENCHMARKS[name], dropout, seed).eval()


def features_of(name: str) -> Features:
    rows = [[2, 7, 8, 9, 3], [2, 7, 3, 8, 8, 8, 9, 3], [2, 10, 11, 3], [2, 12, 3]]
    sequences = Ragged.of(rows)
    boundaries = np.array([5, 3, 4, 3])
    if name == "ner":
        targets = np.full(len(sequences.values), IGNORED)
        targets[[1, 2, 6, 9]] = [0, 3, 1, 8]
        return Features(sequences, boundaries, targets, per_token=True)
    if name == "swag":
        return Features(sequences, boundaries, np.array([2]), group_size=4)
    targets = {
        "sst2": np.array([0, 1, 1, 0]),
        "stsb": np.array([0.5, 4.0, 3.0, 1.0], dtype=np.float32),
        "squad1": np.array([[1, 2], [4, 6], [0, 0], [1, 1]]),
    }[name]
    return Features(sequences, boundaries, targets)


@pytest.mark.parametrize("name", CLASSES)
def test_saved_models_give_the_same_logits_in_transformers(name: str, small_encoder: Path, make_job) -> None:
    job = make_job(name)
    model = model_of(name, small_encoder)
    save_model(model, job, {})
    theirs, report = CLASSES[name].from_pretrained(job.run_dir / "model", output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"]
    features = features_of(name)
    batch = collate(features, np.arange(features.num_rows), 0)
    arguments = [batch.input_ids, batch.attention_mask, batch.token_type_ids]
    if name == "swag":
        arguments = [argument[None] for argument in arguments]
    with torch.inference_mode():
        ours = model(batch)
        output = theirs.eval()(*arguments)
    if name == "squad1":
        assert batch.attention_mask is not None
        inside = batch.attention_mask
        torch.testing.assert_close(ours[..., 0][inside], output.start_logits[inside], atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(ours[..., 1][inside], output.end_logits[inside], atol=2e-5, rtol=1e-4)
    else:
        torch.testing.assert_close(ours, output.logits, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", CLASSES)
def test_padding_changes_neither_loss_nor_outputs(name: str, small_encoder: Path) -> None:
    model, features = model_of(name, small_encoder), features_of(name)
    batch = collate(features, np.arange(features.num_rows), 0)
    loss = model.loss(model(batch), batch.targets)
    parts = []
    for row in range(features.num_rows):
        single = collate(features, np.array([row]), 0)
        count = int((single.targets != IGNORED).sum()) if name == "ner" else 1
        if count:
            parts += [(model.loss(model(single), single.targets), count)]
    expected = sum(part * count for part, count in parts) / sum(count for _, count in parts)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", CLASSES)
def test_losses_reach_every_parameter_that_the_head_reads(name: str, small_encoder: Path) -> None:
    model, features = model_of(name, small_encoder), features_of(name)
    batch = collate(features, np.arange(features.num_rows), 0)
    model.loss(model(batch), batch.targets).backward()
    without = {key for key, value in model.named_parameters() if value.grad is None or not value.grad.any()}
    pooled = name in ("sst2", "stsb", "swag")
    assert not {key for key in without if not key.startswith("encoder.pooler")}
    assert bool(without) != pooled


def test_dropout_is_a_function_of_seed_step_and_sample(small_encoder: Path) -> None:
    model, features = model_of("sst2", small_encoder, dropout=0.3).train(), features_of("sst2")
    batch = collate(features, np.arange(4), 0)
    logits = model(batch, DropoutKey(1, 5, batch.samples))
    assert torch.equal(logits, model(batch, DropoutKey(1, 5, batch.samples)))
    assert not torch.equal(logits, model(batch, DropoutKey(1, 6, batch.samples)))
    assert not torch.equal(logits, model(batch, DropoutKey(2, 5, batch.samples)))
    alone = collate(features, np.array([1]), 0)
    torch.testing.assert_close(model(alone, DropoutKey(1, 5, alone.samples))[0], logits[1], atol=1e-5, rtol=1e-4)


def test_the_recipes_dropout_replaces_the_encoders(small_encoder: Path) -> None:
    model, features = model_of("sst2", small_encoder, dropout=0.0).train(), features_of("sst2")
    batch = collate(features, np.arange(4), 0)
    assert torch.equal(model(batch, DropoutKey(1, 5, batch.samples)), model(batch))


def test_the_head_starts_by_its_seed(small_encoder: Path) -> None:
    models = [model_of("sst2", small_encoder, seed=seed) for seed in (1, 1, 2)]
    first, again, other = (model.classifier.weight.detach() for model in models)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert float(first.abs().max()) <= 0.04 and float(first.std()) > 0.005


@pytest.mark.parametrize("name", ["sst2", "stsb", "swag"])
@pytest.mark.parametrize("granule", [1, 3])
def test_padding_left_out_changes_neither_outputs_nor_dropout(
    name: str, granule: int, small_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_GRANULE", granule)
    model, features = model_of(name, small_encoder, dropout=0.1).train(), features_of(name)
    rows = np.arange(features.num_rows)
    rectangle, flat = collate(features, rows, 0), collate(features, rows, 0, unpadded=True)
    assert rectangle.indices is None and flat.indices is not None
    num_tokens = int(features.sequences.offsets[-1])
    assert len(flat.indices) == -(-num_tokens // granule) * granule < rectangle.input_ids.numel()
    key = DropoutKey(1, 2, flat.samples)
    torch.testing.assert_close(model(flat, key), model(rectangle, key), atol=1e-5, rtol=1e-4)


def test_frozen_matrices_have_no_gradient_and_keep_their_copies(small_encoder: Path) -> None:
    model, features = model_of("sst2", small_encoder).train(), features_of("sst2")
    frozen = model.encoder.layers[0].widen.weight
    frozen.requires_grad_(False)
    before = frozen.clone()
    optimizer = make_optimizer(model, "adamw", 1e-2)
    master_weights = MasterWeights(model, None, optimizer)
    context = ForwardContext(low_precision=master_weights.copies)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(collate(features, np.arange(features.num_rows), 0), context=context)
    model.loss(logits, torch.from_numpy(features.targets)).backward()
    master_weights.collect_gradients(only_pass=True)
    assert frozen.grad is None and model.encoder.layers[0].narrow.weight.grad is not None
    master_weights.clip(1.0)
    optimizer.step()
    assert torch.equal(frozen, before)
