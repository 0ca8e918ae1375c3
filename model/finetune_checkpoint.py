"""Checkpoints of a long fine-tuning, so that one that was stopped or killed goes on where it was."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model.files import read_json, write_json

FOLDER = "checkpoints"


def save_checkpoint(
    run_dir: Path,
    state: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    best: dict[str, Tensor] | None,
) -> None:
    """Write checkpoints/step-XXXXXXXX and drop older ones. A kill at any moment leaves the last whole one.

    `state` is JSON with "step" and the job's "digest"; `best` the weights that were best on dev so far.
    """
    target = run_dir / FOLDER / f"step-{state['step']:08d}"
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(_owned(model.state_dict()), partial / "model.safetensors")
    save_file(_flat(optimizer), partial / "optimizer.safetensors")
    if best is not None:
        save_file(_owned(best), partial / "best.safetensors")
    write_json(partial / "state.json", {**state, "has_best": best is not None})
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    for other in (run_dir / FOLDER).iterdir():
        if other != target:
            shutil.rmtree(other, ignore_errors=True)


def load_checkpoint(
    run_dir: Path, digest: str, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Any], dict[str, Tensor] | None] | None:
    """Fill the model and the optimiser from the newest checkpoint of this job; returns its state and best
    weights.

    None when there is no checkpoint of this job, or none that is whole; a damaged one is named on standard
    output.
    """
    for folder in sorted((run_dir / FOLDER).glob("step-*"), reverse=True):
        try:
            state = read_json(folder / "state.json")
            if state["digest"] != digest:
                continue
            weights = load_file(folder / "model.safetensors")
            moments = load_file(folder / "optimizer.safetensors")
            best = load_file(folder / "best.safetensors") if state["has_best"] else None
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            print(f"{folder}: damaged ({error}); starting from an earlier state", flush=True)
            continue
        model.load_state_dict(weights)
        _restore(optimizer, moments)
        return state, best
    return None


def drop_checkpoints(run_dir: Path) -> None:
    """Remove all checkpoints of a job that has its result."""
    shutil.rmtree(run_dir / FOLDER, ignore_errors=True)


def _owned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _flat(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by the number of the parameter and the name of the state."""
    return {
        f"{number}.{name}": value.detach().cpu().contiguous()
        for number, parameter in enumerate(_parameters(optimizer))
        for name, value in optimizer.state[parameter].items()
    }


def _restore(optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]) -> None:
    parameters = _parameters(optimizer)
    for key, value in moments.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        # Adam's step count stays where torch puts it: on the parameter's device for the fused kernel.
        optimizer.state[parameter][name] = value.to(parameter.device)
