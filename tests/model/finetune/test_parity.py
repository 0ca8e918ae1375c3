"""Fine-tuning beside `transformers`: the same losses step for step, in fp32, with our dropout in both and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.parity import STEPS, Fixture, trajectory
from model.benchmarks.table import find, paper_recipe


@pytest.mark.parametrize("name", ["sst2", "stsb", "swag", "squad1", "ner"])
def test_the_losses_of_fifty_steps(small_encoder: Path, small_data: Path, name: str) -> None:
    """Every place that drops is where theirs is, with its rate and scale: one that is not shows in the first step."""

    def losses(dropout: float) -> list[float]:
        changed = {"dropout": dropout, "batch_size": 8, "max_length": 48, "num_epochs": 4, "learning_rate": 1e-3}
        recipe = paper_recipe(find(name)).model_copy(update=changed)
        found = trajectory(Fixture(small_encoder, small_data, name, recipe))
        print(f"{name}, dropout {dropout:g}: {found['largest_difference']:.1e}")
        assert len(found["ours"]) == STEPS and found["largest_difference"] <= 1e-4
        return list(found["ours"])

    pairs = zip(losses(0.1), losses(0.0), strict=True)
    assert max(abs(one - other) for one, other in pairs) > 1e-3, "nothing was dropped"
