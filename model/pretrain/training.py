"""Pre-training of one encoder: the module, its data, the callbacks of the training loop, and the report."""

from __future__ import annotations

import functools
import math
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import torch

from model.common import state_files
from model.common.errors import Diverged, UserError
from model.common.metrics_log import MetricsLog
from model.common.ownership import require_ownership
from model.common.run_dir import RunDir
from model.common.status import Status
from model.config.hardware import be_deterministic, is_compiled, resolve
from model.config.pretraining import KEEPING, PretrainRun, StartCheckpoint, check_phases
from model.data.loader import PretrainLoader
from model.data.token_store import HELDOUT, TokenStore, heldout_parts
from model.data.unpadding import unpadding
from model.encoder.flops import planned_seconds
from model.encoder.init import initialize
from model.engine.attention_autotune import kernel_of_run
from model.engine.callbacks import Checkpointing, EverySteps, Interval, LossLogger, OwnerCheck, SkipSpikes, StatusWriter
from model.engine.checkpoint import Checkpoint, Checkpoints, of_first_rank
from model.engine.distributed import make_fabric
from model.engine.speed_monitor import SpeedMonitor
from model.engine.trainer import Callback, StepResult, Trainer
from model.formats.hf_folder import load_parts, save_encoder
from model.objectives import OBJECTIVES, Objective
from model.optim.optimizers import make_optimizer
from model.optim.sharding import gathered
from model.pretrain.evaluation import Probes, Validation
from model.tokenizer.wordpiece import Vocabulary, load_tokenizer, tokenizer_digest

_MAY_CHANGE = KEEPING | {"accumulate"}
"""Settings of the recipe that may differ between the process that saved a checkpoint and the one that resumes it."""
_DIGITS = 6  # of numbers in the result


class Pretraining:
    """The pre-training of one encoder.

    Args:
        status: written by rank 0; None on the other ranks.
        should_stop: asked after every step; when true, training saves and pauses.

    Raises:
        UserError: the settings do not fit each other, the tokens or the machine.
    """

    def __init__(self, run: PretrainRun, status: Status | None, should_stop: Callable[[], bool]) -> None:
        self.run, self._status, self._should_stop = run, status, should_stop
        self._hardware = hardware = resolve(run.machine)
        torch.set_num_threads(hardware.num_threads)
        be_deterministic()
        self._store = TokenStore.open(run.tokens_dir)
        tokenizer = load_tokenizer(run.tokenizer_dir)
        if tokenizer_digest(tokenizer) != self._store.tokenizer_digest:
            raise UserError(
                f"{run.tokens_dir}: made with another vocabulary than {run.tokenizer_dir} holds; "
                "run the tokens stage again"
            )
        self._vocabulary = Vocabulary.of(tokenizer)
        self.config = run.encoder_config(self._store.vocab_size)
        self._probes: Probes | None = None
        if run.recipe.probes.benchmarks and status is not None:  # on rank 0 only; the others wait for it
            if run.data_dir is None or hardware.strategy == "sharded":
                raise UserError(
                    "recipe.probes: they need the benchmarks' data and an encoder that is whole on one rank"
                )
            self._probes = Probes(run.recipe.probes, run.data_dir, tokenizer, self.config.max_position_embeddings)
        check_phases(run.recipe, run.machine, self.config)
        parts = {part: TokenStore.open(run.tokens_dir, part) for part in heldout_parts(run.tokens_dir)}
        validations = {part: Validation(run.recipe, store, self._vocabulary) for part, store in parts.items()}
        self._validations = {part: validation for part, validation in validations.items() if validation.is_on}
        self._fabric = make_fabric(run.machine, hardware)
        self.objective = OBJECTIVES[run.recipe.sentence_objective]
        self._report = _Report(run, self.objective, status, self._store.vocab_size)
        self.module = self.objective.build(self.config)
        initialize(self.module, run.seed, self.config.initializer_range, run.recipe.start)
        if run.start is not None:
            missing = load_parts(run.start.directory, self.module.encoder, **self.objective.published(self.module))
            self._report.start(run.start, missing)
        self._compiled = is_compiled(run.machine, hardware, planned_seconds(self.config, run.recipe, hardware))

    def train(self) -> None:
        """Train to the end, from the newest checkpoint if there is one, and write encoder/ and result.json.

        Raises:
            UserError: the newest checkpoint has other data, another shape or another recipe.
            Diverged: no step can be taken anymore, or the loss does not fall.
            Paused: training was asked to stop; the state is saved.
        """
        run, step, num_tokens = self.run, 0, 0
        if run.recipe.phases:
            trainer = self.make_trainer()
            if run.start is not None and trainer.step == 0 and self._validations:
                self._validate(trainer)  # the losses of the checkpoint, with which later ones are compared
            trainer.train()
            step, num_tokens = trainer.step, trainer.num_tokens
        else:
            self._report.timing(0.0, 0, 0.0)
        weights = gathered(self.module.state_dict())
        if self._fabric.is_global_zero:
            trained = self.objective.build(self.config)
            trained.load_state_dict(weights)
            # Without a step, the encoder is a start for fine-tuning: it keeps its pooler, and has no trained head.
            parts = self.objective.published(trained) if run.recipe.phases else {}
            save_encoder(trained.encoder, run.run_dir / "encoder", run.tokenizer_dir, **parts)
        self._report.result(step, num_tokens)
        self._fabric.barrier()

    def make_trainer(self) -> Trainer:
        """Make the trainer, and restore the newest checkpoint into it."""
        run, recipe, fabric, where, report = self.run, self.run.recipe, self._fabric, self._hardware, self._report
        owns = functools.partial(require_ownership, run.run_dir, run.attempt)
        checkpoints = Checkpoints(RunDir(run.run_dir).checkpoints, recipe.checkpoints_kept, owns)
        found = of_first_rank(fabric, lambda: checkpoints.newest(report.say))
        self._kernel = kernel_of_run(run, self.config, where, self._compiled, found, fabric, report.say)
        loader = PretrainLoader(
            recipe,
            self._store,
            self._vocabulary,
            run.seed,
            self.module.encoder.num_dropouts,
            self.objective,
            fabric.global_rank,
            fabric.world_size,
            functools.partial(unpadding, where, self._compiled),
        )
        self._phases = loader.phase_schedule
        if self._compiled:
            # One graph for each number of tokens and each phase; beyond the limit code would run eagerly.
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
            self.module.compile(dynamic=False)
        monitor = SpeedMonitor(self.config, fabric.device, where.precision, fabric.world_size, run.machine.num_nodes)
        report.monitor = monitor
        checkpointing = Checkpointing(
            checkpoints,
            self._state,
            self._restore,
            every_steps=recipe.checkpoint_every_steps,
            on_save=report.on_save,
        )
        callbacks: list[Callback] = [
            *([OwnerCheck(self.run.run_dir, self.run.attempt)] if self._status is not None else []),
            SkipSpikes(recipe.skip_spikes_above, fabric.device),
            monitor,
            LossLogger(self.objective.metrics, recipe.log_every_steps, report.interval),
        ]
        if self._validations:
            callbacks.append(EverySteps(recipe.validate_every_steps, self._validate))
        if (probes := self._probes) is not None:
            probe = lambda trainer: report.probes(trainer.step, probes.run(self.module.encoder))  # noqa: E731
            callbacks.append(EverySteps(recipe.probes.every_steps, probe))
        cpu_bf16 = (where.device, where.strategy, where.precision) == ("cpu", "single", "bf16")
        trainer = Trainer(
            fabric,
            self.module,
            loader,
            lambda module: make_optimizer(module, recipe.optimizer, 0.0, recipe.weight_decay, recipe.betas, recipe.eps),
            self._phases,
            [*callbacks, StatusWriter(self._status), checkpointing],
            max_grad_norm=recipe.max_grad_norm,
            kernel=self._kernel,
            master_weights=cpu_bf16 and not self._compiled,
            tied=self.module.encoder.embeddings.token.weight,
            should_stop=self._should_stop,
        )
        if found is not None and checkpointing.resume(trainer, found):
            trainer.seconds, joules = fabric.broadcast(report.noted())  # only rank 0 writes them
            monitor.resume(joules)
            report.say(f"resuming from {found.path.name}")
        return trainer

    def _validate(self, trainer: Trainer) -> None:
        # The compiled module is compiled for training; a sharded one has to be called to gather its parameters.
        forward = self.module.forward if self._compiled else self.module
        phase, fabric = self._phases.position(max(0, trainer.step - 1)).phase, trainer.fabric
        for part, validation in self._validations.items():
            sums, counts = validation.run(self.module, forward, phase, fabric.global_rank, fabric.world_size)
            counts.totals = trainer.all_ranks(sums)
            self._report.validation(trainer.step, part, counts.means(self.objective.metrics))

    def _state(self) -> dict[str, Any]:
        return {
            "identity": {  # settings that the run that resumes must share
                "tokens": self._store.fingerprint,
                "seed": self.run.seed,
                "start": self.run.start and self.run.start.digest,
                "encoder": self.config.model_dump(mode="json"),
                "recipe": self.run.recipe.model_dump(mode="json", exclude=_MAY_CHANGE),
            },
            "environment": {  # conditions under which weights repeat to the last bit
                **_versions(),
                "threads": torch.get_num_threads(),
                "device": self._hardware.device,
                "precision": self._hardware.precision,
                "compiled": self._compiled,
                "ranks": self.run.machine.world_size,
                "capability": torch.backends.cpu.get_cpu_capability(),
                "attention": self._kernel,
            },
            "phase_lengths": self._phases.lengths,  # a time budget shortens them
            "curve": self._report.curve,
            "heldout": self._report.heldout,
        }

    def _restore(self, found: Checkpoint) -> bool:
        """Refuse a checkpoint of another run, report differences between the environments, and restore the rest."""
        state, ours = found.state, self._state()
        for name, value in ours["identity"].items():
            if state["identity"].get(name) != value:
                raise UserError(
                    f"{found.path}: saved with another {name} than this run has; "
                    "start in an empty directory, or restore the former settings"
                )
        for name, value in ours["environment"].items():
            was = state["environment"].get(name)
            if was != value:
                self._report.say(f"{name} was {was} and is now {value}: the last bits of the weights may differ")
        self._phases.lengths = state["phase_lengths"]
        self._report.curve, self._report.heldout = state["curve"], state["heldout"]
        return True


class _Report:
    """Writes the log, the metrics log, timing.json and result.json on rank 0 (where there is a status).

    The other ranks only keep the curve.
    """

    monitor: SpeedMonitor

    def __init__(self, run: PretrainRun, objective: Objective, status: Status | None, vocab_size: int) -> None:
        self._run, self._objective, self._status = run, objective, status
        self.curve: list[dict[str, float]] = []
        self.heldout: dict[str, list[dict[str, float]]] = {HELDOUT: []}
        """The validations of each held-out part of the tokens."""
        self._start: dict[str, Any] | None = None
        self._losses = [metric.name for metric in objective.metrics if metric.weight]
        self._chance_loss = objective.chance_loss(vocab_size)
        self._files = RunDir(run.run_dir)
        self._metrics_log = None if status is None else MetricsLog(self._files.metrics_log)

    def say(self, line: str) -> None:
        if self._status is not None:
            print(line, flush=True)

    def start(self, checkpoint: StartCheckpoint, missing: list[str]) -> None:
        """Record the checkpoint that the run continues from, and the parts that it lacks."""
        self._start = {"from": checkpoint.name, "digest": checkpoint.digest, "initialized": missing}
        lacks = f"; not in the checkpoint, so initialized: {', '.join(missing)}" if missing else ""
        self.say(f"continuing from {checkpoint.name} with its encoder, vocabulary and heads{lacks}")

    def _log(
        self, step: int, stream: str, metrics: Mapping[str, float], cost: Mapping[str, float] | None = None
    ) -> None:
        if self._metrics_log is not None:
            named = {f"{stream}/{name}": value for name, value in metrics.items()}
            self._metrics_log.log(step, {**named, **(cost or {})}, stream)

    def noted(self) -> tuple[float, float | None]:
        """Seconds of training and joules (None if unknown) up to the last checkpoint."""
        content = state_files.read_state(self._files.timing)
        return float(content.get("seconds", 0.0)), content.get("energy_joules")

    def interval(self, trainer: Trainer, interval: Interval, result: StepResult) -> None:
        """Add an interval of steps, of which `result` is the last; raise Diverged if training is hopeless."""
        step, cost, means = trainer.step, self.monitor.read(), interval.means(self._objective.metrics)
        skipped, rate, norm = interval.num_skipped, result.learning_rate, float(result.grad_norm)
        if skipped == interval.num_steps or not math.isfinite(means["loss"]):
            raise Diverged(
                "hopeless",
                f"no usable gradient in the last {skipped} steps, at step {step}; lower the learning rate",
            )
        if not math.isfinite(norm):
            norm = 0.0  # of a skipped step
        entry = {"step": step, **_rounded(means), "learning_rate": rate, "grad_norm": round(norm, _DIGITS)}
        self.curve.append({**entry, "skipped_steps": skipped} if skipped else entry)
        self._log(step, "train", {**means, "learning_rate": rate, "grad_norm": norm, "skipped_steps": skipped}, cost)
        if self._status is not None:
            self._status.note(loss=means["loss"], tokens_per_second=cost["train/tokens_per_second"])
        losses = ", ".join(f"{name.removesuffix('_loss')} {means[name]:.3f}" for name in self._losses)
        self.say(
            f"step {step:,}/{self._run.recipe.num_steps:,}  loss {means['loss']:.3f} ({losses})  rate {rate:.2e}  "
            f"{cost['train/tokens_per_second']:,.0f} tokens/s" + (f"  ({skipped} steps skipped)" if skipped else "")
        )
        self._check_progress(step, means[self._losses[0]])

    def _check_progress(self, step: int, loss: float) -> None:
        before = self.curve[-2]["step"] if len(self.curve) > 1 else 0
        found = f"the {self._losses[0].replace('_', ' ')} is {loss:.3f} at step {step}"
        for bound in self._run.recipe.give_up_above:
            if before < bound.step <= step and loss > bound.mlm_loss:
                raise Diverged("hopeless", f"{found}; give_up_above allows {bound.mlm_loss:g}")
        if before >= self._run.recipe.warmup_steps and loss > self._chance_loss + 1:
            chance = f"a uniform guess has {self._chance_loss:.3f}"
            raise Diverged("hopeless", f"{found}, but {chance}; lower the learning rate")

    def validation(self, step: int, part: str, means: Mapping[str, float]) -> None:
        self.heldout.setdefault(part, []).append({"step": step, **_rounded(means)})
        self._log(step, part, means)
        shown = [
            f"{name.replace('_', ' ')} {value:{'.1%' if name.endswith('accuracy') else '.3f'}}"
            for name, value in means.items()
            if name != "loss"
        ]
        self.say(f"step {step:,}  {part.replace(HELDOUT, 'held-out', 1)}: {', '.join(shown)}")

    def probes(self, step: int, scores: Mapping[str, float]) -> None:
        self._log(step, "probe", scores)
        self.say(f"step {step:,}  probes: " + ", ".join(f"{name} {value:.1f}" for name, value in scores.items()))

    def on_save(self, trainer: Trainer) -> Callable[[], None]:
        """Measure time and energy up to the checkpoint that is being saved; the result records them once it is on disk.

        Every rank has to call this.
        """
        self.monitor.at_checkpoint(trainer)
        return functools.partial(self.timing, trainer.seconds, trainer.num_tokens, self.monitor.total_joules)

    def timing(self, seconds: float, num_tokens: int, joules: float | None) -> None:
        """Rewrite timing.json; checkpoints and the result hold nothing that depends on the machine's speed."""
        if self._status is None:
            return
        rate = num_tokens / seconds if seconds else 0.0
        content = {"seconds": seconds, "num_tokens": num_tokens, "tokens_per_second": rate, "time": time.time()}
        state_files.write_state(self._files.timing, content if joules is None else {**content, "energy_joules": joules})

    def result(self, num_steps: int, num_tokens: int) -> None:
        """Write result.json, the last file: it marks the run as successful."""
        if self._status is None or self._metrics_log is None:
            return
        final = {
            f"{part}/{name}": value
            for part, entries in {"train": self.curve, **self.heldout}.items()
            for name, value in (entries[-1] if entries else {}).items()
            if name != "step"
        }
        content: dict[str, Any] = {
            "digest": self._run.digest,
            "name": self._run.name,
            "num_steps": num_steps,
            "num_tokens_seen": num_tokens,
            "final": final,
            "curve": self.curve,
            "heldout": self.heldout[HELDOUT],
            "versions": _versions(),
        }
        if sources := {part: entries for part, entries in self.heldout.items() if part != HELDOUT}:
            content["heldout_sources"] = sources
        if self._start is not None:
            content["start"] = self._start
        self._metrics_log.close()
        self._files.write_result(content)
        self._status.running(num_steps, num_steps)
        self._status.end("done")


def _versions() -> dict[str, str]:
    names = ("torch", "lightning", "numba", "numpy", "safetensors")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def _rounded(means: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, _DIGITS) for name, value in means.items()}
