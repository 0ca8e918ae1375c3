"""The pre-training loop. Lightning's Fabric runs device, strategy and precision; what is seen when is a function."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch import Tensor

from model.checkpoint import Checkpoint, Checkpoints, optimizer_moments, restore_moments
from model.curriculum import Curriculum, StepData
from model.errors import Paused, UserError
from model.feeding import Batch
from model.flops import planned_seconds
from model.initialisation import initialise
from model.machine import Placement, is_compiled
from model.module import NUM_SUMS, PretrainingModule
from model.optimizers import make_optimizer
from model.pretrain_report import Report, Tally, versions
from model.pretrain_run import PretrainRun
from model.status import Status
from model.step_guard import StepGuard
from model.token_store import TokenStore
from model.validation import Validation
from model.vocabulary import Vocabulary
from model.weights import save_encoder

# What may change between the process that saved a checkpoint and the one that goes on from it.
_KEEPING = {"checkpoint_every_steps", "checkpoints_kept", "pause_after_seconds", "accumulate"}


def make_fabric(run: PretrainRun, placement: Placement) -> Fabric:
    """Lightning's Fabric for this run, launched.

    Raises:
        UserError: several ranks are asked for and this process is not one of them.
    """
    machine = run.machine
    if machine.world_size > 1 and "LOCAL_RANK" not in os.environ:
        raise UserError(
            f"machine: {machine.world_size} ranks are asked for; start the process under torchrun "
            f"(--nproc-per-node={machine.num_devices})"
        )
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces what RUN.json says
    fabric = Fabric(
        accelerator="cuda" if placement.accelerator == "gpu" else "cpu",
        devices=machine.num_devices,
        num_nodes=machine.num_nodes,
        strategy=DDPStrategy(gradient_as_bucket_view=True) if placement.strategy == "ddp" else "auto",
        precision="bf16-mixed" if placement.precision == "bf16" else "32-true",
    )
    fabric.launch()
    return fabric


class Trainer:
    """Trains one encoder from its newest checkpoint, or from the start, to its end.

    Args:
        run: the job.
        status: where rank 0 says what it does; None on the other ranks.
        placement: what it computes on.
        store: the training part of the tokens.
        heldout: the held-out part.
        vocabulary: ids of the special tokens, and what is a word.
        should_stop: asked after every step; when true, training saves and raises Paused.
    """

    def __init__(
        self,
        run: PretrainRun,
        status: Status | None,
        placement: Placement,
        store: TokenStore,
        heldout: TokenStore,
        vocabulary: Vocabulary,
        should_stop: Callable[[], bool],
    ) -> None:
        self.run, self.recipe = run, run.recipe
        self.config = run.shape.build(store.vocab_size)
        run.check_phases(self.config)
        self._should_stop = should_stop
        self.fabric = make_fabric(run, placement)
        rank, num_ranks = self.fabric.global_rank, self.fabric.world_size
        self.report = Report(run, status)
        self.module = PretrainingModule(self.config, self.recipe.sentence_objective != "none")
        initialise(self.module, run.seed, self.config.initializer_range, self.recipe.start)
        recipe = self.recipe
        self.optimizer = make_optimizer(
            self.module, recipe.optimizer, 0.0, recipe.weight_decay, recipe.betas, recipe.eps
        )
        self.checkpoints = Checkpoints(run.run_dir / "checkpoints", recipe.checkpoints_kept)
        self.curriculum = Curriculum(
            recipe, store, vocabulary, run.seed, self.module.encoder.num_sites, rank, num_ranks
        )
        self.validation = Validation(recipe, heldout, vocabulary)
        self.compiled = is_compiled(run.machine, placement, planned_seconds(self.config, recipe, placement))
        self.step, self.num_tokens = 0, 0
        self._tally = Tally()
        self._fingerprint = store.fingerprint
        self._environment = {
            **versions(),
            "threads": torch.get_num_threads(),
            "device": placement.device,
            "precision": placement.precision,
            "compiled": self.compiled,
            "ranks": num_ranks,
            "capability": torch.backends.cpu.get_cpu_capability(),
        }

    def train(self) -> None:
        """Train to the end and leave encoder/ and result.json.

        Raises:
            UserError: the newest checkpoint is of other data, another shape or another recipe.
            NonFinite: the loss is not a number.
            Paused: asked to stop; the state is saved.
        """
        if self.recipe.phases:
            if self.compiled:
                self.module.compile(dynamic=False)
            self._model, self._optimizer = self.fabric.setup(self.module, self.optimizer)
            self.guard = StepGuard(self.recipe.skip_spikes_above, self.fabric.device)
            self._sums = torch.zeros(NUM_SUMS + 3, dtype=torch.float64, device=self.fabric.device)
            found = self.checkpoints.newest(self.report.say)
            if found is not None:
                self._restore(found)
            self.report.at_step(self.step)
            self._train_steps()
        self.report.timing(self.report.seconds, self.num_tokens)
        if self.fabric.is_global_zero:
            save_encoder(
                self.module.encoder,
                self.run.run_dir / "encoder",
                self.run.tokenizer_dir,
                masked=self.module.masked,
                next_sentence=self.module.next_sentence,
            )
        self.report.result(self.num_tokens)
        self.fabric.barrier()

    def _train_steps(self) -> None:
        recipe = self.recipe
        started, earlier = time.perf_counter(), self.report.seconds
        interval_started, interval_tokens, waited = started, 0, 0.0
        self.module.train()
        data = self._prepare()
        while data is not None:
            norm, rate = self._optimise(data)
            self._tally.num_steps += 1
            self.num_tokens += data.counts.num_tokens
            interval_tokens += data.counts.num_tokens
            self.step += 1
            before = time.perf_counter()
            data = self._prepare()  # on a GPU, while it still computes the step
            waited += time.perf_counter() - before
            is_last = data is None
            if self.step % recipe.log_every_steps == 0 or is_last:
                tally = self._close_tally()
                seconds = time.perf_counter() - interval_started
                self.report.interval(self.step, tally, rate, float(norm), interval_tokens / seconds, waited / seconds)
                interval_started, interval_tokens, waited = time.perf_counter(), 0, 0.0
            if self.validation.is_on and (self.step % recipe.validate_every_steps == 0 or is_last):
                before = time.perf_counter()
                self._validate()
                interval_started += time.perf_counter() - before
            self.report.at_step(self.step)
            stopping = not is_last and self._agree_to_stop()
            if stopping or is_last or self.step % recipe.checkpoint_every_steps == 0:
                self._save(earlier + time.perf_counter() - started)
            if stopping:
                raise Paused(f"{self.run.name} is to be continued at step {self.step:,} of {recipe.num_steps:,}")

    def _optimise(self, data: StepData) -> tuple[Tensor, float]:
        """One optimiser step; gives the gradient's norm before clipping, on the device, and the learning rate."""
        recipe = self.recipe
        rate = self.curriculum.phase(self.step).learning_rate
        rate *= recipe.schedule.factor(self.step, recipe.num_steps, recipe.warmup_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # The strategy takes the mean over ranks: times their number, it is the sum that global counts divide.
        counts, ranks = data.counts, self.fabric.world_size
        weights = torch.tensor([ranks / counts.num_predictions, ranks / counts.num_sequences])
        weights = weights.to(self.fabric.device, non_blocking=True)
        told = torch.tensor([counts.num_predictions / ranks, counts.num_sequences / ranks, 0.0], dtype=torch.float64)
        step_sums = torch.zeros(NUM_SUMS, dtype=torch.float64, device=self.fabric.device)
        for index, batch in enumerate(data.parts):
            with self.fabric.no_backward_sync(self._model, enabled=index + 1 < len(data.parts)):
                loss, sums = self._model(*batch, weights)
                self.fabric.backward(loss)
            step_sums += sums
        norm = self.fabric.clip_gradients(
            self._model, self._optimizer, max_norm=recipe.max_grad_norm, error_if_nonfinite=False
        )
        assert isinstance(norm, Tensor)
        skip = self.guard.judge(norm)
        self.optimizer.skip = skip
        counted = torch.cat([step_sums, told.to(self.fabric.device, non_blocking=True)])
        passed_over = torch.zeros_like(counted)
        passed_over[-1] = 1 / ranks
        self._sums += torch.where(skip > 0, passed_over, counted)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm, rate

    def _prepare(self) -> StepData | None:
        """The data of the step that comes next, on the device; None after the last one."""
        if self.step >= self.recipe.num_steps:
            return None
        data = self.curriculum.at(self.step)
        if self.fabric.device.type == "cpu":
            return data
        parts = [
            Batch(*(tensor.pin_memory().to(self.fabric.device, non_blocking=True) for tensor in part))
            for part in data.parts
        ]
        return StepData(parts, data.counts)

    def _drain(self) -> None:
        """Move the sums of all ranks from the device into the tally."""
        totals = self.fabric.all_reduce(self._sums, reduce_op="sum")
        assert isinstance(totals, Tensor)
        self._tally.add_totals(totals.tolist())
        self._sums = torch.zeros_like(self._sums)

    def _close_tally(self) -> Tally:
        self._drain()
        tally, self._tally = self._tally, Tally()
        return tally

    def _validate(self) -> None:
        phase = self.curriculum.place(self.step - 1).phase
        sums, tally = self.validation.run(self.module, phase, self.fabric.global_rank, self.fabric.world_size)
        totals = self.fabric.all_reduce(sums, reduce_op="sum")
        assert isinstance(totals, Tensor)
        tally.totals = totals.tolist()
        self.report.validation(self.step, tally.means(self.recipe.sentence_objective))

    def _agree_to_stop(self) -> bool:
        """Whether any rank has been asked to stop; every rank gives the same answer at the same step."""
        asked = self._should_stop()
        if self.fabric.world_size == 1:
            return asked
        votes = self.fabric.all_reduce(torch.tensor(float(asked), device=self.fabric.device), reduce_op="sum")
        assert isinstance(votes, Tensor)
        return bool(votes.item())

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must share with the run that goes on from it."""
        return {
            "tokens": self._fingerprint,
            "seed": self.run.seed,
            "encoder": self.config.model_dump(mode="json"),
            "recipe": self.recipe.model_dump(mode="json", exclude=_KEEPING),
        }

    def _save(self, seconds: float) -> None:
        self._drain()
        if not self.fabric.is_global_zero:
            return
        state = {
            "identity": self._identity(),
            "environment": self._environment,
            "step": self.step,
            "num_tokens": self.num_tokens,
            "tally": vars(self._tally),
            "guard": self.guard.state(),
            "curve": self.report.curve,
            "heldout": self.report.heldout,
        }
        weights = {name: tensor.detach().cpu() for name, tensor in self.module.state_dict().items()}
        moments = optimizer_moments(self.module, self.optimizer)
        self.checkpoints.save(self.step, state, weights, {name: value.cpu() for name, value in moments.items()})
        self.report.timing(seconds, self.num_tokens)

    def _restore(self, found: Checkpoint) -> None:
        state = found.state
        for name, value in self._identity().items():
            if state["identity"].get(name) != value:
                raise UserError(
                    f"{found.path}: saved with another {name} than this run has; "
                    "start in an empty folder, or give the run what it had"
                )
        for name, value in self._environment.items():
            was = state["environment"].get(name)
            if was != value:
                self.report.say(f"{name} was {was} and is {value} now: the last bits of the weights may differ")
        self.module.load_state_dict(found.weights)
        restore_moments(self.module, self.optimizer, found.moments)
        self.step, self.num_tokens = state["step"], state["num_tokens"]
        self._tally = Tally(**state["tally"])
        self.guard.restore(state["guard"])
        self.report.curve, self.report.heldout = state["curve"], state["heldout"]
        self.report.say(f"going on from {found.path.name}")
