"""`python -P -m model.pretrain RUN.json`: pre-train one encoder, in a process of its own.

Configuration file in, result file out: success is run_dir/result.json, written last. SIGTERM, Ctrl-C and
`pause_after_seconds` save at the next step's edge and end with 0, the status being "to be continued"; the next
process goes on from the newest checkpoint. A mistake of the user's ends with 2 and one line on standard error.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

from model.common import process_guard
from model.common.errors import Paused, UserError
from model.common.status import Fault, Status
from model.config.hardware import WAITING
from model.config.pretrain_run import PretrainRun, read_run


class StopRequest:
    """Becomes true when the process is told to stop, or has run for `after_seconds`."""

    def __init__(self, after_seconds: float | None) -> None:
        self._asked = False
        self._deadline = None if after_seconds is None else time.monotonic() + after_seconds
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def __call__(self) -> bool:
        return self._asked or (self._deadline is not None and time.monotonic() >= self._deadline)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True


def pretrain(run: PretrainRun, status: Status | None, stop: StopRequest) -> None:
    """Train the encoder of `run` to its end; see `model.pretrain.loop.Trainer.train` for what it raises.

    `status` is None on every rank but the first, which writes all files.
    """
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the deterministic mode asks for it
    import torch

    from model.config.hardware import be_deterministic, resolve
    from model.data.token_store import TokenStore
    from model.pretrain.loop import Trainer
    from model.pretrain.probes import Probes
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
    if run.recipe.probes.benchmarks and status is not None:  # of the first rank alone; the others wait for it
        if run.data_dir is None or hardware.strategy == "sharded":
            raise UserError("recipe.probes: they need the benchmarks' data and an encoder that is whole on one rank")
        longest = run.shape.build(store.vocab_size).max_position_embeddings
        probes = Probes(run.recipe.probes, run.data_dir, tokenizer, longest)
    Trainer(run, status, hardware, store, heldout, Vocabulary.of(tokenizer), stop, probes).train()


def main(arguments: list[str]) -> int:
    """Run the job of the file that `arguments` name; the exit code."""
    process_guard.guard()
    if len(arguments) != 1:
        print("usage: python -P -m model.pretrain RUN.json", file=sys.stderr)
        return 2
    try:
        run = read_run(Path(arguments[0]))
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        return 2
    status = None
    if os.environ.get("RANK", "0") == "0":
        status = Status(run.run_dir / "status.json")
        status.running(0, run.recipe.num_steps)
    try:
        pretrain(run, status, StopRequest(run.recipe.pause_after_seconds))
    except Paused as pause:
        _end(status, str(pause), None)
        return 0
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        _end(status, str(mistake), "user")
        return 2
    except Exception as error:
        traceback.print_exc()
        fault = _fault_of(error)
        message = "a rank is gone or silent" if fault == "lost" else f"{type(error).__name__}: {error}".splitlines()[0]
        _end(status, message, fault)
        return 1
    return 0


def _end(status: Status | None, message: str, fault: Fault | None) -> None:
    if status is not None:
        if fault is None:
            print(message, flush=True)
        status.end("failed" if fault else "to be continued", message, fault)


def _fault_of(error: Exception) -> Fault:
    from model.engine.distributed import is_loss_of_a_rank
    from model.pretrain.report import Hopeless

    if is_loss_of_a_rank(error):
        return "lost"
    if isinstance(error, Hopeless):
        return "hopeless"
    if isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error):
        return "memory"
    return "internal"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
