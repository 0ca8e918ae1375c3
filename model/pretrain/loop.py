"""The pre-training loop. Lightning's Fabric runs device, strategy and precision; what is seen when is a function."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch
from torch import Tensor

from model.common.errors import Paused
from model.common.status import Status
from model.config.hardware import Hardware, is_compiled
from model.config.pretrain_run import PretrainRun
from model.data.loader import PretrainLoader, StepData
from model.data.token_store import TokenStore
from model.data.unpadding import unpadding
from model.encoder.flops import planned_seconds
from model.encoder.init import initialize
from model.engine.attention_autotune import kernel_of_run
from model.engine.checkpoint import Checkpoint, Checkpoints, optimizer_moments, restore_moments
from model.engine.distributed import make_fabric
from model.engine.speed_monitor import Meter
from model.formats.hf_folder import save_encoder
from model.objectives.pretraining_model import NUM_SUMS, PretrainingModule
from model.ops.forward_context import ForwardContext
from model.optim.master_weights import MasterWeights
from model.optim.optimizers import make_optimizer
from model.optim.sharding import gathered, own_part, whole
from model.optim.skip_step import SkipStep
from model.pretrain.probes import Probes
from model.pretrain.report import Report, Tally
from model.pretrain.resume_check import Identity
from model.pretrain.validation import Validation
from model.tokenizer.wordpiece import Vocabulary

_STEPS_BETWEEN_VOTES = {"cpu": 1, "cuda": 10}  # on a GPU every question waits for it to come to an end of its work


class Trainer:
    """Trains one encoder from its newest checkpoint, or from the start, to its end.

    Args:
        run: the job.
        status: where rank 0 says what it does; None on the other ranks.
        hardware: what it computes on.
        store: the training part of the tokens.
        heldout: the held-out part.
        vocabulary: ids of the special tokens, and what is a word.
        probes: asked on the first rank while it trains; None for none.
        should_stop: asked after every step; when true, training saves and raises Paused.
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
        self.run, self.recipe = run, run.recipe
        self.config = run.shape.build(store.vocab_size)
        run.check_phases(self.config)
        self._should_stop = should_stop
        self.fabric = make_fabric(run, hardware)
        rank, num_ranks = self.fabric.global_rank, self.fabric.world_size
        self.report = Report(run, status, store.vocab_size)
        self.module = PretrainingModule(self.config, self.recipe.sentence_objective != "none")
        initialize(self.module, run.seed, self.config.initializer_range, run.recipe.start)
        self.checkpoints = Checkpoints(run.run_dir / "checkpoints", run.recipe.checkpoints_kept)
        num_dropouts = self.module.encoder.num_dropouts
        self.compiled = is_compiled(run.machine, hardware, planned_seconds(self.config, run.recipe, hardware))
        padding = functools.partial(unpadding, hardware, self.compiled)
        self.loader = PretrainLoader(run.recipe, store, vocabulary, run.seed, num_dropouts, rank, num_ranks, padding)
        self.phase_schedule = self.loader.phase_schedule
        self.validation = Validation(run.recipe, heldout, vocabulary)
        self.probes = probes
        self.step, self.num_tokens, self.seconds = 0, 0, 0.0
        self.joules: float | None = 0.0
        """Of all devices until the last checkpoint; None where one does not tell."""
        self._joules_before: float | None = 0.0  # of earlier processes
        self._hardware = hardware
        self._tally = Tally()
        self._identity = Identity(run, self.config, store.fingerprint, hardware, self.compiled)

    def train(self) -> None:
        """Train to the end and leave encoder/ and result.json.

        Raises:
            UserError: the newest checkpoint is of other data, another shape or another recipe.
            Hopeless: no step can be taken any more, or the loss is where no good end is to be expected.
            Paused: asked to stop; the state is saved.
        """
        run = self.run
        if run.recipe.phases:
            found = self.checkpoints.newest(self.report.say)
            self._identity.kernel = kernel_of_run(
                run, self.config, self._hardware, self.compiled, found, self.fabric, self.report.say
            )
            self._set_up()
            if found is not None:
                self._restore(found)
            self.report.at_step(self.step)
            self._train_steps()
        self.report.timing(self.seconds, self.num_tokens, self.joules)
        weights = gathered(self.module.state_dict())
        if self.fabric.is_global_zero:
            trained = PretrainingModule(self.config)
            trained.load_state_dict(weights)
            to, tokenizer = run.run_dir / "encoder", run.tokenizer_dir
            save_encoder(trained.encoder, to, tokenizer, masked=trained.masked, next_sentence=trained.next_sentence)
        self.report.result(self.step, self.num_tokens)
        self.fabric.barrier()

    def _set_up(self) -> None:
        recipe, device = self.recipe, self.fabric.device
        if self.compiled:
            # A shape for each number of tokens that comes, and of each phase; beyond the limit code would run eager.
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
            self.module.compile(dynamic=False)
        self._model = self.fabric.setup_module(self.module)
        self.optimizer = make_optimizer(
            self.module, recipe.optimizer, 0.0, recipe.weight_decay, recipe.betas, recipe.eps
        )
        optimizer = self.fabric.setup_optimizers(self.optimizer)
        assert not isinstance(optimizer, tuple)
        self._optimizer = optimizer
        where = self._hardware
        plain = (where.device, where.strategy, where.precision) == ("cpu", "single", "bf16") and not self.compiled
        self._master_weights = MasterWeights(self.module, self.module.output_matrix, self.optimizer) if plain else None
        copies = None if self._master_weights is None else self._master_weights.copies
        self._context = ForwardContext(kernel=self._identity.kernel, low_precision=copies)
        self.guard = SkipStep(recipe.skip_spikes_above, device)
        self._sums = torch.zeros(NUM_SUMS + 3, dtype=torch.float64, device=device)
        self._meter = Meter(self.config, device, self._hardware.precision, self.fabric.world_size)

    def _train_steps(self) -> None:
        recipe = self.recipe
        started, earlier = time.perf_counter(), self.seconds
        self._meter.read()
        self.module.train()
        if self._master_weights is not None:
            self._master_weights.refresh()
        stopping, agreed = False, self.seconds  # the time that all ranks have been told
        self.phase_schedule.fit(self.step, agreed)
        data = self._prepare()
        while data is not None:
            norm, rate = self._optimise(data, agreed)
            self._tally.num_steps += 1
            self.num_tokens += data.counts.num_tokens
            self.step += 1
            before, done = time.perf_counter(), data
            self.phase_schedule.fit(self.step, agreed)
            data = self._prepare()  # on a GPU, while it still computes the step
            self._meter.add(done.counts, time.perf_counter() - before)
            is_last = data is None
            if self.step % recipe.log_every_steps == 0 or is_last:
                self.report.interval(self.step, self._close_tally(), rate, float(norm), self._meter.read())
            if self.validation.is_on and (self.step % recipe.validate_every_steps == 0 or is_last):
                before = time.perf_counter()
                self._validate()
                self._meter.leave_out(time.perf_counter() - before)
            if self.probes is not None and (self.step % recipe.probes.every_steps == 0 or is_last):
                before = time.perf_counter()
                self.report.probes(self.step, self.probes.run(self.module.encoder))
                self._meter.leave_out(time.perf_counter() - before)
            self.report.at_step(self.step)
            self.seconds = earlier + time.perf_counter() - started
            if not is_last and self.step % _STEPS_BETWEEN_VOTES[self.fabric.device.type] == 0:
                stopping, agreed = self._agree()
            if stopping or is_last or self.step % recipe.checkpoint_every_steps == 0:
                self._save()
            if stopping:
                raise Paused(
                    f"{self.run.name} is to be continued at step {self.step:,} of {self.phase_schedule.num_steps:,}"
                )

    def _optimise(self, data: StepData, seconds: float) -> tuple[Tensor, float]:
        """One optimiser step; gives the gradient's norm before clipping, on the device, and the learning rate."""
        recipe = self.recipe
        if self.phase_schedule.restarts(self.step):
            self.optimizer.state.clear()
        rate = self.phase_schedule.learning_rate(self.step, seconds)
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
                loss, sums = self._model(batch, weights, self._context)
                self.fabric.backward(loss)
            if self._master_weights is not None:
                self._master_weights.collect_gradients(only_pass=len(data.parts) == 1)
            step_sums += sums
        norm = self._clip(recipe.max_grad_norm)
        skip = self.guard.judge(norm)
        self.optimizer.skip = skip
        counted = torch.cat([step_sums, told.to(self.fabric.device, non_blocking=True)])
        passed_over = torch.zeros_like(counted)
        passed_over[-1] = 1 / ranks
        self._sums += torch.where(skip > 0, passed_over, counted)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm, rate

    def _clip(self, max_norm: float) -> Tensor:
        """Scale the gradients to `max_norm` at most; gives their norm before that."""
        if self._master_weights is not None:
            return self._master_weights.clip(max_norm)
        norm = self.fabric.clip_gradients(self._model, self._optimizer, max_norm=max_norm, error_if_nonfinite=False)
        assert isinstance(norm, Tensor)
        return whole(norm)

    def _prepare(self) -> StepData | None:
        """The data of the step that comes next, on the device; None after the last one."""
        if self.step >= self.phase_schedule.num_steps:
            return None
        data = self.loader.at(self.step)
        return data if self.fabric.device.type == "cpu" else data.to(self.fabric.device)

    def _drain(self) -> None:
        """Move the sums of all ranks from the device into the tally."""
        self._tally.add_totals(self._of_all_ranks(self._sums))
        self._sums = torch.zeros_like(self._sums)

    def _close_tally(self) -> Tally:
        self._drain()
        tally, self._tally = self._tally, Tally()
        return tally

    def _validate(self) -> None:
        phase = self.phase_schedule.position(self.step - 1).phase
        # What was compiled was compiled for training; what is sharded has to be called.
        forward = self.module.forward if self.compiled else self.module
        sums, tally = self.validation.run(self.module, forward, phase, self.fabric.global_rank, self.fabric.world_size)
        tally.totals = self._of_all_ranks(sums)
        self.report.validation(self.step, tally.means(self.recipe.sentence_objective))

    def _agree(self) -> tuple[bool, float]:
        """Whether any rank has been asked to stop, and the first one's seconds: the same answer on every rank."""
        asked = self._should_stop()
        if self.fabric.world_size == 1:
            return asked, self.seconds
        seconds = self.seconds if self.fabric.is_global_zero else 0.0
        votes, seconds = self._of_all_ranks(
            torch.tensor([float(asked), seconds], dtype=torch.float64, device=self.fabric.device)
        )
        return votes > 0, seconds

    def _of_all_ranks(self, numbers: Tensor) -> list[float]:
        """The sums over ranks of a vector on the device."""
        sums = self.fabric.all_reduce(numbers, reduce_op="sum")
        assert isinstance(sums, Tensor)
        return sums.tolist()

    def _save(self) -> None:
        self._drain()
        spent = self._meter.joules_of_all(self.fabric, self.run.machine.num_nodes)
        self.joules = None if spent is None or self._joules_before is None else self._joules_before + spent
        weights = gathered(self.module.state_dict())
        moments = gathered(optimizer_moments(self.module, self.optimizer))
        if not self.fabric.is_global_zero:
            return
        state = {
            **self._identity.state(),
            "step": self.step,
            "phase_lengths": self.phase_schedule.lengths,
            "num_tokens": self.num_tokens,
            "tally": vars(self._tally),
            "guard": self.guard.state(),
            "curve": self.report.curve,
            "heldout": self.report.heldout,
        }
        self.checkpoints.save(self.step, state, weights, moments)
        self.report.timing(self.seconds, self.num_tokens, self.joules)

    def _restore(self, found: Checkpoint) -> None:
        state = found.state
        self._identity.check(found, self.report.say)
        with torch.no_grad():
            for name, tensor in self.module.state_dict().items():
                tensor.copy_(own_part(found.weights[name], tensor))
        restore_moments(self.module, self.optimizer, found.moments)
        self.step, self.num_tokens = state["step"], state["num_tokens"]
        self.phase_schedule.lengths = state["phase_lengths"]
        self._tally = Tally(**state["tally"])
        self.guard.restore(state["guard"])
        self.report.curve, self.report.heldout = state["curve"], state["heldout"]
        self.seconds, self.joules = self.fabric.broadcast(self.report.noted())  # rank 0 alone notes them
        self._joules_before = self.joules
        self.report.say(f"going on from {found.path.name}")
