"""Masked-word prediction (the cloze test) with a pre-trained encoder.

from cloze import load_fill_mask

load_fill_mask("build/pretrain/pretrained").fill(["The cat sat on the [MASK]."], top=3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer

from model.benchmarks.requests import as_text
from model.common.errors import UserError
from model.config.hardware import HardwareOptions
from model.encoder.encoder import Encoder
from model.formats.hf_folder import load_masked_head
from model.heads.features import Features, Ragged
from model.inference import encoding
from model.objectives.masked_lm import MaskedLanguageHead
from model.ops.attention_kernels import AttentionMetadata
from model.ops.forward_context import ForwardContext
from model.tokenizer.wordpiece import PREFIX, special_ids

MASK = "[MASK]"
_DIGITS = 6


@dataclass(frozen=True)
class FillMask:
    """An encoder with a masked language modeling head."""

    encoder: Encoder
    head: MaskedLanguageHead
    tokenizer: Tokenizer
    bf16: bool = False

    def fill(
        self, texts: str | Sequence[str], top: int = 5, names: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Predict the best word pieces for each [MASK] of each text; a single string is one text.

        Several masks in a text are predicted independently, as in pre-training: the others stay masked.

        Returns:
            For each text `text`, `masks` (for each mask `start` and `end` in the text and `candidates`, the best
            first, with `token` and `score`, its probability), and `filled`, the text with the best of each.

        Raises:
            UserError: a text has no [MASK], is too long for the encoder or cannot be encoded; the message names the
                text as `names` does, or numbers it from 0.
        """
        texts = [texts] if isinstance(texts, str) else texts
        names = names or [f"text {number}" for number in range(len(texts))]
        for name, text in zip(names, texts):
            as_text(text, name)
        encodings = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        masks = [self._masks(name, one) for name, one in zip(names, encodings)]
        candidates = self._candidates(encodings, masks, min(top, self.encoder.config.vocab_size))
        return [
            _answer(text, [one.offsets[at] for at in places], found)
            for text, one, places, found in zip(texts, encodings, masks, candidates)
        ]

    def _masks(self, name: str, one: Encoding) -> list[int]:
        places = [at for at, piece in enumerate(one.ids) if piece == special_ids(self.tokenizer).mask]
        if not places:
            raise UserError(f"{name}: no {MASK}; put {MASK} in place of the word to predict")
        longest = self.encoder.config.max_position_embeddings
        if len(one.ids) + 2 > longest:
            raise UserError(f"{name}: {len(one.ids) + 2} tokens, more than the encoder's {longest}; shorten it")
        return places

    @torch.inference_mode()
    def _candidates(
        self, encodings: Sequence[Encoding], masks: Sequence[Sequence[int]], top: int
    ) -> list[list[list[dict[str, Any]]]]:
        special = special_ids(self.tokenizer)
        sequences = Ragged.of([[special.cls, *one.ids, special.sep] for one in encodings])
        features = Features(sequences, sequences.lengths, np.zeros(len(encodings), dtype=np.int64))
        device = self.head.bias.device
        found: list[list[list[dict[str, Any]]]] = [[] for _ in encodings]
        for rows, batch in encoding.batches(features, special.pad, device):
            most = max(len(masks[row]) for row in rows)
            positions = np.zeros((len(rows), 1 + most), dtype=np.int64)  # [CLS] comes first, and pads missing masks
            for place, row in enumerate(rows):
                positions[place, 1 : 1 + len(masks[row])] = np.array(masks[row]) + 1
            length = batch.input_ids.shape[1]
            queries = torch.from_numpy(positions + np.arange(0, len(rows) * length, length)[:, None]).to(device)
            attention = AttentionMetadata(len(rows), length, batch.attention_mask, query_indices=queries)
            with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
                hidden = self.encoder(
                    batch.input_ids, batch.token_type_ids, context=ForwardContext(attention=attention)
                ).last_hidden_state
            # The head runs in fp32, because candidates often tie in bf16.
            wanted = torch.from_numpy(np.argwhere(positions[:, 1:])).to(device)
            masked = hidden[wanted[:, 0], wanted[:, 1] + 1].float()
            logits = self.head(masked, self.encoder.embeddings.token.weight)
            probabilities = torch.softmax(logits[:, : self.encoder.config.vocab_size].float(), dim=-1)
            best = probabilities.topk(top)
            for mask, values, pieces in zip(wanted[:, 0].tolist(), best.values.tolist(), best.indices.tolist()):
                found[int(rows[mask])].append(
                    [
                        {"token": self.tokenizer.id_to_token(piece) or "", "score": round(value, _DIGITS)}
                        for piece, value in zip(pieces, values)
                    ]
                )
        return found


def load_fill_mask(directory: str | Path, *, machine: HardwareOptions | None = None) -> FillMask:
    """Load the encoder of a directory with its masked language modeling head.

    Raises:
        UserError: a file is missing or damaged, or the directory has no such head.
    """
    directory = Path(directory)
    encoder, tokenizer, bf16 = encoding.load(directory, machine)
    tokenizer.add_special_tokens([MASK])  # some tokenizer files do not declare it as a token
    masked = load_masked_head(directory, encoder.config)
    return FillMask(encoder, masked.to(next(encoder.parameters()).device), tokenizer, bf16)


def _answer(text: str, places: Sequence[tuple[int, int]], candidates: list[list[dict[str, Any]]]) -> dict[str, Any]:
    pairs = list(zip(places, candidates, strict=True))
    masks = [{"start": begin, "end": end, "candidates": found} for (begin, end), found in pairs]
    filled = text
    for (begin, end), found in reversed(pairs):
        piece = found[0]["token"]
        before = filled[:begin].rstrip() if piece.startswith(PREFIX) else filled[:begin]
        filled = before + piece.removeprefix(PREFIX) + filled[end:]
    return {"text": text, "filled": filled, "masks": masks}
