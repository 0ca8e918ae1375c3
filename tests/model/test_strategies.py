"""An encoder whose parts lie on two ranks learns what it learns on one, and goes on there."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from model.errors import UserError
from model.machine import Machine, place
from tests.model.pretraining import MakeRun, command, one_thread, result_of, train


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["bert_adamw", "lamb", "muon"])
def test_sharded_over_two_ranks_and_on_one_again(make_run: MakeRun, optimizer: str) -> None:
    one = make_run("one", optimizer=optimizer)
    train(one)
    two = make_run("two", optimizer=optimizer, machine={"num_devices": 2, "strategy": "sharded"})
    subprocess.run(command(two, num_ranks=2), check=True, timeout=300, env=one_thread())
    # Muon makes its update orthogonal in bf16, whose roundings differ with the order of the sums.
    tolerance = 2e-3 if optimizer == "muon" else 2e-5
    expected, found = result_of(one), result_of(two)
    for name in ("curve", "heldout"):
        for first, second in zip(expected[name], found[name], strict=True):
            assert second["mlm_loss"] == pytest.approx(first["mlm_loss"], rel=tolerance)
    assert found["num_tokens_seen"] == expected["num_tokens_seen"]
    shutil.rmtree(two.run_dir / "checkpoints" / "step-00000024")
    (two.run_dir / "result.json").unlink()
    train(make_run("two", optimizer=optimizer))
    assert result_of(two)["curve"][-1]["loss"] == pytest.approx(expected["curve"][-1]["loss"], rel=tolerance)


def test_a_strategy_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="several processes"):
        place(Machine(strategy="sharded"))
    with pytest.raises(UserError, match="say ddp"):
        place(Machine(strategy="single", num_devices=2))
