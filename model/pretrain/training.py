"""Pre-training of one encoder: the module, its data and the callbacks of the training loop, put together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from model.common.errors import UserError
from model.common.status import Status
from model.config.hardware import Hardware, is_compiled
from model.config.pretraining import KEEPING, PretrainRun
from model.data.loader import PretrainLoader
from model.data.phases import PhaseSchedule
from model.data.token_store import TokenStore
from model.data.unpadding import unpadding
from model.encoder.flops import planned_seconds
from model.encoder.init import initialize
from model.engine.attention_autotune import kernel_of_run
from model.engine.callbacks import Checkpointing, EverySteps, Interval, LossLogger, SkipSpikes, StatusWriter
from model.engine.checkpoint import Checkpoint, Checkpoints
from model.engine.distributed import make_fabric
from model.engine.speed_monitor import SpeedMonitor
from model.engine.trainer import Callback, StepResult, Trainer
from model.formats.hf_folder import save_encoder
from model.objectives import OBJECTIVES
from model.optim.optimizers import make_optimizer
from model.optim.sharding import gathered
from model.pretrain.probes import Probes
from model.pretrain.report import Report, versions
from model.pretrain.validation import Validation
from model.tokenizer.wordpiece import Vocabulary

_MAY_CHANGE = KEEPING | {"accumulate"}
"""Settings of the recipe that may differ between the process that saved a checkpoint and the one that resumes it."""


class Pretraining:
    """The pre-training of one encoder.

    Args:
        run: the job.
        status: written by rank 0; None on the other ranks.
        hardware: the resolved hardware options.
        store: the training part of the tokens.
        heldout: the held-out part.
        vocabulary: ids of the special tokens, and which tokens continue a word.
        should_stop: asked after every step; when true, training saves and pauses.
        probes: evaluated during training, on rank 0; None for none.
    """

    def __init__(
        self,
        run: PretrainRun,
        status: Status | None,
        hardware: Hardware,
        store: TokenStore,
        heldout: TokenStore,
        vocabulary: Vocabulary,
        should_stop: Callable[[], bool],
        probes: Probes | None = None,
    ) -> None:
        self.run, self._recipe, self._hardware, self._store = run, run.recipe, hardware, store
        self._status, self._probes, self._should_stop = status, probes, should_stop
        self._vocabulary, self._validation = vocabulary, Validation(run.recipe, heldout, vocabulary)
        self.config = run.shape.build(store.vocab_size)
        run.check_phases(self.config)
        self._fabric = make_fabric(run.machine, hardware)
        self.objective = OBJECTIVES[run.recipe.sentence_objective]
        self._report = Report(run, self.objective, status, store.vocab_size)
        self.module = self.objective.build(self.config)
        initialize(self.module, run.seed, self.config.initializer_range, run.recipe.start)
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
            trainer.train()
            step, num_tokens = trainer.step, trainer.num_tokens
        else:
            self._report.timing(0.0, 0, 0.0)
        weights = gathered(self.module.state_dict())
        if self._fabric.is_global_zero:
            trained = self.objective.build(self.config)
            trained.load_state_dict(weights)
            heads: dict[str, Any] = self.objective.published_heads(trained)
            save_encoder(trained.encoder, run.run_dir / "encoder", run.tokenizer_dir, **heads)
        self._report.result(step, num_tokens)
        self._fabric.barrier()

    def make_trainer(self) -> Trainer:
        """Make the trainer, and restore the newest checkpoint into it."""
        run, recipe, fabric, where, report = self.run, self._recipe, self._fabric, self._hardware, self._report
        checkpointing = Checkpointing(
            Checkpoints(run.run_dir / "checkpoints", recipe.checkpoints_kept),
            self._identity,
            self._check,
            report.say,
            every_steps=recipe.checkpoint_every_steps,
            after_save=self._after_save,
        )
        found = checkpointing.newest()
        self._kernel = kernel_of_run(run, self.config, where, self._compiled, found, fabric, report.say)
        metrics = self.objective.metrics
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
        self._monitor = monitor
        callbacks: list[Callback] = [
            SkipSpikes(recipe.skip_spikes_above, fabric.device),
            monitor,
            LossLogger(metrics, recipe.log_every_steps, self._log),
            report,
        ]
        if self._validation.is_on:
            callbacks.append(EverySteps(recipe.validate_every_steps, self._validate))
        if (probes := self._probes) is not None:
            probe = lambda trainer: report.probes(trainer.step, probes.run(self.module.encoder))  # noqa: E731
            callbacks.append(EverySteps(recipe.probes.every_steps, probe))
        callbacks += [StatusWriter(self._status), _PhaseLengths(self._phases), checkpointing]
        cpu_bf16 = (where.device, where.strategy, where.precision) == ("cpu", "single", "bf16")
        trainer = Trainer(
            fabric,
            self.module,
            loader,
            lambda module: make_optimizer(module, recipe.optimizer, 0.0, recipe.weight_decay, recipe.betas, recipe.eps),
            self._phases,
            callbacks,
            max_grad_norm=recipe.max_grad_norm,
            kernel=self._kernel,
            master_weights=cpu_bf16 and not self._compiled,
            tied=self.module.encoder.embeddings.token.weight,
            should_stop=self._should_stop,
        )
        if checkpointing.resume(trainer, found):
            assert found is not None
            trainer.seconds, joules = fabric.broadcast(report.noted())  # only rank 0 writes them
            monitor.resume(joules)
            report.say(f"resuming from {found.path.name}")
        return trainer

    def _log(self, trainer: Trainer, interval: Interval, result: StepResult) -> None:
        means = interval.means(self.objective.metrics)
        self._report.interval(trainer.step, means, interval, result, self._monitor.read())

    def _validate(self, trainer: Trainer) -> None:
        # The compiled module is compiled for training; a sharded one has to be called to gather its parameters.
        forward = self.module.forward if self._compiled else self.module
        phase, fabric = self._phases.position(trainer.step - 1).phase, trainer.fabric
        sums, counts = self._validation.run(self.module, forward, phase, fabric.global_rank, fabric.world_size)
        counts.totals = trainer.all_ranks(sums)
        self._report.validation(trainer.step, counts.means(self.objective.metrics))

    def _after_save(self, trainer: Trainer) -> None:
        self._monitor.at_checkpoint(trainer)
        self._report.timing(trainer.seconds, trainer.num_tokens, self._monitor.total_joules)

    def _same(self) -> dict[str, Any]:
        """Settings that a checkpoint must share with the run that resumes from it."""
        return {
            "tokens": self._store.fingerprint,
            "seed": self.run.seed,
            "encoder": self.config.model_dump(mode="json"),
            "recipe": self._recipe.model_dump(mode="json", exclude=_MAY_CHANGE),
        }

    def _environment(self) -> dict[str, Any]:
        """Conditions under which weights repeat to the last bit."""
        return {
            **versions(),
            "threads": torch.get_num_threads(),
            "device": self._hardware.device,
            "precision": self._hardware.precision,
            "compiled": self._compiled,
            "ranks": self.run.machine.world_size,
            "capability": torch.backends.cpu.get_cpu_capability(),
            "attention": self._kernel,
        }

    def _identity(self) -> Mapping[str, Any]:
        return {"identity": self._same(), "environment": self._environment()}

    def _check(self, found: Checkpoint) -> bool:
        """Refuse a checkpoint of another run, and report differences between the environments.

        Raises:
            UserError: naming the difference.
        """
        for name, value in self._same().items():
            if found.state["identity"].get(name) != value:
                raise UserError(
                    f"{found.path}: saved with another {name} than this run has; "
                    "start in an empty directory, or restore the former settings"
                )
        for name, value in self._environment().items():
            was = found.state["environment"].get(name)
            if was != value:
                self._report.say(f"{name} was {was} and is now {value}: the last bits of the weights may differ")
        return True


class _PhaseLengths(Callback):
    """Keeps the phases that a time budget has ended."""

    def __init__(self, phases: PhaseSchedule) -> None:
        self._phases = phases

    def state(self, trainer: Trainer) -> dict[str, Any]:
        """Return the steps of each phase."""
        return {"phase_lengths": self._phases.lengths}

    def restore(self, trainer: Trainer, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Restore the steps of each phase."""
        self._phases.lengths = state["phase_lengths"]
