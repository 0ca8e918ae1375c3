"""`python -P -m model.pretrain RUN.json`: pre-train one encoder in a process of its own.

The process reads a configuration file and writes a result file: success is run_dir/result.json, written last. On
SIGTERM, Ctrl-C and `pause_after_seconds` it saves at the next step boundary and exits with 0 and the status "to be
continued"; the next process resumes from the newest checkpoint. A user's mistake exits with 2 and one line on standard
error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from model.common import process_guard
from model.common.errors import UserError
from model.common.run_dir import RunDir
from model.common.status import Status
from model.config.hardware import WAITING
from model.config.pretraining import PretrainRun, read_run
from model.engine.process import StopRequest, run_guarded


def pretrain(run: PretrainRun, status: Status | None, stop: Callable[[], bool]) -> None:
    """Train the encoder of `run` to its end; see `model.pretrain.training.Pretraining.train` for the errors.

    `status` is None on every rank but 0, which writes all files.
    """
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the deterministic mode asks for it
    import torch

    from model.config.hardware import be_deterministic, resolve
    from model.data.token_store import TokenStore
    from model.pretrain.probes import Probes
    from model.pretrain.training import Pretraining
    from model.tokenizer.wordpiece import Vocabulary, load_tokenizer, tokenizer_digest

    hardware = resolve(run.machine)
    torch.set_num_threads(hardware.num_threads)
    be_deterministic()
    store, heldout = TokenStore.open(run.tokens_dir), TokenStore.open(run.tokens_dir, "heldout")
    tokenizer = load_tokenizer(run.tokenizer_dir)
    if tokenizer_digest(tokenizer) != store.tokenizer_digest:
        raise UserError(
            f"{run.tokens_dir}: made with another vocabulary than {run.tokenizer_dir} holds; run the tokens stage again"
        )
    probes = None
    if run.recipe.probes.benchmarks and status is not None:  # on rank 0 only; the others wait for it
        if run.data_dir is None or hardware.strategy == "sharded":
            raise UserError("recipe.probes: they need the benchmarks' data and an encoder that is whole on one rank")
        longest = run.shape.build(store.vocab_size).max_position_embeddings
        probes = Probes(run.recipe.probes, run.data_dir, tokenizer, longest)
    Pretraining(run, status, hardware, store, heldout, Vocabulary.of(tokenizer), stop, probes).train()


def main(arguments: list[str]) -> int:
    """Run the job of the file that `arguments` name, and return the exit code."""
    process_guard.guard()
    if len(arguments) != 1:
        print("usage: python -P -m model.pretrain RUN.json", file=sys.stderr)
        return 2
    status: Status | None = None

    def action() -> None:
        nonlocal status
        run = read_run(Path(arguments[0]))
        if os.environ.get("RANK", "0") == "0":
            status = Status(RunDir(run.run_dir).status)
            status.running(0, run.recipe.num_steps)
        pretrain(run, status, StopRequest(run.recipe.pause_after_seconds))

    return run_guarded(action, lambda: status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
