"""Fine-tuning beside `transformers`: the same losses step for step, in fp32, with our dropout in both."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.parity import STEPS, Fixture, trajectory
from model.benchmarks.recipe import paper_recipe
from model.benchmarks.table import find


@pytest.mark.parametrize("name", ["sst2", "stsb", "swag", "squad1", "ner"])
def test_the_losses_of_fifty_steps(small_encoder: Path, small_data: Path, name: str) -> None:
    """Every place that drops is where theirs is, with its rate and scale: one that is not shows in the first step."""

    def losses(dropout: float) -> tuple[list[float], float]:
        changed = {"dropout": dropout, "batch_size": 8, "max_length": 48, "num_epochs": 4, "learning_rate": 1e-3}
        recipe = paper_recipe(find(name)).model_copy(update=changed)
        found = trajectory(Fixture(small_encoder, small_data, name, recipe))
        return found["ours"], found["largest_difference"]

    ours, apart = losses(0.1)
    print(f"{name}: {apart:.1e}")
    assert len(ours) == STEPS and apart <= 1e-4
    assert max(abs(one - other) for one, other in zip(ours, losses(0.0)[0], strict=True)) > 1e-3, "nothing was dropped"
