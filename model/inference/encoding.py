"""Batched encoding of a stream of texts, window by window. Results are in the order of the texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import torch
from tokenizers import Tokenizer

from model.common.errors import UserError
from model.config.hardware import Hardware, HardwareOptions, resolve
from model.encoder.encoder import Encoder
from model.formats.hf_folder import load_encoder
from model.heads.batches import FinetuneBatch, collate, evaluation_batches
from model.heads.features import Features, Ints
from model.tokenizer.wordpiece import load_tokenizer

Item = TypeVar("Item")

WINDOW_ROWS = 16_384
"""Rows that are batched together; sorted by length, they need hardly any padding."""
WINDOW_CHARACTERS = 1 << 25
"""Characters after which a window of long rows ends, to limit memory."""
_BATCH_TOKENS = {"cpu": 4096, "cuda": 65536}  # larger batches do not fit into a core's cache


def windowed(
    items: Iterable[Item], size_of: Callable[[Item], int], max_rows: int = WINDOW_ROWS
) -> Iterator[list[Item]]:
    """Split a stream into lists that are sorted by length and batched, so that memory stays bounded.

    Yields lists of at most `max_rows` items, in order; `size_of` returns the characters of an item.
    """
    window: list[Item] = []
    characters = 0
    for item in items:
        window.append(item)
        characters += size_of(item)
        if len(window) >= max_rows or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def batches(features: Features, pad_id: int, device: torch.device) -> Iterator[tuple[Ints, FinetuneBatch]]:
    """Yield batches of similar length, longest first, each with its row numbers."""
    max_tokens = _BATCH_TOKENS.get(device.type, 4096)
    for rows in evaluation_batches(features.row_lengths, max_tokens):
        yield rows, collate(features, rows, pad_id).to(device)


def load_tokenizer_for(directory: Path, vocab_size: int, machine: HardwareOptions | None) -> tuple[Tokenizer, Hardware]:
    """Load a tokenizer and resolve the device and precision; sets the number of threads only if `machine` does.

    Raises:
        UserError: the tokenizer is missing or damaged, or has more tokens than the encoder.
    """
    tokenizer = load_tokenizer(directory)
    num_ids = 1 + max(tokenizer.get_vocab().values())
    if num_ids > vocab_size:
        raise UserError(
            f"{directory}: the tokenizer has {num_ids} tokens, the encoder {vocab_size}; use both from the same folder"
        )
    hardware = resolve(machine or HardwareOptions())
    if machine is not None and machine.num_threads:
        torch.set_num_threads(hardware.num_threads)
    return tokenizer, hardware


def load(directory: Path, machine: HardwareOptions | None) -> tuple[Encoder, Tokenizer, bool]:
    """Load an encoder on its device and its tokenizer, and decide whether to compute in bf16.

    Raises:
        UserError: a file is missing or damaged, or the tokenizer does not fit the encoder.
    """
    encoder = load_encoder(directory)
    tokenizer, hardware = load_tokenizer_for(directory, encoder.config.vocab_size, machine)
    return encoder.to(hardware.device).eval(), tokenizer, hardware.precision == "bf16"
