"""Batched encoding of texts without a head; results are in the order of the texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from model.common.errors import UserError
from model.config.hardware import Hardware, HardwareOptions, resolve
from model.encoder.encoder import Encoder
from model.formats.hf_folder import load_encoder
from model.heads.batches import FinetuneBatch, collate, evaluation_batches
from model.heads.features import Features, Ints, assemble, encode
from model.tokenizer.wordpiece import load_tokenizer, special_ids

_BATCH_TOKENS = {"cpu": 4096, "cuda": 65536}  # larger batches do not fit the cache of a core


def sequences_of(tokenizer: Tokenizer, texts: Sequence[str], max_length: int) -> Features:
    """Features of [CLS] text [SEP] for each text, truncated to `max_length` tokens, without targets."""
    pieces = encode(tokenizer, texts)
    starts, lengths = pieces.offsets[:-1], np.minimum(pieces.lengths, max_length - 2)
    sequences, boundaries = assemble(special_ids(tokenizer), (pieces, starts, lengths))
    return Features(sequences, boundaries, np.zeros(len(texts), dtype=np.int64))


def batches(features: Features, pad_id: int, device: torch.device) -> Iterator[tuple[Ints, FinetuneBatch]]:
    """Yield batches of similar length, the longest first, each with the numbers of its rows."""
    max_tokens = _BATCH_TOKENS.get(device.type, 4096)
    for rows in evaluation_batches(features.row_lengths, max_tokens):
        yield rows, collate(features, rows, pad_id).to(device)


def run(
    encoder: Encoder,
    features: Features,
    pad_id: int,
    bf16: bool,
    reduce: Callable[[Tensor, Tensor], Tensor],
    width: int,
) -> np.ndarray:
    """Encode all rows and return `reduce` of the hidden states of each, (rows, width) float32.

    Args:
        bf16: whether matrix products are computed in bf16.
        reduce: function of hidden states, (batch, length, hidden) fp32, and a mask of tokens, (batch, length) bool;
            returns (batch, width).
    """
    device = next(encoder.parameters()).device
    found = np.zeros((features.num_rows, width), dtype=np.float32)
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        for rows, batch in batches(features, pad_id, device):
            mask = batch.attention_mask
            hidden = encoder(batch.input_ids, batch.token_type_ids, mask).last_hidden_state.float()
            present = torch.ones_like(batch.input_ids, dtype=torch.bool) if mask is None else mask
            found[rows] = reduce(hidden, present).cpu().numpy()
    return found


def placed(machine: HardwareOptions | None) -> Hardware:
    """The device and precision of `machine`; sets the number of threads only if `machine` does."""
    hardware = resolve(machine or HardwareOptions())
    if machine is not None and machine.num_threads:
        torch.set_num_threads(hardware.num_threads)
    return hardware


def check_vocabulary(directory: Path, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise UserError if the tokenizer has more tokens than the encoder."""
    if tokenizer.get_vocab_size() > vocab_size:
        raise UserError(
            f"{directory}: the tokenizer has {tokenizer.get_vocab_size()} tokens, the encoder {vocab_size}; "
            "take both from one folder"
        )


def load(directory: Path, machine: HardwareOptions | None) -> tuple[Encoder, Tokenizer, bool]:
    """Load an encoder on its device, its tokenizer, and whether to compute in bf16.

    Raises:
        UserError: a file is missing or damaged, or the tokenizer does not fit the encoder.
    """
    encoder, tokenizer = load_encoder(directory), load_tokenizer(directory)
    check_vocabulary(directory, tokenizer, encoder.config.vocab_size)
    hardware = placed(machine)
    return encoder.to(hardware.device).eval(), tokenizer, hardware.precision == "bf16"
