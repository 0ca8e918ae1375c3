"""Measurements in processes of their own, and the token store that they train on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model.config.encoder import PRESETS, EncoderConfig
from model.config.hardware import WAITING
from model.data.token_store import TokenStoreWriter
from model.tokenizer.wordpiece import SPECIAL_TOKENS, make_tokenizer, save_tokenizer, tokenizer_digest
from tasks.project.environment import TUNED_ALLOCATOR

VOCABULARY = 30_522
THREADS = os.cpu_count() or 1
INSTALLED: dict[str, str] = {}  # the allocator as glibc has it
TUNED = TUNED_ALLOCATOR


def shape_of(preset: str) -> dict[str, Any]:
    """The whole configuration of a preset with BERT's vocabulary, under the names that both sides read."""
    return EncoderConfig.parse({"vocab_size": VOCABULARY, **PRESETS[preset]}, preset).model_dump()


def ask(module: str, *arguments: str, task: dict[str, Any], allocator: Mapping[str, str] = TUNED) -> dict[str, Any]:
    """Run `python -m module arguments JSON` under an allocator; the JSON of its last line.

    Raises:
        RuntimeError: with what it wrote to standard error, when it fails.
    """
    command = [sys.executable, "-m", module, *arguments, json.dumps(task)]
    ours = (*TUNED, *WAITING)  # what this process may have been given for itself
    environment = {name: value for name, value in os.environ.items() if name not in ours} | dict(allocator)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[2:4])}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def random_text(folder: Path) -> None:
    """folder/tokens and folder/tokenizer: documents of random tokens of a vocabulary of BERT's size."""
    words = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(VOCABULARY - len(SPECIAL_TOKENS)))]
    tokenizer = make_tokenizer(words)
    save_tokenizer(tokenizer, folder / "tokenizer")
    writer = TokenStoreWriter(folder / "tokens", VOCABULARY, tokenizer_digest=tokenizer_digest(tokenizer))
    generator = np.random.default_rng(0)
    for number in range(400):
        document = [generator.integers(5, VOCABULARY, 20) for _ in range(100)]
        writer.add_document(document, heldout=number < 10)
    writer.close()
