"""Ways to adapt: what is trained, at which rate, from which first weights; and jobs of each way from end to end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bench.parity import fabric_of
from model.benchmarks.splits import read_dev
from model.benchmarks.table import BENCHMARKS
from model.common.errors import Paused, UserError
from model.common.state_files import read_state
from model.config.finetuning import FinetuneRecipe
from model.config.hardware import HardwareOptions
from model.finetune.build import count_parameters, factors_of, make_model
from model.finetune.job import Job
from model.finetune.run import run_job
from model.finetune.training import make_trainer
from model.formats.hf_folder import load_encoder, save_encoder
from model.heads.task_model import TaskModel
from model.inference.predictor import load_finetuned
from model.optim.optimizers import make_optimizer
from tests.model.finetune.test_finetune import bytes_of, interrupt
from tests.model.heads.test_task_model import features_of

MakeJob = Callable[..., Job]
pytestmark = pytest.mark.usefixtures("torch_as_it_was")


def model_of(folder: Path, adapt: Any, name: str = "sst2", seed: int = 1, **recipe: Any) -> TaskModel:
    return make_model(load_encoder(folder), BENCHMARKS[name], FinetuneRecipe(adapt=adapt, **recipe), seed)


def published(job: Job) -> dict[str, torch.Tensor]:
    return load_file(job.run_dir / "model" / "model.safetensors")


def test_rates_fall_from_the_top_to_the_embeddings(small_encoder: Path) -> None:
    recipe = FinetuneRecipe(adapt={"layer_decay": 0.5})
    model = make_model(load_encoder(small_encoder), BENCHMARKS["sst2"], recipe, 1)
    factors = factors_of(model, recipe)
    assert factors is not None
    expected = {"classifier": 1.0, "encoder.pooler": 1.0, "encoder.layers.1": 0.5, "encoder.layers.0": 0.25}
    expected["encoder.embeddings"] = 0.125
    for name, _ in model.named_parameters():
        [factor] = [factor for start, factor in expected.items() if name.startswith(f"{start}.")]
        assert factors[name] == factor, name
    optimizer = make_optimizer(model, "adamw", 1.0, 0.01, rate_factors=factors)
    by_parameter = {p: group for group in optimizer.param_groups for p in group["params"]}
    assert len(by_parameter) == len(list(model.parameters()))
    for name, p in model.named_parameters():
        assert by_parameter[p]["rate_factor"] == factors[name]
        assert (by_parameter[p]["weight_decay"] > 0) == (p.ndim >= 2)
    assert factors_of(model, FinetuneRecipe()) is None


def test_a_step_moves_each_layer_by_its_rate(small_encoder: Path) -> None:
    """Adam's first step, corrected, is the rate times the gradient's sign."""
    recipe = FinetuneRecipe(adapt={"layer_decay": 0.5}, learning_rate=1e-3, weight_decay=0, warmup_fraction=0)
    model = make_model(load_encoder(small_encoder), BENCHMARKS["sst2"], recipe, 1).train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    asked = iter([True])
    with pytest.raises(Paused):
        make_trainer(fabric_of(), model, features_of("sst2"), recipe, 1, 0, should_stop=lambda: next(asked)).train()
    moved = {name: float((p - before[name]).detach().abs().max()) for name, p in model.named_parameters()}
    for name, rate in (
        ("classifier.weight", 1e-3),
        ("encoder.layers.1.narrow.weight", 5e-4),
        ("encoder.layers.0.narrow.weight", 2.5e-4),
        ("encoder.embeddings.position.weight", 1.25e-4),
    ):
        assert moved[name] == pytest.approx(rate, rel=0.05), name


def test_layers_drawn_anew_depend_on_the_seed_alone(small_encoder: Path) -> None:
    adapt = {"reinitialized_layers": 1, "reinitialized_pooler": True}
    one, again, other = (model_of(small_encoder, adapt, seed=seed).state_dict() for seed in (1, 1, 2))
    was = model_of(small_encoder, "full").state_dict()
    for name, value in one.items():
        assert torch.equal(value, again[name]), name
        is_drawn = name.startswith(("encoder.layers.1.", "encoder.pooler."))
        if not is_drawn and not name.startswith("classifier"):
            assert torch.equal(value, was[name]) and torch.equal(value, other[name]), name
        elif is_drawn and value.ndim == 2:
            assert not torch.equal(value, was[name]) and not torch.equal(value, other[name]), name
            assert float(value.abs().max()) <= 0.04
        elif is_drawn:
            assert set(value.tolist()) == {1.0 if name.endswith("norm.weight") else 0.0}, name


@pytest.mark.parametrize(
    ("adapt", "frozen"),
    [
        ({"frozen_layers": 1}, ("bert.embeddings.", "bert.encoder.layer.0.")),
        ({"frozen_embeddings": True}, ("bert.embeddings.",)),
    ],
)
def test_what_is_frozen_keeps_its_bytes(make_job: MakeJob, adapt: Any, frozen: tuple[str, ...]) -> None:
    job = make_job(num_epochs=1, adapt=adapt, dropout=0.1)
    run_job(job)
    was = load_file(job.encoder_dir / "model.safetensors")
    for name, value in published(job).items():
        if name.startswith(frozen):
            assert torch.equal(value, was[name]), name
        elif name.startswith("bert.encoder") and name.endswith("weight"):
            assert not torch.equal(value, was[name]), name


def test_unused_embeddings_decay_at_their_own_rate(make_job: MakeJob) -> None:
    """Some tokens are in no text, so nothing but weight decay moves their rows."""
    was = load_file(make_job().encoder_dir / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    shrunk = {}
    for decay in (1.0, 0.5):
        job = make_job(folder=f"{decay}", num_epochs=1, weight_decay=0.1, adapt={"layer_decay": decay})
        run_job(job)
        now = published(job)["bert.embeddings.word_embeddings.weight"]
        shrunk[decay] = 1 - float((now[1] / was[1]).mean())  # [UNK]
    assert 0 < shrunk[0.5] == pytest.approx(shrunk[1.0] / 8, rel=0.02)


def test_more_layers_than_there_are_is_a_users_mistake(small_encoder: Path) -> None:
    with pytest.raises(UserError, match="more than the encoder's 2 layers"):
        model_of(small_encoder, {"reinitialized_layers": 2, "frozen_layers": 1})
    for adapt, message in (
        ("lra", "'lra'; expected one of full, lora, features"),
        ({"kind": "lora", "rnk": 2}, "did you mean 'rank'"),
        ({"kind": "lora", "rank": 0}, "adapt.rank"),
        ({"layer_decay": 1.5}, "adapt.layer_decay"),
        ({"kind": "lora", "targets": []}, "adapt.targets"),
    ):
        with pytest.raises(UserError, match=message):
            FinetuneRecipe.parse({"adapt": adapt}, "recipe")


def test_an_encoder_without_a_pooler_gets_one_that_learns(small_encoder: Path, tmp_path: Path) -> None:
    encoder = load_encoder(small_encoder)
    torch.nn.init.zeros_(encoder.pooler.weight)
    save_encoder(encoder, tmp_path / "bare")
    for adapt in ("full", {"kind": "lora", "pooler": False}):
        model = model_of(tmp_path / "bare", adapt)
        assert model.encoder.pooler.weight.any() and model.encoder.pooler.weight.requires_grad
    assert not model_of(tmp_path / "bare", "full", "ner").encoder.pooler.weight.any(), "no head reads it"


@pytest.mark.parametrize("adapt", ["lora", {"kind": "lora", "dropout": 0.1}, {"layer_decay": 0.9}, "features"])
def test_a_stopped_job_goes_on_to_the_same_bytes(make_job: MakeJob, adapt: Any) -> None:
    recipe = {"num_epochs": 2, "dropout": 0.1, "evaluate_every_epoch": True, "adapt": adapt}
    whole, stopped = make_job(folder="whole", **recipe), make_job(folder="stopped", **recipe)
    run_job(whole)
    stopped = stopped.model_copy(update={"checkpoint_every_seconds": 0.0})
    with pytest.raises(Paused):
        run_job(stopped, interrupt(17))
    run_job(stopped)
    assert bytes_of(whole) == bytes_of(stopped)
    head = "model/features_head.safetensors"
    assert adapt != "features" or (whole.run_dir / head).read_bytes() == (stopped.run_dir / head).read_bytes()


@pytest.mark.parametrize(
    ("name", "adapt"),
    [
        ("sst2", {"kind": "lora", "rank": 4}),
        ("ner", {"kind": "lora", "rank": 4, "targets": ["query", "key", "value", "output", "widen", "narrow"]}),
        ("squad1", {"kind": "lora", "rank": 4, "targets": ["value", "widen"], "dropout": 0.05}),
        ("ner", {"kind": "features", "lstm_size": 64}),
        ("squad1", {"kind": "features", "lstm_size": 32, "lstm_layers": 1}),
        ("swag", {"kind": "features"}),
    ],
)
def test_every_way_learns(make_job: MakeJob, name: str, adapt: Any) -> None:
    job = make_job(name, num_epochs=15, adapt=adapt, learning_rate=1e-2)
    run_job(job)
    result = read_state(job.result_path)
    metric, value = result["headline"]["metric"], result["headline"]["value"]
    assert value > result["majority"][metric] + 15, result["scores"]
    assert 0 < result["parameters"]["trained"] < result["parameters"]["all"]


@pytest.mark.parametrize("name", ["ner", "squad2", "stsb"])
@pytest.mark.parametrize("adapt", ["lora", {"kind": "features", "lstm_size": 16}])
def test_what_is_published_answers_as_it_was_scored(make_job: MakeJob, name: str, adapt: Any) -> None:
    job = make_job(name, num_epochs=2, adapt=adapt, learning_rate=1e-2)
    run_job(job)
    [part] = read_dev(job.row, job.data_dir).values()
    found = load_finetuned(job.run_dir / "model", machine=job.machine).evaluate(part.examples)
    lines = [json.loads(line) for line in (job.run_dir / "predictions.jsonl").open()]
    assert [record["prediction"] for record in found.predictions] == [record["prediction"] for record in lines]
    assert found.scores == read_state(job.result_path)["scores"]


def test_parameters_are_counted_with_the_whole_vocabulary(small_encoder: Path) -> None:
    encoder = load_encoder(small_encoder)
    size = sum(p.numel() for p in encoder.parameters())
    adapt = {"kind": "lora", "rank": 2, "targets": ["query", "value"], "pooler": True}
    model = make_model(encoder, BENCHMARKS["sst2"], FinetuneRecipe(adapt=adapt), 1)
    counts = count_parameters(model, encoder.config.vocab_size)
    assert counts["all"] == size + 2 * 32 + 2
    lora = 2 * 2 * (2 * 32 + 32 * 2)  # layers, query and value, both factors
    assert counts["trained"] == lora + 32 * 32 + 32 + 2 * 32 + 2
    assert count_parameters(model, encoder.config.vocab_size + 100)["all"] == counts["all"] + 100 * 32


@pytest.mark.skipif("CLOZE_REAL_CHECKPOINT" not in os.environ, reason="no CLOZE_REAL_CHECKPOINT")
@pytest.mark.parametrize("adapt", ["full", "lora", "features"])
def test_a_real_encoder_of_others_is_fine_tuned(make_job: MakeJob, adapt: str) -> None:
    job = make_job(
        encoder_dir=Path(os.environ["CLOZE_REAL_CHECKPOINT"]),
        num_epochs=1,
        adapt=adapt,
        learning_rate=1e-4 if adapt == "full" else 2e-3,
    ).model_copy(update={"machine": HardwareOptions(accelerator="cpu", num_threads=1)})
    run_job(job)
    result = read_state(job.result_path)
    assert result["scores"]["accuracy"] > 90
    if adapt == "lora":
        assert result["parameters"]["trained"] < 0.01 * result["parameters"]["all"]
