"""Training with bf16 copies of master weights, compared with torch's autocast, clipping and AdamW."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from model.config.encoder import EncoderShape
from model.data.collator import PretrainBatch
from model.encoder.init import initialize
from model.objectives.masked_lm import PretrainingModule
from model.ops.forward_context import ForwardContext
from model.optim.optimizers import MasterWeights, Optimizer, make_optimizer

VOCABULARY, BATCH, LENGTH, PREDICTIONS = 2000, 4, 32, 5


class Training:
    """A tiny encoder, its optimizer and, if asked for, bf16 copies of its weights."""

    def __init__(self, has_copies: bool, kind: str = "bert_adamw", rate: float = 1e-3) -> None:
        self.module = PretrainingModule(EncoderShape(preset="tiny", max_position_embeddings=32).build(VOCABULARY))
        initialize(self.module.train(), 3, 0.02)
        self.optimizer: Optimizer = make_optimizer(self.module, kind, rate)
        self.master_weights = (
            MasterWeights(self.module, self.module.output_matrix, self.optimizer) if has_copies else None
        )

    def backward(self, numbers: list[int]) -> None:
        """Gradients of the batches with these numbers."""
        for number in numbers:
            chance = torch.Generator().manual_seed(number)
            ids = torch.randint(5, VOCABULARY, (BATCH, LENGTH), generator=chance)
            places = torch.rand(BATCH, LENGTH - 1, generator=chance).argsort(1)[:, :PREDICTIONS].sort(1)[0] + 1
            positions = torch.cat([torch.zeros(BATCH, 1, dtype=torch.long), places], 1)
            labels, pairs = ids.gather(1, places), torch.randint(0, 2, (BATCH,), generator=chance)
            fixed = torch.full((BATCH,), LENGTH), positions, labels, pairs
            keys = torch.zeros(self.module.encoder.num_dropouts, BATCH, 2, dtype=torch.int32)
            weights = torch.tensor([0.05, 0.0, 0.25, 0.0])
            nothing = torch.zeros(BATCH, 0), torch.zeros(0), torch.zeros(0)  # neither packed nor without padding
            batch = PretrainBatch(ids, ids % 2, *fixed, keys, *nothing)
            context = ForwardContext(low_precision=self.master_weights.copies if self.master_weights else None)
            with torch.autocast("cpu", torch.bfloat16):
                loss, _ = self.module(batch, weights, context)
            loss.backward()
            if self.master_weights is not None:
                self.master_weights.collect_gradients(only_pass=len(numbers) == 1)

    def step(self, max_norm: float) -> Tensor:
        if self.master_weights is None:
            norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), max_norm)
        else:
            norm = self.master_weights.clip(max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.module.named_parameters()}

    def gradients(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self.module.named_parameters() if p.grad is not None}

    def whole_gradients(self) -> dict[str, Tensor]:
        """In fp32, with what look-ups add."""
        found = {}
        for name, p in self.module.named_parameters():
            if p.grad is not None:
                found[name] = p.grad.float().clone()
                if (
                    p in self.optimizer.low_precision
                    and (more := self.optimizer.low_precision[p].embedding_grad) is not None
                ):
                    found[name].add_(more)
        return found


@pytest.mark.parametrize("batches", [[1], [1, 2, 3]])
def test_gradients_are_autocasts_to_the_last_bit(batches: list[int]) -> None:
    ours, theirs = Training(True), Training(False)
    for training in (ours, theirs):
        training.backward(batches)
    found, expected = ours.whole_gradients(), theirs.gradients()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        if not name.endswith("token.weight"):
            assert torch.equal(found[name], gradient), name
        else:  # the sum of a look-up's gradients and a product's, in another order
            torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-8)
    matrix = ours.gradients()["encoder.layers.0.widen.weight"]
    assert matrix.dtype == (torch.bfloat16 if len(batches) == 1 else torch.float32)


@pytest.mark.parametrize("kind", ["bert_adamw", "adamw"])
@pytest.mark.parametrize("max_norm", [0.1, 1e6])
def test_a_step_is_torchs_but_for_its_rounding(kind: str, max_norm: float) -> None:
    ours, theirs = Training(True, kind), Training(False, kind)
    before = ours.weights()
    for training in (ours, theirs):
        training.backward([1])
    gradients = {name: gradient.float() for name, gradient in theirs.gradients().items()}
    torch.testing.assert_close(ours.step(max_norm), theirs.step(max_norm), rtol=1e-5, atol=0.0)
    for name, weight in theirs.weights().items():
        # Where a gradient is about as small as eps, the size of a step turns on its last bits.
        clear = gradients[name].abs() > 1e-3 * gradients[name].abs().max()
        found, expected = ours.weights()[name] - before[name], weight - before[name]
        torch.testing.assert_close(found[clear], expected[clear], rtol=1e-3, atol=1e-7)
        assert (expected != 0).any()
    assert ours.master_weights is not None
    for weight, copy in ours.optimizer.low_precision.items():
        assert torch.equal(copy.values, weight.bfloat16())


@pytest.mark.parametrize("kind", ["bert_adamw", "adamw"])
def test_a_group_may_hold_only_parameters_with_copies(kind: str) -> None:
    """Layer-wise learning rates make such groups."""
    whole, split = Training(True, kind), Training(True, kind)
    groups = [{**group, "params": [p]} for group in split.optimizer.param_groups for p in group["params"]]
    split.optimizer.param_groups[:] = groups
    for training in (whole, split):
        training.backward([1])
        training.step(1.0)
    for name, weight in whole.weights().items():
        assert torch.equal(split.weights()[name], weight)


def test_the_third_step_is_torchs_given_the_same_gradients() -> None:
    ours, theirs = Training(True, "adamw"), Training(False, "adamw")
    for number in range(3):
        ours.backward([number])
        gradients = ours.whole_gradients()
        for name, p in theirs.module.named_parameters():
            p.grad = gradients.get(name)
        ours.step(1.0)
        theirs.step(1.0)
    expected = theirs.weights()
    for name, weight in ours.weights().items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-5, atol=1e-6)


def test_a_step_that_is_passed_over_leaves_no_trace() -> None:
    training = Training(True, "adamw")
    training.backward([1])
    training.step(1.0)
    before, moments = training.weights(), {p: dict(s) for p, s in training.optimizer.state.items()}
    moments = {p: {name: value.clone() for name, value in s.items()} for p, s in moments.items()}
    copies = [copy.values.detach().clone() for copy in training.optimizer.low_precision.values()]
    training.backward([2])
    for gradient in training.gradients().values():
        gradient.fill_(float("nan"))
    training.optimizer.skip = torch.ones(())
    assert not training.step(1.0).isfinite()
    assert all(torch.equal(weight, before[name]) for name, weight in training.weights().items())
    for p, state in training.optimizer.state.items():
        assert all(torch.equal(value, moments[p][name]) for name, value in state.items())
    assert all(torch.equal(one, other.values) for one, other in zip(copies, training.optimizer.low_precision.values()))


def test_outside_of_training_the_matrices_themselves_are_taken() -> None:
    training = Training(True)
    training.backward([1])
    ids = torch.full((1, 8), 7)
    with torch.no_grad():
        before = training.module.encoder(ids).last_hidden_state
        training.module.encoder.layers[0].widen.weight.mul_(2)  # type: ignore[union-attr, operator]
        after = training.module.encoder(ids).last_hidden_state
    assert before.dtype == torch.float32 and not torch.equal(before, after)


def test_optimisers_of_fp32_gradients_have_no_copies() -> None:
    assert not Training(True, "lamb").optimizer.low_precision
    muon = Training(True, "muon")  # what its AdamW moves: the embedding and the head
    assert {weight.shape[0] for weight in muon.optimizer.low_precision} == {VOCABULARY, 128}
    muon.backward([1])
    before = muon.weights()
    muon.step(1.0)
    assert all(not torch.equal(weight, before[name]) for name, weight in muon.weights().items() if weight.ndim == 2)
