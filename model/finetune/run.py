"""One attempt at a fine-tuning job (data, model, training, evaluation and output files), and ensembles of jobs."""

from __future__ import annotations

import copy
import functools
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import numpy as safetensors
from safetensors.torch import save

from model.benchmarks.scoring.error_examples import error_examples
from model.common.errors import Diverged, UserError
from model.common.files import write_bytes, write_json
from model.common.metrics_log import MetricsLog
from model.common.ownership import require_ownership
from model.common.run_dir import RunDir
from model.common.state_files import write_state
from model.common.status import Status, local_time
from model.config.finetuning import FullAdaptation, LoraAdaptation
from model.config.hardware import be_deterministic, resolve
from model.engine.callbacks import Checkpointing, Interval, LossLogger, OwnerCheck, StatusWriter
from model.engine.checkpoint import Checkpoint, Checkpoints, of_first_rank
from model.engine.distributed import Fabric, make_fabric
from model.engine.speed_monitor import Cost
from model.engine.trainer import Callback, StepResult, Trainer
from model.finetune.build import count_parameters, load_head, make_model
from model.finetune.data import DevResult, load_data, load_dev
from model.finetune.frozen_features import FeatureModel
from model.finetune.job import EnsembleJob, Job, dev_metrics
from model.finetune.lora import added, merge, merged
from model.finetune.prediction import predict
from model.finetune.training import METRICS, EpochEvaluation, make_trainer, unused_row_decay
from model.formats import peft
from model.formats.hf_folder import FORMATS, TOKENIZER_FILES, load_encoder, to_published
from model.heads.head import softmax
from model.heads.task_model import HEADS, TaskModel
from model.optim.sharding import gathered
from model.tokenizer.wordpiece import load_tokenizer

Outputs = Mapping[str, npt.NDArray[np.float32]]  # of the head, by name of the part of the dev set
_CURVE_POINTS = 100
_WORTH_SAVING_SECONDS = 20.0  # a job that is paused earlier starts from scratch, which is as quick as resuming
_LEAST_PROBABILITY = 1e-30


def run_job(
    job: Job | EnsembleJob, should_stop: Callable[[], bool] = lambda: False, status: Status | None = None
) -> None:
    """Run a job to its end, from its checkpoint if it left one; do nothing if a fine-tuning has a result.

    `status` is the job's status file of `run_guarded`; by default, the first rank makes one.

    Raises:
        UserError: a mistake in the job, its data or its encoder.
        Diverged: the loss is not finite.
        Paused: `should_stop` returned true.
    """
    status = status or Status.of_job(job.run_dir)
    if isinstance(job, EnsembleJob):
        assert status is not None, "an ensemble has one rank"
        run_ensemble(job, status)
    elif RunDir(job.run_dir).read_result(job.digest) is None:
        FinetuneRun(job, should_stop, status).execute()


class FinetuneRun:
    """One attempt at a job."""

    def __init__(self, job: Job, should_stop: Callable[[], bool], status: Status | None) -> None:
        self.job, self._should_stop, self._status = job, should_stop, status
        self._files = RunDir(job.run_dir)
        self._clock = _Stopwatch()
        self._curve: list[dict[str, float]] = []
        self._metrics_log = None if status is None else MetricsLog(self._files.metrics_log)  # the first rank's
        if status is not None:
            status.running(0, 0)

    def execute(self) -> None:
        """Read the data, train, evaluate, and write the result."""
        job, recipe, every = self.job, self.job.recipe, self.job.checkpoint_every_seconds
        fabric = self._make_fabric()
        self._cost = Cost(fabric.device)
        self._load(fabric.device)
        model, data = self._model, self._data
        complete = copy.deepcopy(model) if self._is_sharded else model
        evaluation = EpochEvaluation(recipe, data.train, self._evaluate, job.row.headline, self._log_scores)
        checkpoints = Checkpoints(self._files.checkpoints, num_kept=1)
        checkpointing = Checkpointing(
            checkpoints,
            lambda: {"digest": job.digest, "curve": self._curve},
            self._restore,
            every_seconds=every,
            on_pause_after_seconds=min(every, _WORTH_SAVING_SECONDS),
        )
        logger = LossLogger(METRICS, -(-evaluation.num_steps // _CURVE_POINTS), self._log)
        trainer = make_trainer(
            fabric,
            model,
            data.train,
            recipe,
            job.seed,
            data.tokens.pad_id,
            bf16=self._bf16,
            callbacks=[
                *([OwnerCheck(job.run_dir, job.attempt)] if self._status is not None else []),
                logger,
                StatusWriter(self._status),
                evaluation,
                _Log(self._curve, evaluation),
                checkpointing,
            ],
            should_stop=self._should_stop,
        )
        newest = functools.partial(checkpoints.newest, functools.partial(print, flush=True))
        checkpointing.resume(trainer, of_first_rank(fabric, newest))
        self._clock.lap("prepare_seconds")
        after = f" after step {trainer.step:,}" if trainer.step else ""
        print(f"training begins{after} at {local_time()}", flush=True)
        trainer.train()
        if evaluation.best_weights is not None:
            trainer.module.load_state_dict(evaluation.best_weights)
        result, outputs = evaluation.best or self._evaluate(trainer)
        self._clock.lap("train_seconds")
        if self._is_sharded:
            complete.load_state_dict(gathered(model.state_dict()))
        decay = unused_row_decay(trainer, model, evaluation.best_epoch * evaluation.steps_per_epoch)
        data.tokens.widen(complete.encoder, decay)
        if fabric.is_global_zero:
            require_ownership(job.run_dir, job.attempt)
            self._write(complete, result, outputs, evaluation, trainer.step)
            shutil.rmtree(self._files.checkpoints, ignore_errors=True)
        fabric.barrier()

    def _make_fabric(self) -> Fabric:
        # cuBLAS is deterministic only with a fixed workspace, which it reads when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        hardware = resolve(self.job.machine)
        torch.set_num_threads(hardware.num_threads)
        be_deterministic()
        self._bf16, self._is_sharded = hardware.precision == "bf16", hardware.strategy == "sharded"
        if self._is_sharded and not isinstance(self.job.recipe.adapt, FullAdaptation):
            raise UserError("machine.strategy: sharded trains all weights; set recipe.adapt to full, or take ddp")
        return make_fabric(self.job.machine, hardware)

    def _load(self, device: torch.device) -> None:
        """Load the data, and the model with the embeddings that the data uses."""
        job, recipe = self.job, self.job.recipe
        encoder, tokenizer = load_encoder(job.encoder_dir), load_tokenizer(job.encoder_dir)
        vocab_size, max_positions = encoder.config.vocab_size, encoder.config.max_position_embeddings
        if recipe.max_length > max_positions:
            raise UserError(
                f"max_length {recipe.max_length} is more than the {max_positions} positions of encoder "
                f"'{job.encoder_name}'; lower max_length"
            )
        if tokenizer.get_vocab_size() > vocab_size:
            raise UserError(
                f"{job.encoder_dir}: the tokenizer has {tokenizer.get_vocab_size()} tokens, the encoder {vocab_size}; "
                "take both from one directory"
            )
        data = load_data(job, tokenizer, vocab_size)
        data.tokens.narrow(encoder)
        model = make_model(encoder, job.row, recipe, job.seed)
        if job.keep_head:
            load_head(model, job.encoder_dir)
        model = model.to(device)
        if isinstance(model, FeatureModel):
            parts = [data.train, *(part.features for part in data.dev.parts.values())]
            model.store.fill(parts, data.tokens.pad_id, self._bf16)
        data.facts["parameters"] = count_parameters(model, vocab_size)
        if model.head.reads_tokens:  # parameters without a gradient, which ranks would wait for
            encoder.pooler.requires_grad_(False)
        self._model, self._data = model, data

    def _restore(self, found: Checkpoint) -> bool:
        if found.state["digest"] != self.job.digest:
            return False
        self._curve[:] = found.state["curve"]
        return True

    def _log(self, trainer: Trainer, interval: Interval, result: StepResult) -> None:
        loss, step = interval.means(METRICS)["loss"], trainer.step
        if not np.isfinite(loss):
            raise Diverged("non-finite", f"the loss is {loss} at step {step}; lower the learning rate")
        self._curve.append({"step": step, "loss": round(loss, 6)})
        if self._metrics_log is not None and self._status is not None:
            self._status.note(loss=loss)
            norm = interval.grad_norms / interval.num_steps
            metrics = {"train/loss": loss, "train/grad_norm": norm, "train/learning_rate": result.learning_rate}
            self._metrics_log.log(step, metrics)

    def _log_scores(self, step: int, result: DevResult) -> None:
        if self._metrics_log is not None and self._status is not None:
            scores = _scores(result, self.job)
            self._status.note(headline=scores["headline"])
            self._metrics_log.log(step, dev_metrics(scores), "dev")

    def _evaluate(self, trainer: Trainer) -> tuple[DevResult, Outputs]:
        dev, pad_id = self._data.dev, self._data.tokens.pad_id
        with merged(self._model):  # the model that is evaluated is the one that will be saved
            outputs = {
                name: predict(self._model, part.features, pad_id, self._bf16, trainer)
                for name, part in dev.parts.items()
            }
        trainer.module.train()
        return dev.evaluate(outputs), outputs

    def _write(
        self, model: TaskModel, result: DevResult, outputs: Outputs, evaluation: EpochEvaluation, num_steps: int
    ) -> None:
        job, files, reported = self.job, self._files, result.reported
        examples = [example for part in self._data.dev.reported.values() for example in part.examples]
        _write_predictions(files, result)
        write_json(files.errors, error_examples(job.row, examples, reported.predictions))
        kind = np.float16 if model.head.reads_tokens else np.float32  # of tokens there are many
        raw = {name: np.ascontiguousarray(values, kind) for name, values in outputs.items()}
        write_bytes(files.outputs, safetensors.save(raw))
        save_model(model, job, reported.chosen)
        # The benchmark's official files are kept with the best job's model alone: SQuAD's n-best list takes 30 MB.
        selected = result.selection.documents() if result.selection is not None else {}
        for name, document in reported.documents().items():
            document = {**selected.get(name, {}), **document}  # the official scripts want all rows
            line = json.dumps(document, ensure_ascii=False, sort_keys=True)  # indented it would be a third larger
            write_bytes(files.model / "dev" / f"{name}.json", f"{line}\n".encode())
        assert self._metrics_log is not None and self._status is not None, "rank 0 writes"
        self._clock.lap("write_seconds")
        timing = {**self._clock.laps, "seconds": self._clock.total(), "num_steps": num_steps, **self._cost.so_far()}
        write_state(files.timing, timing)
        content: dict[str, Any] = {
            "digest": job.digest,
            "encoder": job.encoder_name,
            "benchmark": job.benchmark,
            "seed": job.seed,
            "recipe": job.recipe.model_dump(mode="json"),
            **_scores(result, job),
            "best_epoch": evaluation.best_epoch,
            "curve": self._curve,
            "evaluations": evaluation.evaluations,
            **({"after": job.after} if job.after is not None else {}),
            **self._data.facts,
        }
        self._metrics_log.close()
        files.write_result(content, [files.predictions, files.errors, files.outputs])
        print(f"{_final(content)} (epoch {evaluation.best_epoch}), done at {local_time()}", flush=True)
        self._status.end("done")


class _Stopwatch:
    """Seconds of each part of a run, for timing.json."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._start = self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """Record the time since the last lap as `name`."""
        now = time.monotonic()
        self.laps[name], self._last = now - self._last, now

    def total(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start


class _Log(Callback):
    """Prints when the first step of this process was done, and a line for every epoch.

    Args:
        curve: the training losses, as they are recorded.
        evaluation: the evaluation, which comes earlier among the callbacks.
    """

    def __init__(self, curve: Sequence[Mapping[str, float]], evaluation: EpochEvaluation) -> None:
        self._curve, self._evaluation = curve, evaluation
        self._is_first = True

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        if not trainer.fabric.is_global_zero:
            return
        if self._is_first:
            self._is_first = False
            print(f"first step at {local_time()}", flush=True)
        length, evaluations = self._evaluation.steps_per_epoch, self._evaluation.evaluations
        epoch, rest = divmod(trainer.step, length)
        if rest:
            return
        losses = [point["loss"] for point in self._curve if point["step"] > trainer.step - length]
        line = f"epoch {epoch}/{self._evaluation.num_steps // length}"
        if losses:  # with more than 100 epochs, some have no point of the curve
            line += f"  loss {sum(losses) / len(losses):.3f}"
        if evaluations and evaluations[-1]["epoch"] == epoch:
            line += f"  dev {self._evaluation.headline} {evaluations[-1]['scores'][self._evaluation.headline]:.1f}"
        print(line, flush=True)


def save_model(model: TaskModel, job: Job, chosen: dict[str, float]) -> None:
    """Write run_dir/model: config.json, model.safetensors with the head (which has its own file on frozen features),
    the tokenizer's files, and head.json, with all else that prediction needs (`chosen` are settings found on dev).
    LoRA adapters are written to a directory of their own, and then merged. Equal weights give equal bytes."""
    folder = RunDir(job.run_dir).model
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(job.recipe.adapt, LoraAdaptation):
        adapters = [(name, adapter) for name, _, adapter in added(model.encoder)]
        peft.save_adapter(model, adapters, job.recipe.adapt, job.encoder_name, folder / peft.FOLDER)
        merge(model)
    tensors, architecture = to_published(model.encoder), model.head.transformers_class
    if isinstance(model, FeatureModel):  # nothing of `transformers` has such a head
        model.save_head(folder)
        architecture = "BertModel"
    else:
        for name, tensor in model.classifier.state_dict().items():
            tensors[f"{model.head.layer_name}.{name}"] = tensor.detach().cpu().clone()
    write_bytes(folder / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    config = FORMATS["bert"].to_hf(model.encoder.config, architecture)
    write_json(folder / "config.json", {**config, **model.head.transformers_config(job.row)})
    for name in TOKENIZER_FILES:
        if (job.encoder_dir / name).is_file():
            shutil.copyfile(job.encoder_dir / name, folder / name)
    head = {
        "benchmark": job.benchmark,
        "head": job.row.head,
        "labels": list(job.row.labels),
        "recipe": job.recipe.model_dump(mode="json"),
        "row": job.row.model_dump(mode="json"),
    }
    write_json(folder / "head.json", {**head, **chosen})


def _write_predictions(files: RunDir, result: DevResult) -> None:
    """Write a record per dev row: the reported rows, then those for selection, which have the key "selection"."""
    records = list(result.reported.predictions)
    if result.selection is not None:
        records += [{**record, "selection": True} for record in result.selection.predictions]
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    write_bytes(files.predictions, "".join(lines).encode())


def _scores(result: DevResult, job: Job) -> dict[str, Any]:
    headline = {"metric": job.row.headline, "value": result.reported.scores[job.row.headline]}
    found = {"scores": result.reported.scores, "headline": headline, "degenerate": result.degenerate}
    return found if result.selection is None else {**found, "selection_scores": result.selection.scores}


def _final(content: Mapping[str, Any]) -> str:
    return f"dev {content['headline']['metric']} {content['headline']['value']:.1f}"


def run_ensemble(ensemble: EnsembleJob, status: Status) -> None:
    """Evaluate the mean of the members' outputs on dev, and write result.json: scores as in a job's, and the seeds.

    Raises:
        UserError: a member's outputs are of other dev rows.
    """
    job, head, run_dir = ensemble.job, ensemble.job.row.head, RunDir(ensemble.run_dir)
    status.running(0, len(ensemble.members))
    outputs = [safetensors.load_file(member.outputs) for member in ensemble.members]
    dev, means = load_dev(job, load_tokenizer(job.encoder_dir)), {}
    for name, part in dev.parts.items():
        found = [one[name] for one in outputs]
        height = HEADS[head].num_output_rows(part.features)
        for member, output in zip(ensemble.members, found):
            if len(output) != height:
                raise UserError(
                    f"{member.outputs}: {len(output)} outputs, the dev set asks for {height}; run its job again"
                )
        means[name] = mean_outputs(head, found)
    result = dev.evaluate(means)
    require_ownership(ensemble.run_dir, ensemble.attempt)
    _write_predictions(run_dir, result)
    content: dict[str, Any] = {
        "digest": ensemble.digest,
        "members": [member.digest for member in ensemble.members],
        "seeds": sorted(member.seed for member in ensemble.members),
        **_scores(result, job),
    }
    run_dir.write_result(content, [run_dir.predictions])
    seeds = ", ".join(map(str, content["seeds"]))
    print(f"{_final(content)} (ensemble of the seeds {seeds}), done at {local_time()}", flush=True)
    status.end("done")


def mean_outputs(head: str, outputs: Sequence[npt.NDArray[np.floating]]) -> npt.NDArray[np.float32]:
    """The outputs of an ensemble from those of its members, all (rows or tokens, width).

    Classes, choices and tags: the logarithm of the mean of their probabilities. Regressions: the mean of their values.
    Spans: the mean of their start and end logits.
    """
    stacked = np.stack([output.astype(np.float64) for output in outputs])
    if not HEADS[head].averages_probabilities:
        return stacked.mean(axis=0).astype(np.float32)
    return np.log(np.maximum(softmax(stacked).mean(axis=0), _LEAST_PROBABILITY)).astype(np.float32)
