"""Export an encoder or a fine-tuned model as a directory for `transformers`, with model card, digests and ONNX."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from model.common.digests import CARD, check_digests, write_digests
from model.common.errors import UserError
from model.common.files import atomic_directory, write_bytes

NAME = "model.onnx"
FILL_MASK = "fill_mask.onnx"
_LEFT_OUT = ("metrics.json", "checkpoint", "dev", "evaluation", ".gitignore")  # records of training and evaluation


Card = Callable[[Path], str]
"""Renders README.md for a directory with its digests."""


def copy_published(source: Path, target: Path) -> None:
    """Copy the model of a published directory, without the records of training and evaluation.

    Raises:
        UserError: a file of the source does not match its digests.json.
    """
    check_digests(source)
    for path in sorted(source.iterdir()):
        if path.name in _LEFT_OUT:
            continue
        if path.is_dir():
            shutil.copytree(path, target / path.name, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / path.name)


def export_folder(
    source: Path, target: Path, card: Card | None = None, onnx: bool = False, fill_mask: bool = False
) -> dict[str, float]:
    """Write `target`, completely or not at all.

    Args:
        card: renders README.md; by default that of the source is copied.
        onnx: also model.onnx.
        fill_mask: also fill_mask.onnx, the encoder with the masked language model's head.

    Returns:
        Largest difference between the outputs of each ONNX file and of the model.

    Raises:
        UserError: `target` is not empty, the source is damaged or has no such head, or ONNX's outputs differ.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: is not empty; choose a directory that does not exist")
    with atomic_directory(target) as partial:
        copy_published(source, partial)
        differences = {}
        if onnx:
            differences[NAME] = _write_onnx(partial)
        if fill_mask:
            differences[FILL_MASK] = _write_fill_mask(partial)
        write_digests(partial)
        if card is not None:
            write_bytes(partial / CARD, card(partial).encode())
    return differences


def _write_onnx(folder: Path) -> float:
    from model.config.hardware import HardwareOptions
    from model.formats.hf_folder import load_encoder
    from model.formats.onnx import write_onnx
    from model.inference.predictor import load_finetuned

    if (folder / "head.json").is_file():
        machine = HardwareOptions(accelerator="cpu", precision="fp32", num_threads=0)
        return write_onnx(load_finetuned(folder, machine=machine).model, folder / NAME)
    return write_onnx(load_encoder(folder), folder / NAME)


def _write_fill_mask(folder: Path) -> float:
    from model.formats.hf_folder import load_encoder, load_masked_head
    from model.formats.onnx import MaskedLanguageModel, write_onnx

    if (folder / "head.json").is_file():
        raise UserError("--fill-mask needs an encoder; a fine-tuned model has no masked language model head")
    encoder = load_encoder(folder)
    model = MaskedLanguageModel(encoder, load_masked_head(folder, encoder.config))
    return write_onnx(model, folder / FILL_MASK)
