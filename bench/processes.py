"""Run measurements in separate processes, and write the random token store that they train on."""

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
from model.data.token_store import HELDOUT, TRAIN, TokenStoreWriter
from model.tokenizer.wordpiece import SPECIAL_TOKENS, make_tokenizer, save_tokenizer, tokenizer_digest
from tasks.project.environment import TUNED_ALLOCATOR

VOCABULARY = 30_522
THREADS = os.cpu_count() or 1
INSTALLED: dict[str, str] = {}  # glibc's default allocator
TUNED = TUNED_ALLOCATOR


def shape_of(preset: str) -> dict[str, Any]:
    """Return the configuration of a preset with BERT's vocabulary size, under the keys of BertConfig."""
    return EncoderConfig.parse({"vocab_size": VOCABULARY, **PRESETS[preset]}, preset).model_dump()


def ask(module: str, *arguments: str, task: dict[str, Any], allocator: Mapping[str, str] = TUNED) -> dict[str, Any]:
    """Run `python -m module arguments JSON` with an allocator, and parse the last line of its output as JSON.

    Raises:
        RuntimeError: the process failed; the message has its standard error.
    """
    command = [sys.executable, "-m", module, *arguments, json.dumps(task)]
    ours = (*TUNED, *WAITING)  # variables that may be set for this process
    environment = {name: value for name, value in os.environ.items() if name not in ours} | dict(allocator)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[2:4])}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def random_text(folder: Path) -> None:
    """Write documents of random tokens to folder/tokens, and a tokenizer with BERT's vocabulary size to
    folder/tokenizer."""
    words = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(VOCABULARY - len(SPECIAL_TOKENS)))]
    tokenizer = make_tokenizer(words)
    save_tokenizer(tokenizer, folder / "tokenizer")
    writer = TokenStoreWriter(folder / "tokens", VOCABULARY, tokenizer_digest=tokenizer_digest(tokenizer))
    generator = np.random.default_rng(0)
    for number in range(400):
        document = [generator.integers(5, VOCABULARY, 20) for _ in range(100)]
        writer.add_document(document, HELDOUT if number < 10 else TRAIN)
    writer.close()
