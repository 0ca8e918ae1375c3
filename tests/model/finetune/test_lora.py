"""LoRA: it starts as the base, spares the gradients of frozen matrices, and is what it is merged to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from model.benchmarks.splits import read_dev
from model.benchmarks.table import BENCHMARKS
from model.common.files import read_json
from model.config.finetuning import FinetuneRecipe, LoraAdaptation
from model.config.hardware import HardwareOptions
from model.finetune.build import make_model
from model.finetune.job import Job
from model.finetune.lora import LowRank, merge, merged
from model.finetune.prediction import predict
from model.finetune.run import run_job, save_model
from model.formats.hf_folder import load_encoder
from model.heads.batches import collate
from model.heads.task_model import HEADS, TaskModel
from model.ops.forward_context import ForwardContext
from model.ops.keyed_dropout import DropoutKey
from model.ops.linear import Linear
from model.optim.optimizers import MasterWeights, make_optimizer
from model.tokenizer.wordpiece import load_tokenizer, special_ids
from tests.model.heads.test_task_model import CLASSES, features_of

ALL = ("query", "key", "value", "output", "widen", "narrow")


def model_of(folder: Path, name: str = "sst2", seed: int = 1, dropout: float = 0.0, **adapt: Any) -> TaskModel:
    recipe = FinetuneRecipe(dropout=dropout, adapt={"kind": "lora", "rank": 4, **adapt})
    return make_model(load_encoder(folder), BENCHMARKS[name], recipe, seed).eval()


def moved(model: TaskModel) -> TaskModel:
    """As if trained: no addition is 0 any more."""
    torch.manual_seed(3)
    for part in model.modules():
        if isinstance(part, LowRank):
            torch.nn.init.normal_(part.up, std=0.1)
    return model


def batch_of(name: str = "sst2") -> Any:
    features = features_of(name)
    return collate(features, np.arange(features.num_rows), 0)


@pytest.mark.parametrize("name", CLASSES)
def test_it_starts_as_the_base(small_encoder: Path, name: str) -> None:
    base = TaskModel(load_encoder(small_encoder), BENCHMARKS[name], 0.0, 1).eval()
    batch = batch_of(name)
    assert torch.equal(base(batch), model_of(small_encoder, name, targets=ALL)(batch))


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("targets", [("query", "value"), ("key",), ("value",), ALL])
def test_merged_is_unmerged(small_encoder: Path, name: str, targets: tuple[str, ...]) -> None:
    model, batch = moved(model_of(small_encoder, name, targets=targets)), batch_of(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.inference_mode():
        unmerged = model(batch)
    base = TaskModel(load_encoder(small_encoder), BENCHMARKS[name], 0.0, 1).eval()
    assert float((unmerged - base(batch)).detach().abs().max()) > 1e-3, "the additions do something"
    with merged(model), torch.inference_mode():
        torch.testing.assert_close(model(batch), unmerged, atol=1e-5, rtol=1e-4)
    after = model.state_dict()
    assert list(before) == list(after) and all(torch.equal(before[key], after[key]) for key in before)
    merge(model)
    with torch.inference_mode():
        torch.testing.assert_close(model(batch), unmerged, atol=1e-5, rtol=1e-4)
    assert not [key for key in model.state_dict() if "addition" in key]


def test_each_target_changes_its_own_rows_by_b_times_a(small_encoder: Path) -> None:
    for number, target in enumerate(("query", "key", "value")):
        model = moved(model_of(small_encoder, targets=(target,), alpha=6.0))
        linear = model.encoder.layers[0].attention.query_key_value
        was, addition = linear.weight.detach().clone(), linear.addition
        expected = addition.up[0] @ addition.down * 1.5
        merge(model)
        change = (linear.weight - was).detach().view(3, 32, 32)
        torch.testing.assert_close(change[number], expected.detach(), atol=1e-6, rtol=1e-5)
        assert not change[[other for other in range(3) if other != number]].any()


def test_only_additions_pooler_and_head_are_trained(small_encoder: Path) -> None:
    model = model_of(small_encoder, targets=ALL, pooler=True).train()
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    expected = {name for name, _ in model.named_parameters() if ".addition." in name}
    expected |= {f"{name}.{kind}" for name in ("classifier", "encoder.pooler") for kind in ("weight", "bias")}
    assert trained == expected and len(expected) == 2 * 4 * 2 + 4
    no_pooler = model_of(small_encoder)
    assert not no_pooler.encoder.pooler.weight.requires_grad
    batch = batch_of()
    model = moved(model)
    model.loss(model(batch), batch.targets).backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == trained
    assert all(p.grad is not None and p.grad.any() for name, p in model.named_parameters() if name in trained)


class Shapes(TorchDispatchMode):
    """Notes the shape of every matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.found.add(tuple(out.shape))
        return out


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("adapt", ["full", {"kind": "lora", "rank": 5, "targets": ALL, "pooler": False}])
def test_no_gradient_of_a_frozen_matrix_is_computed(small_encoder: Path, adapt: Any, bf16: bool) -> None:
    """Such a gradient is a product of the matrix's own shape."""
    recipe = FinetuneRecipe(dropout=0.0, adapt=adapt)
    model = moved(make_model(load_encoder(small_encoder), BENCHMARKS["sst2"], recipe, 1)).train()
    batch = collate(features_of("sst2"), np.arange(3), 0)  # 24 tokens, which no matrix has as a side
    shapes = {tuple(part.weight.shape) for part in model.modules() if isinstance(part, Linear)}
    shapes |= {(columns, rows) for rows, columns in shapes}
    master_weights = MasterWeights(model, None, make_optimizer(model, "adamw")) if bf16 else None
    context = ForwardContext(low_precision=master_weights.copies if master_weights else None)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model.loss(model(batch, context=context), batch.targets)
    with Shapes() as seen:
        loss.backward()
    assert len(seen.found) > 5
    assert bool(shapes & seen.found) == (adapt == "full")


def test_dropout_is_a_function_of_its_key(small_encoder: Path) -> None:
    model, batch = moved(model_of(small_encoder, targets=ALL, dropout=0.0)).train(), batch_of()
    dropping = make_model(
        load_encoder(small_encoder),
        BENCHMARKS["sst2"],
        FinetuneRecipe(dropout=0.0, adapt={"kind": "lora", "rank": 4, "targets": ALL, "dropout": 0.3}),
        1,
    )
    dropping = moved(dropping).train()
    first = dropping(batch, DropoutKey(1, 5, batch.samples))
    assert torch.equal(first, dropping(batch, DropoutKey(1, 5, batch.samples)))
    assert not torch.equal(first, dropping(batch, DropoutKey(1, 6, batch.samples)))
    unpadded = collate(features_of("sst2"), np.arange(4), 0, unpadded=True)
    assert unpadded.indices is not None
    torch.testing.assert_close(dropping(unpadded, DropoutKey(1, 5, batch.samples)), first, atol=1e-5, rtol=1e-4)
    alone = collate(features_of("sst2"), np.array([1]), 0)
    torch.testing.assert_close(dropping(alone, DropoutKey(1, 5, alone.samples))[0], first[1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(dropping.eval()(batch), model.eval()(batch))


def test_the_scale_follows_the_rank_unless_alpha_is_given() -> None:
    assert LoraAdaptation(rank=4).scale == LoraAdaptation(rank=16).scale == 2.0
    assert LoraAdaptation(rank=16, alpha=8).scale == 0.5


def test_additions_start_by_their_seed(small_encoder: Path) -> None:
    one, again, other = (model_of(small_encoder, seed=seed).state_dict() for seed in (1, 1, 2))
    names = [name for name in one if name.endswith("addition.down")]
    assert names
    for name in names:
        assert torch.equal(one[name], again[name]) and not torch.equal(one[name], other[name])
    assert not torch.equal(one[names[0]], one[names[1]])


@pytest.mark.parametrize("name", ["sst2", "ner"])
def test_what_is_saved_gives_the_same_logits_in_transformers(
    name: str, small_encoder: Path, make_job: Callable[..., Job]
) -> None:
    job, model, batch = make_job(name, adapt="lora"), moved(model_of(small_encoder, name)), batch_of(name)
    with torch.inference_mode():
        unmerged = model(batch)
    save_model(model, job, {})
    theirs, report = CLASSES[name].from_pretrained(job.run_dir / "model", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "mismatched_keys"))
    with torch.inference_mode():
        output = theirs.eval()(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    torch.testing.assert_close(unmerged, output.logits, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["sst2", "squad1"])
def test_the_adapter_alone_makes_the_published_model_of_its_encoder(
    name: str, small_encoder: Path, make_job: Callable[..., Job]
) -> None:
    job = make_job(name, adapt={"kind": "lora", "rank": 4, "targets": ALL, "alpha": 6, "pooler": True})
    model = moved(model_of(small_encoder, name, targets=ALL, alpha=6, pooler=True))
    save_model(model, job, {})
    published = load_file(job.run_dir / "model" / "model.safetensors")
    adapter = load_file(job.run_dir / "model" / "adapter" / "adapter_model.safetensors")
    config = read_json(job.run_dir / "model" / "adapter" / "adapter_config.json")
    was = load_file(small_encoder / "model.safetensors")
    changed = set()
    for key, value in published.items():
        place = key.removesuffix(".weight")
        if f"base_model.model.{key}" in adapter:
            assert torch.equal(adapter.pop(f"base_model.model.{key}"), value)
            assert set(key.split(".")) & set(config["modules_to_save"])
        elif f"base_model.model.{place}.lora_A.weight" in adapter:
            up, down = (adapter.pop(f"base_model.model.{place}.lora_{side}.weight") for side in "BA")
            torch.testing.assert_close(value, was[key] + up @ down * config["lora_alpha"] / config["r"])
            assert re.fullmatch(config["target_modules"], place)
            changed.add(place)
        else:
            assert torch.equal(value, was[key]), key
            assert not re.fullmatch(config["target_modules"], place)
    assert not adapter and len(changed) == 2 * len(ALL)


def test_a_jobs_predictions_are_those_of_its_published_model(make_job: Callable[..., Job]) -> None:
    """To the last bit and in bf16, too: what is judged is the merged model."""
    job = make_job("stsb", num_epochs=2, adapt="lora", learning_rate=1e-2)
    job = job.model_copy(update={"machine": HardwareOptions(accelerator="cpu", precision="bf16", num_threads=1)})
    run_job(job)
    folder, row = job.run_dir / "model", job.row
    model = TaskModel(load_encoder(folder), row, 0.0, 0)
    weights = load_file(folder / "model.safetensors")
    model.classifier.load_state_dict({name: weights[f"classifier.{name}"] for name in ("weight", "bias")})
    tokenizer = load_tokenizer(folder)
    [part] = read_dev(row, job.data_dir).values()
    prepared = HEADS[row.head].prepare(row, part.examples, tokenizer, job.recipe)
    outcome = prepared.evaluate(predict(model, prepared.features, special_ids(tokenizer).pad, bf16=True))
    lines = [json.loads(line) for line in (job.run_dir / "predictions.jsonl").open()]
    assert outcome.predictions == lines
