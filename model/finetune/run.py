"""One attempt at a fine-tuning job: data, model, training with checkpoints, and all that it leaves."""

from __future__ import annotations

import os
import shutil
import threading
import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from model.benchmarks.scoring.error_examples import error_examples
from model.common.errors import UserError
from model.common.files import write_json
from model.common.metrics_log import MetricsLog
from model.common.status import Status
from model.common.timing import Stopwatch
from model.config.hardware import be_deterministic, resolve
from model.engine.checkpoint import Checkpoints, optimizer_moments, restore_moments
from model.engine.cost import Cost
from model.finetune.build import count_parameters, make_model, make_ready
from model.finetune.data import JobData, load_data
from model.finetune.job import Job
from model.finetune.loop import Progress, Stopped, Trainer, predict
from model.finetune.lora import merged
from model.finetune.output import OUTPUTS, load_head, save_model, write_documents, write_outputs, write_predictions
from model.formats.hf_folder import load_encoder
from model.heads.head import EvalResult, combine
from model.heads.task_model import TaskModel
from model.tokenizer.wordpiece import load_tokenizer

CHECKPOINT_EVERY_SECONDS = 120.0
"""Shorter jobs leave no checkpoint: they start from scratch sooner than they would resume."""
WORTH_KEEPING_SECONDS = 20.0
"""A job that is asked to stop saves itself when it has trained for so long."""
_BEST = "best:"  # before the names of the weights that were best on dev so far, in a checkpoint


class FinetuneRun:
    """One attempt at a job."""

    def __init__(self, job: Job, stop: threading.Event) -> None:
        self.job = job
        self.stop = stop
        self.status = Status(job.status_path)
        self.status.running(0, 0)
        self._checkpoints = Checkpoints(job.run_dir / "checkpoints", num_kept=1)
        self._journal = MetricsLog(job.run_dir / "journal.jsonl")
        self._clock = Stopwatch()
        self._last_saved = time.monotonic()
        self._outputs: dict[str, npt.NDArray[np.float32]] = {}  # of the last evaluation, by part of the dev set
        self._best_outputs = self._outputs

    def execute(self) -> None:
        """Everything from reading the data to writing the result."""
        job, row = self.job, self.job.row
        device, self._bf16 = self._place()
        cost = Cost(device)
        encoder = load_encoder(job.encoder_dir)
        self._check_length(encoder.config.max_position_embeddings)
        tokenizer = load_tokenizer(job.encoder_dir)
        if tokenizer.get_vocab_size() > encoder.config.vocab_size:
            raise UserError(
                f"{job.encoder_dir}: the tokenizer has {tokenizer.get_vocab_size()} tokens, the encoder "
                f"{encoder.config.vocab_size}; take both from one folder"
            )
        data = load_data(job, tokenizer, encoder.config.vocab_size)
        data.tokens.narrow(encoder)
        vocab_size = encoder.config.vocab_size
        model = make_model(encoder, row, job.recipe, job.seed)
        if job.keep_head:
            load_head(model, job.encoder_dir)
        model = model.to(device)
        parts = [data.train, *(part.features for part in data.dev.values())]
        make_ready(model, parts, data.tokens.pad_id, self._bf16)
        data = replace(data, facts={**data.facts, "parameters": count_parameters(model, vocab_size)})
        trainer = Trainer(model, data.train, job.recipe, job.seed, data.tokens.pad_id, self._bf16)
        self._resume(trainer)
        self._clock.lap("prepare_seconds")
        print(f"training begins at {time.time():.3f}", flush=True)
        try:
            trainer.train(lambda: self._evaluate(model, data), row.headline, self)
            outcome = self._best(model, trainer.progress, data)
        except Stopped:
            if self._clock.total() >= WORTH_KEEPING_SECONDS:
                self._save(trainer)
            raise
        self._clock.lap("train_seconds")
        best_step = trainer.progress.best_epoch * trainer.steps_per_epoch
        data.tokens.widen(encoder, trainer.decay(best_step))
        self._write(model, outcome, trainer.progress, data, cost)

    def at_step(self, trainer: Trainer) -> None:
        """Watcher: report, save now and then, stop when asked to."""
        self.status.running(trainer.progress.step, trainer.num_steps)
        if self._clock.first_step is None:
            self._clock.first_step = time.time()
            print(f"first step at {self._clock.first_step:.3f}", flush=True)
        if self.stop.is_set():
            raise Stopped
        if time.monotonic() - self._last_saved >= CHECKPOINT_EVERY_SECONDS:
            self._save(trainer)

    def at_log(self, progress: Progress, metrics: dict[str, float]) -> None:
        """Watcher: means go to the journal."""
        self._journal.log(progress.step, metrics)

    def at_evaluation(self, progress: Progress, outcome: EvalResult) -> None:
        """Watcher: scores go to the journal."""
        if progress.best_outcome is outcome:
            self._best_outputs = self._outputs
        scores = {f"dev/{name}": value for name, value in outcome.scores.items()}
        self._journal.log(progress.step, scores, "dev")

    def _save(self, trainer: Trainer) -> None:
        state = {**trainer.state(), "digest": self.job.digest}
        best = trainer.progress.best_weights or {}
        weights = {**trainer.model.state_dict(), **{f"{_BEST}{name}": tensor for name, tensor in best.items()}}
        moments = optimizer_moments(trainer.model, trainer.optimizer)
        self._checkpoints.save(trainer.progress.step, state, weights, moments)
        self._last_saved = time.monotonic()

    def _resume(self, trainer: Trainer) -> None:
        """Go on from this job's checkpoint, if it left one that is whole."""
        found = self._checkpoints.newest(lambda message: print(message, flush=True))
        if found is None or found.state["digest"] != self.job.digest:
            return
        best = {name.removeprefix(_BEST): t for name, t in found.weights.items() if name.startswith(_BEST)}
        trainer.model.load_state_dict({name: t for name, t in found.weights.items() if not name.startswith(_BEST)})
        restore_moments(trainer.model, trainer.optimizer, found.moments)
        trainer.restore(found.state, best or None)

    def _place(self) -> tuple[torch.device, bool]:
        """The device, and whether to compute in bf16; deterministic kernels, and threads as the job says."""
        # cuBLAS is deterministic only with a workspace of its own, which it reads when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        hardware = resolve(self.job.machine)
        torch.set_num_threads(hardware.num_threads)
        be_deterministic()
        return torch.device(hardware.device), hardware.precision == "bf16"

    def _check_length(self, max_positions: int) -> None:
        if self.job.recipe.max_length > max_positions:
            raise UserError(
                f"max_length {self.job.recipe.max_length} is more than the {max_positions} positions of "
                f"encoder '{self.job.encoder_name}'; lower max_length"
            )

    def _evaluate(self, model: TaskModel, data: JobData) -> EvalResult:
        pad_id = data.tokens.pad_id
        outcomes = {}
        with merged(model):  # what is judged is what will be saved
            for suffix, part in data.dev.items():
                outputs = predict(model, part.features, pad_id, self._bf16, self._check_stop)
                self._outputs = {**self._outputs, suffix: outputs}
                outcomes[suffix] = part.prepared.evaluate(outputs)
        return combine(outcomes)

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise Stopped

    def _best(self, model: TaskModel, progress: Progress, data: JobData) -> EvalResult:
        """The best outcome on dev, with the model as it was then."""
        if progress.best_weights is not None:
            model.load_state_dict(progress.best_weights)
        if progress.best_outcome is not None:
            return progress.best_outcome
        outcome = self._evaluate(model, data)
        self._best_outputs = self._outputs
        return outcome

    def _write(self, model: TaskModel, outcome: EvalResult, progress: Progress, data: JobData, cost: Cost) -> None:
        job, headline = self.job, self.job.row.headline
        write_predictions(job.run_dir / "predictions.jsonl", outcome.predictions)
        write_json(job.run_dir / "errors.json", error_examples(job.row, data.dev_examples, outcome.predictions))
        write_outputs(job.run_dir / OUTPUTS, job.row.head, self._best_outputs)
        save_model(model, job, outcome.chosen)
        write_documents(job.run_dir, outcome.documents())
        self._journal.close()
        self._clock.lap("write_seconds")
        timing = {
            **self._clock.laps,
            "seconds": self._clock.total(),
            "num_steps": progress.step,
            **cost.so_far(),
        }
        write_json(job.run_dir / "timing.json", timing)
        write_json(
            job.result_path,
            {
                "digest": job.digest,
                "encoder": job.encoder_name,
                "benchmark": job.benchmark,
                "seed": job.seed,
                "recipe": job.recipe.model_dump(mode="json"),
                "scores": outcome.scores,
                "headline": {"metric": headline, "value": outcome.scores[headline]},
                "degenerate": outcome.degenerate,
                "best_epoch": progress.best_epoch,
                "curve": progress.curve,
                "evaluations": progress.evaluations,
                **({"after": job.after} if job.after is not None else {}),
                **data.facts,
            },
        )
        shutil.rmtree(self._checkpoints.directory, ignore_errors=True)
