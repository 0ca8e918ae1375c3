"""`lightning.Trainer` takes the same steps as the training engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as lightning
import pytest
import torch
from torch import Tensor, nn

from model.common.status import Status
from model.config.hardware import resolve
from model.data.loader import Metric, PretrainLoader
from model.data.token_store import TokenStore
from model.data.unpadding import unpadding
from model.encoder.init import initialize
from model.engine.callbacks import Interval
from model.engine.distributed import make_fabric
from model.engine.lightning_module import ClozeDataModule, ClozeLightningModule
from model.engine.trainer import Callback, StepResult, Trainer
from model.finetune.build import make_model
from model.finetune.data import load_data
from model.finetune.job import Job
from model.finetune.training import METRICS, make_trainer
from model.formats.hf_folder import load_encoder
from model.objectives import OBJECTIVES
from model.optim.optimizers import make_optimizer
from model.pretrain.training import Pretraining
from model.tokenizer.wordpiece import Vocabulary, load_tokenizer
from tests.model.pretraining import MakeRun

pytestmark = [
    pytest.mark.filterwarnings("error::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:The `srun` command"),  # if Slurm is installed
]
NUM_STEPS = 50
MakeJob = Callable[..., Job]


class _Losses(Callback):
    """Collects the loss of each step of our trainer."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.losses: list[float] = []
        self._metrics = metrics

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        counts = result.counts
        sums = Interval(result.sums.tolist(), counts.num_sequences, counts.num_predictions, num_steps=1)
        self.losses.append(sums.means(self._metrics)["loss"])


class _LightningLosses(lightning.Callback):
    """Collects the loss of each step of Lightning's trainer, and saves a checkpoint of it at step `save_at`."""

    def __init__(self, save_at: int | None = None, path: Path | None = None) -> None:
        self.losses: list[float] = []
        self._save_at, self._path = save_at, path

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, outputs: Any, *rest: Any) -> None:
        self.losses.append(outputs["loss"].item())
        assert trainer.callback_metrics["train/loss"] == outputs["loss"]
        if trainer.global_step == self._save_at:
            trainer.save_checkpoint(self._path)


class _Training(NamedTuple):
    """The arguments of the Lightning classes, always with new weights."""

    module: ClozeLightningModule
    data: ClozeDataModule


def fit(
    training: _Training,
    *,
    until: int = NUM_STEPS,
    resume: Path | None = None,
    precision: Any = "32-true",
    **options: Any,
) -> list[float]:
    """Train under `lightning.Trainer`; return the loss of each step. `options` are those of `_LightningLosses`."""
    collected = _LightningLosses(**options)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        precision=precision,
        max_steps=until,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[collected],
    )
    trainer.fit(training.module, datamodule=training.data, ckpt_path=resume, weights_only=True)
    return collected.losses


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def check(training: Callable[[], _Training], trainer: Trainer, tmp_path: Path) -> None:
    """Compare Lightning's training, whole and in two parts, with `trainer`, which has collected its losses."""
    expected = next(callback for callback in trainer.callbacks if isinstance(callback, _Losses))
    trainer.train()
    whole = training()
    saved = tmp_path / "saved.ckpt"
    assert fit(whole, save_at=25, path=saved) == expected.losses and len(expected.losses) == NUM_STEPS
    torch.testing.assert_close(weights(whole.module.module), weights(trainer.module), rtol=0, atol=0)
    resumed = training()
    assert fit(resumed, resume=saved) == expected.losses[25:]
    torch.testing.assert_close(weights(resumed.module.module), weights(trainer.module), rtol=0, atol=0)
    assert fit(training(), until=3, precision="bf16-mixed") == pytest.approx(expected.losses[:3], rel=0.02)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_pre_training_is_the_same(make_run: MakeRun, text_dir: Path, tmp_path: Path, accumulate: int) -> None:
    phase = {"sequence_length": 32, "batch_size": 16, "num_steps": NUM_STEPS, "learning_rate": 3e-3}
    run = make_run(accumulate=accumulate, phases=[phase], max_grad_norm=0.5, skip_spikes_above=1.5)
    recipe, hardware = run.recipe, resolve(run.machine)
    store = TokenStore.open(run.tokens_dir)
    vocabulary = Vocabulary.of(load_tokenizer(run.tokenizer_dir))
    objective = OBJECTIVES[recipe.sentence_objective]
    ours = Pretraining(run, Status(run.run_dir / "status.json"), lambda: False).make_trainer()
    ours.callbacks = [*ours.callbacks, _Losses(objective.metrics)]

    def training() -> _Training:
        config = run.shape.build(store.vocab_size)
        module = objective.build(config)
        initialize(module, run.seed, config.initializer_range, recipe.start)

        def loader(rank: int = 0, num_ranks: int = 1) -> PretrainLoader:
            padding = functools.partial(unpadding, hardware, False)
            dropouts = module.encoder.num_dropouts
            return PretrainLoader(recipe, store, vocabulary, run.seed, dropouts, objective, rank, num_ranks, padding)

        lightning_module = ClozeLightningModule(
            module,
            lambda module: make_optimizer(module, recipe.optimizer, 0.0, recipe.weight_decay, recipe.betas, recipe.eps),
            loader().phase_schedule,
            objective.metrics,
            max_grad_norm=recipe.max_grad_norm,
            skip_bad_steps=True,
            skip_spikes_above=recipe.skip_spikes_above,
        )
        return _Training(lightning_module, ClozeDataModule(loader, recipe.num_steps))

    check(training, ours, tmp_path)


@pytest.mark.parametrize("benchmark", ["sst2", "ner"])
def test_fine_tuning_is_the_same(make_job: MakeJob, tmp_path: Path, benchmark: str) -> None:
    adapt = {"layer_decay": 0.9}
    job = make_job(benchmark, num_epochs=2, max_train_rows=200, batch_size=8, dropout=0.1, adapt=adapt)
    tokenizer = load_tokenizer(job.encoder_dir)

    def trainer(callbacks: Sequence[Callback] = ()) -> Trainer:
        encoder = load_encoder(job.encoder_dir)
        data = load_data(job, tokenizer, encoder.config.vocab_size)
        data.tokens.narrow(encoder)
        model = make_model(encoder, job.row, job.recipe, job.seed)
        fabric = make_fabric(job.machine, resolve(job.machine))
        return make_trainer(fabric, model, data.train, job.recipe, job.seed, data.tokens.pad_id, callbacks=callbacks)

    def training() -> _Training:
        same = trainer()
        module = ClozeLightningModule(
            same.module, lambda module: same.optimizer, same.schedule, METRICS, max_grad_norm=job.recipe.max_grad_norm
        )
        return _Training(module, ClozeDataModule(lambda rank, num_ranks: same.loader, same.num_steps))

    check(training, trainer([_Losses(METRICS)]), tmp_path)
