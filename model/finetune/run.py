"""One attempt at a fine-tuning job: data, model, training, evaluation, and the files that it leaves."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from model.benchmarks.scoring.error_examples import error_examples
from model.common.errors import Diverged, UserError
from model.common.files import write_json
from model.common.metrics_log import MetricsLog
from model.common.run_dir import RunDir
from model.common.status import Status
from model.common.timing import Stopwatch
from model.config.finetuning import FullAdaptation
from model.config.hardware import be_deterministic, resolve
from model.engine.callbacks import Checkpointing, Interval, LossLogger, StatusWriter
from model.engine.checkpoint import Checkpoint, Checkpoints
from model.engine.cost import Cost
from model.engine.distributed import Fabric, make_fabric
from model.engine.process import run_guarded
from model.engine.trainer import Callback, StepResult, Trainer
from model.finetune.build import count_parameters, make_model, make_ready
from model.finetune.data import JobData, load_data
from model.finetune.ensemble import run_ensemble
from model.finetune.job import EnsembleJob, Job
from model.finetune.lora import merged
from model.finetune.output import load_head, save_model, write_documents, write_outputs, write_predictions
from model.finetune.training import METRICS, EpochEvaluation, make_trainer, predict, unused_row_decay
from model.formats.hf_folder import load_encoder
from model.heads.head import EvalResult, combine
from model.heads.task_model import TaskModel
from model.optim.sharding import gathered
from model.tokenizer.wordpiece import load_tokenizer

Outputs = Mapping[str, npt.NDArray[np.float32]]
"""Outputs of the head on each part of the dev set, by suffix."""
_CURVE_POINTS = 100
_WORTH_SAVING_SECONDS = 20.0
"""A job that is paused earlier starts from scratch: that is as quick as resuming."""


def run_as_process(
    load: Callable[[], Job | EnsembleJob], status_path: Path | None, should_stop: Callable[[], bool]
) -> int:
    """Run a job and return its exit code (see `model.engine.process.run_guarded`).

    Args:
        load: reads the job.
        status_path: the status file of a job that cannot be loaded; None for none.
        should_stop: asked after every step.
    """
    status = None if status_path is None else Status(status_path)

    def action() -> None:
        nonlocal status
        job = load()
        status = Status(job.status_path) if os.environ.get("RANK", "0") == "0" else None
        if isinstance(job, EnsembleJob):
            run_ensemble(job)
        else:
            run_job(job, should_stop)

    return run_guarded(action, lambda: status)


def run_job(job: Job, should_stop: Callable[[], bool] = lambda: False) -> None:
    """Run a job to its end, from its checkpoint if it left one; do nothing if it has a result.

    Raises:
        UserError: a mistake in the job, its data or its encoder.
        Diverged: the loss is not finite.
        Paused: `should_stop` returned true.
    """
    if RunDir(job.run_dir).read_result(job.digest) is None:
        FinetuneRun(job, should_stop).execute()


class FinetuneRun:
    """One attempt at a job."""

    def __init__(self, job: Job, should_stop: Callable[[], bool]) -> None:
        self.job, self._should_stop = job, should_stop
        self._files = RunDir(job.run_dir)
        self._clock = Stopwatch()
        self._curve: list[dict[str, float]] = []
        is_first = os.environ.get("RANK", "0") == "0"  # which writes all files
        self._status = Status(self._files.status) if is_first else None
        self._journal = MetricsLog(self._files.metrics_log) if is_first else None
        if self._status is not None:
            self._status.running(0, 0)

    def execute(self) -> None:
        """Read the data, train, evaluate, and write the result."""
        job, row = self.job, self.job.row
        fabric = self._make_fabric()
        cost = Cost(fabric.device)
        encoder = load_encoder(job.encoder_dir)
        self._check_length(encoder.config.max_position_embeddings)
        tokenizer = load_tokenizer(job.encoder_dir)
        vocab_size = encoder.config.vocab_size
        if tokenizer.get_vocab_size() > vocab_size:
            raise UserError(
                f"{job.encoder_dir}: the tokenizer has {tokenizer.get_vocab_size()} tokens, the encoder {vocab_size}; "
                "take both from one directory"
            )
        data = load_data(job, tokenizer, vocab_size)
        data.tokens.narrow(encoder)
        model = make_model(encoder, row, job.recipe, job.seed)
        if job.keep_head:
            load_head(model, job.encoder_dir)
        model = model.to(fabric.device)
        parts = [data.train, *(part.features for part in data.dev.values())]
        make_ready(model, parts, data.tokens.pad_id, self._bf16)
        data = replace(data, facts={**data.facts, "parameters": count_parameters(model, vocab_size)})
        if model.head.reads_tokens:  # parameters without a gradient, which ranks would wait for
            encoder.pooler.requires_grad_(False)
        complete = copy.deepcopy(model) if self._is_sharded else model
        evaluation = EpochEvaluation(
            job.recipe,
            data.train,
            lambda trainer: self._evaluate(trainer, model, data),
            row.headline,
            self._log_scores,
        )
        trainer, checkpointing = self._make_trainer(fabric, model, data, evaluation)
        checkpointing.resume(trainer, checkpointing.newest())
        self._clock.lap("prepare_seconds")
        print(f"training begins at {time.time():.3f}", flush=True)
        trainer.train()
        if evaluation.best_weights is not None:
            trainer.module.load_state_dict(evaluation.best_weights)
        result, outputs = evaluation.best or self._evaluate(trainer, model, data)
        self._clock.lap("train_seconds")
        if self._is_sharded:
            weights = gathered(model.state_dict())
            complete.load_state_dict(weights)
        decay = unused_row_decay(trainer, model, evaluation.best_epoch * evaluation.steps_per_epoch)
        data.tokens.widen(complete.encoder, decay)
        if fabric.is_global_zero:
            self._write(complete, result, outputs, evaluation, trainer.step, data, cost)
        fabric.barrier()

    def _make_fabric(self) -> Fabric:
        """Resolve the hardware options, and set deterministic kernels and the number of threads."""
        # cuBLAS is deterministic only with a fixed workspace, which it reads when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        hardware = resolve(self.job.machine)
        torch.set_num_threads(hardware.num_threads)
        be_deterministic()
        self._bf16, self._is_sharded = hardware.precision == "bf16", hardware.strategy == "sharded"
        if self._is_sharded and not isinstance(self.job.recipe.adapt, FullAdaptation):
            raise UserError("machine.strategy: sharded trains all weights; set recipe.adapt to full, or take ddp")
        return make_fabric(self.job.machine, hardware)

    def _make_trainer(
        self, fabric: Fabric, model: TaskModel, data: JobData, evaluation: EpochEvaluation
    ) -> tuple[Trainer, Checkpointing]:
        job, every = self.job, self.job.checkpoint_every_seconds
        checkpointing = Checkpointing(
            Checkpoints(self._files.checkpoints, num_kept=1),
            lambda: {"digest": job.digest, "curve": self._curve},
            self._is_ours,
            lambda line: print(line, flush=True),
            every_seconds=every,
            on_pause_after_seconds=min(every, _WORTH_SAVING_SECONDS),
        )
        logger = LossLogger(METRICS, -(-evaluation.num_steps // _CURVE_POINTS), self._log)
        callbacks: Sequence[Callback] = [logger, StatusWriter(self._status), _FirstStep(self._clock), evaluation]
        trainer = make_trainer(
            fabric,
            model,
            data.train,
            job.recipe,
            job.seed,
            data.tokens.pad_id,
            bf16=self._bf16,
            callbacks=[*callbacks, checkpointing],
            should_stop=self._should_stop,
        )
        return trainer, checkpointing

    def _is_ours(self, found: Checkpoint) -> bool:
        if found.state["digest"] != self.job.digest:
            return False
        self._curve = found.state["curve"]
        return True

    def _log(self, trainer: Trainer, interval: Interval, result: StepResult) -> None:
        """Add an interval of steps to the curve and the metrics log.

        Raises:
            Diverged: the loss is not finite.
        """
        loss, step = interval.means(METRICS)["loss"], trainer.step
        if not np.isfinite(loss):
            raise Diverged("non-finite", f"the loss is {loss} at step {step}; lower the learning rate")
        self._curve.append({"step": step, "loss": round(loss, 6)})
        if self._journal is not None:
            norm = interval.grad_norms / interval.num_steps
            metrics = {"train/loss": loss, "train/grad_norm": norm, "train/learning_rate": result.learning_rate}
            self._journal.log(step, metrics)

    def _log_scores(self, step: int, result: EvalResult) -> None:
        if self._journal is not None:
            self._journal.log(step, {f"dev/{name}": value for name, value in result.scores.items()}, "dev")

    def _check_length(self, max_positions: int) -> None:
        if self.job.recipe.max_length > max_positions:
            raise UserError(
                f"max_length {self.job.recipe.max_length} is more than the {max_positions} positions of "
                f"encoder '{self.job.encoder_name}'; lower max_length"
            )

    def _evaluate(self, trainer: Trainer, model: TaskModel, data: JobData) -> tuple[EvalResult, Outputs]:
        """Evaluate on all parts of the dev set; return the result and the outputs.

        Raises:
            Paused: the job was asked to stop; one rank only, since several compute together.
        """
        results, outputs = {}, {}
        with merged(model):  # the model that is evaluated is the one that will be saved
            for suffix, part in data.dev.items():
                outputs[suffix] = predict(model, part.features, data.tokens.pad_id, self._bf16, trainer)
                results[suffix] = part.prepared.evaluate(outputs[suffix])
        trainer.module.train()
        return combine(results), outputs

    def _write(
        self,
        model: TaskModel,
        result: EvalResult,
        outputs: Outputs,
        evaluation: EpochEvaluation,
        num_steps: int,
        data: JobData,
        cost: Cost,
    ) -> None:
        job, files, headline = self.job, self._files, self.job.row.headline
        write_predictions(files.predictions, result.predictions)
        write_json(files.errors, error_examples(job.row, data.dev_examples, result.predictions))
        write_outputs(files.outputs, job.row.head, outputs)
        save_model(model, job, result.chosen)
        write_documents(job.run_dir, result.documents())
        assert self._journal is not None and self._status is not None, "rank 0 writes"
        self._journal.close()
        self._clock.lap("write_seconds")
        timing = {**self._clock.laps, "seconds": self._clock.total(), "num_steps": num_steps, **cost.so_far()}
        write_json(files.timing, timing)
        content: dict[str, Any] = {
            "digest": job.digest,
            "encoder": job.encoder_name,
            "benchmark": job.benchmark,
            "seed": job.seed,
            "recipe": job.recipe.model_dump(mode="json"),
            "scores": result.scores,
            "headline": {"metric": headline, "value": result.scores[headline]},
            "degenerate": result.degenerate,
            "best_epoch": evaluation.best_epoch,
            "curve": self._curve,
            "evaluations": evaluation.evaluations,
            **({"after": job.after} if job.after is not None else {}),
            **data.facts,
        }
        write_json(files.result, content)
        self._status.end("done")
        Checkpoints(files.checkpoints, num_kept=1).remove()


class _FirstStep(Callback):
    """Notes when the first step of this process was done, for the measurement of start-up times."""

    def __init__(self, clock: Stopwatch) -> None:
        self._clock = clock

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        """Note and print the time, once."""
        if self._clock.first_step is None:
            self._clock.first_step = time.time()
            print(f"first step at {self._clock.first_step:.3f}", flush=True)
