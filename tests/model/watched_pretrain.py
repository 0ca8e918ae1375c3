"""`python -P watched_pretrain.py SEEN_DIR SIGNAL STEP RUN.json`: pre-training that writes down every sample it sees.

SEEN_DIR/RANK.jsonl gets a line per step. When the data of STEP are asked for, the process sends itself SIGNAL: KILL
some milliseconds later, wherever training then is; TERM at once; NONE never.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from model.data.loader import PretrainLoader, StepData

LATEST_KILL_SECONDS = 0.03  # some steps of a small encoder


def watched(
    folder: Path, before: Callable[[int], None] = lambda step: None
) -> Callable[[PretrainLoader, int], StepData]:
    """`PretrainLoader.at` that appends what it gives to a file of `folder`; `before` is called first, with the step."""
    folder.mkdir(parents=True, exist_ok=True)
    path, at = folder / f"{os.environ.get('RANK', '0')}.jsonl", PretrainLoader.at

    def watching(loader: PretrainLoader, step: int) -> StepData:
        before(step)
        data = at(loader, step)
        with path.open("a") as file:
            file.write(json.dumps([step, data.counts, _digests(data)]) + "\n")
        return data

    return watching


def seen(folder: Path) -> dict[int, list]:
    """{step: [counts, digests of the global batch's samples in order]}; a step seen twice must have been the same."""
    found: dict[int, list] = {}
    ranks = [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(folder.iterdir())]
    for lines in zip(*ranks, strict=True):
        step, counts, _ = lines[0]
        assert all(line[:2] == [step, counts] for line in lines)
        entry = [counts, [digest for line in lines for digest in line[2]]]
        assert found.setdefault(step, entry) == entry
    return found


def _digests(data: StepData) -> list[str]:
    """Of each sample: its tokens, segments, masks, labels and dropout keys."""
    digests = []
    for part in data.batches:
        positions = part.positions
        if len(part.indices):  # numbers of tokens, which depend on the samples before
            positions = positions - (part.lengths.cumsum(0) - part.lengths)[:, None]
        of_samples = part._replace(positions=positions, dropout_keys=part.dropout_keys.transpose(0, 1).contiguous())[:8]
        for sample in zip(*of_samples, strict=True):
            content = b"".join(tensor.numpy().tobytes() for tensor in sample)
            digests.append(hashlib.sha256(content).hexdigest()[:16])
    return digests


def main(folder: str, name: str, at_step: str, path: str) -> int:
    from model.pretrain import __main__

    def send(step: int) -> None:
        if name == "NONE" or step != int(at_step):
            return
        if name == "KILL":
            delay = random.Random(step).random() * LATEST_KILL_SECONDS
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        else:
            signal.raise_signal(signal.SIGTERM)

    PretrainLoader.at = watched(Path(folder), send)  # type: ignore[method-assign]
    return __main__.main([path])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
