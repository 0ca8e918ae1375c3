"""Checkpoints: whole or not there, and never believed when damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from model.common.files import json_bytes
from model.engine.checkpoint import Checkpoints, Damaged, load_checkpoint, optimizer_moments, restore_moments
from model.optim.optimizers import make_optimizer


def save(checkpoints: Checkpoints, step: int) -> Path:
    return checkpoints.save(
        step,
        json_bytes({"step": step}),
        {"w": torch.full((3,), float(step))},
        {"exp_avg.w": torch.full((3,), step / 2)},
    )


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    found = load_checkpoint(save(Checkpoints(tmp_path, 2), 7))
    assert found.state == {"step": 7}
    assert found.weights["w"].tolist() == [7.0] * 3 and found.moments["exp_avg.w"].tolist() == [3.5] * 3


def test_the_newest_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 2)
    for step in (5, 10, 15):
        save(checkpoints, step)
    assert [path.name for path in checkpoints.paths()] == ["step-00000015", "step-00000010"]
    assert len(list(tmp_path.iterdir())) == 2  # nothing half-written stays


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "digests.json"])
@pytest.mark.parametrize("harm", ["truncate", "flip", "remove"])
def test_a_damaged_one_is_refused_by_name_and_the_one_before_is_used(tmp_path: Path, name: str, harm: str) -> None:
    checkpoints = Checkpoints(tmp_path, 2)
    save(checkpoints, 5)
    victim = save(checkpoints, 10) / name
    content = victim.read_bytes()
    if harm == "truncate":
        victim.write_bytes(content[: len(content) // 2])
    elif harm == "flip":
        middle = len(content) // 2
        victim.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        victim.unlink()
    with pytest.raises(Damaged, match="step-00000010"):
        load_checkpoint(victim.parent)
    said: list[str] = []
    found = checkpoints.newest(said.append)
    assert found is not None and found.state["step"] == 5
    assert len(said) == 1 and "step-00000010" in said[0] and "refused" in said[0]
    save(checkpoints, 10)  # the next one may take its place
    again = checkpoints.newest(said.append)
    assert again is not None and again.state["step"] == 10


def test_a_kill_while_saving_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, 2)
    save(checkpoints, 5)

    def killed(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            save(checkpoints, 10)
    found = checkpoints.newest(print)
    assert found is not None and found.state["step"] == 5
    save(checkpoints, 10)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-00000005", "step-00000010"]


def test_none_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "missing", 2).newest(print) is None


def test_moments_go_back_to_their_parameters() -> None:
    def trained() -> tuple[nn.Linear, torch.optim.Optimizer]:
        layer = nn.Linear(3, 2)
        optimizer = make_optimizer(layer, "adamw", 0.1)
        layer(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return layer, optimizer

    layer, optimizer = trained()
    other = nn.Linear(3, 2)
    fresh = make_optimizer(other, "adamw", 0.1)
    restore_moments(other, fresh, optimizer_moments(layer, optimizer))
    for parameter, copy in zip(layer.parameters(), other.parameters()):
        for moment, value in optimizer.state[parameter].items():
            assert torch.equal(fresh.state[copy][moment], value)
