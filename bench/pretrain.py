"""A whole pre-training step (mini, batch 32, length 128, dropout, MLM and NSP) beside `transformers`, per peer setting.

Ours and the peer run in processes of their own that alternate, on random tokens of the same shape. *Installed* is the
peer with the allocator as glibc has it; *tuned* is the peer in the environment that our own processes get, in its best
of eager and compiled.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.environment import TUNED_ALLOCATOR

ROUNDS = 3
STEPS = 8
BATCH, LENGTH, VOCABULARY = 32, 128, 30_522

PEER = """
import json, statistics, sys, time, torch
from transformers import BertConfig, BertForPreTraining
steps, compiled = int(sys.argv[1]), sys.argv[2] == "compiled"
config = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
torch.manual_seed(0)
model = BertForPreTraining(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
forward = torch.compile(model) if compiled else model
ids = torch.randint(5, 30522, (32, 128)); labels = torch.where(torch.rand(32, 128) < 0.15, ids, -100)
types = torch.zeros_like(ids); types[:, 64:] = 1; next_label = torch.randint(0, 2, (32,)); seconds = []
for step in range(steps + 3):
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16):
        loss = forward(input_ids=ids, token_type_ids=types, attention_mask=torch.ones_like(ids), labels=labels,
                       next_sentence_label=next_label).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(); optimizer.zero_grad()
    seconds.append(time.perf_counter() - start)
print(json.dumps(statistics.median(seconds[3:])))
"""


def results() -> Iterator[dict[str, Any]]:
    """One result per peer setting, in tokens per second (medians of alternating rounds)."""
    with tempfile.TemporaryDirectory() as folder:
        ours, installed, tuned = [], [], []
        for round_ in range(ROUNDS):
            ours.append(_ours(Path(folder) / str(round_)))
            installed.append(_peer("eager", {}))
            tuned.append(min(_peer("eager", TUNED_ALLOCATOR), _peer("compiled", TUNED_ALLOCATOR)))
    tokens = BATCH * LENGTH
    for name, times in (("installed", installed), ("tuned", tuned)):
        peer = tokens / statistics.median(times)
        mine = statistics.median(ours)
        yield {
            "name": f"pretrain-mini-{name}",
            "ours": mine,
            "peer": peer,
            "ratio": mine / peer,
            "unit": "tokens/s",
            "detail": {"ours": ours, "peer_seconds_per_step": times, "threads": os.cpu_count(), "batch": BATCH},
        }


def _peer(mode: str, allocator: dict[str, str]) -> float:
    """Seconds of a step of `transformers`."""
    done = subprocess.run(
        [sys.executable, "-c", PEER, str(STEPS), mode],
        env={**os.environ, **allocator},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def _ours(folder: Path) -> float:
    """Tokens per second of our own process, from its journal: real tokens, not padded ones."""
    import numpy as np

    from model.config import EncoderShape
    from model.files import write_json
    from model.journal import read_journal
    from model.pretrain_recipe import Phase, PretrainRecipe
    from model.pretrain_run import PretrainRun
    from model.token_store import TokenStoreWriter
    from model.wordpiece import SPECIAL_TOKENS, make_tokenizer, save_tokenizer, tokenizer_digest
    from tasks.launch.local import LocalJob

    words = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(VOCABULARY - len(SPECIAL_TOKENS)))]
    tokenizer = make_tokenizer(words)
    save_tokenizer(tokenizer, folder / "tokenizer")
    writer = TokenStoreWriter(folder / "tokens", VOCABULARY, tokenizer_digest=tokenizer_digest(tokenizer))
    generator = np.random.default_rng(0)
    for number in range(400):
        document = [generator.integers(5, VOCABULARY, 20) for _ in range(40)]
        writer.add_document(document, heldout=number < 10)
    writer.close()
    num_steps = 6 * STEPS
    phase = Phase(sequence_length=LENGTH, batch_size=BATCH, num_steps=num_steps, learning_rate=1e-4)
    run = PretrainRun(
        name="bench",
        digest="bench",
        tokens_dir=folder / "tokens",
        tokenizer_dir=folder / "tokenizer",
        run_dir=folder / "run",
        shape=EncoderShape(preset="mini"),
        recipe=PretrainRecipe(
            phases=[phase],
            warmup_steps=1,
            log_every_steps=STEPS,
            short_sequence_probability=0,
            validation_batches=0,
            checkpoint_every_steps=10**6,
        ),
        machine={"compile": "on"},  # type: ignore[arg-type]  # as a long run has it
    )
    write_json(folder / "RUN.json", run.model_dump(mode="json"))
    job = LocalJob.submit("model.pretrain", folder / "RUN.json", folder / "run")
    assert job.process.wait() == 0, (folder / "run" / "log.txt").read_text()
    lines = [line["metrics"] for line, _ in read_journal(folder / "run" / "journal.jsonl")]
    speeds = [metrics.get("train/tokens_per_second") for metrics in lines]
    return statistics.median([speed for speed in speeds if speed][2:])
