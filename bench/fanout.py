"""Measure the start-up time of a fine-tuning job on a preloaded worker, from the request to its first step.

The jobs are all benchmarks of the synthetic dataset, with an encoder of two layers. If CLOZE_REAL_CHECKPOINT names an
encoder in the `transformers` layout and CLOZE_REAL_DATA a directory with glue/MRPC, that job is measured too. The peer
is the same job in a new process (`python -m model.finetune`), which has to import torch first.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bench import comparison
from bench.processes import TUNED
from model.benchmarks.table import BENCHMARKS, paper_recipe
from model.common.files import write_json
from model.config.hardware import HardwareOptions
from model.finetune.job import Job
from tasks.jobs.local_launcher import WorkerPool, module_command
from tasks.sample import SampleSettings, make_sample

ROUNDS = 3
PEER = ("sst2", "squad1")  # the shortest and the longest to read
_MOST_SECONDS = 120.0


def results() -> Iterator[dict[str, Any]]:
    """Yield one result for the synthetic dataset, and one for real data if available."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_sample(folder / "data", SampleSettings())
        _write_encoder(folder / "encoder", folder / "data")
        yield _compare("fanout-sample", folder, folder / "data", folder / "encoder", list(BENCHMARKS), PEER)
        checkpoint, data = os.environ.get("CLOZE_REAL_CHECKPOINT"), os.environ.get("CLOZE_REAL_DATA")
        if checkpoint and data:
            yield _compare("fanout-mrpc", folder, Path(data), Path(checkpoint), ["mrpc"], ["mrpc"])


def _compare(
    name: str, folder: Path, data: Path, encoder: Path, benchmarks: Sequence[str], peers: Sequence[str]
) -> dict[str, Any]:
    warm: dict[str, list[tuple[float, float]]] = {benchmark: [] for benchmark in benchmarks}
    with WorkerPool(folder / f"{name}.log") as pool:
        pool.warm_up()
        # This job waits until the fork server has imported its modules.
        _warm_seconds(_job(folder, data, encoder, benchmarks[0], "first"), pool)
        for number in range(ROUNDS):
            for benchmark in benchmarks:
                job = _job(folder, data, encoder, benchmark, f"{name}-{number}")
                warm[benchmark].append(_warm_seconds(job, pool))
    cold = [
        _cold_seconds(_job(folder, data, encoder, benchmark, f"{name}-cold-{number}"))
        for number in range(ROUNDS)
        for benchmark in peers
    ]
    begins = {benchmark: statistics.median(begin for begin, _ in pairs) for benchmark, pairs in warm.items()}
    ends = {benchmark: statistics.median(end for _, end in pairs) for benchmark, pairs in warm.items()}
    ours, peer = statistics.median(begins.values()), statistics.median(begin for begin, _ in cold)
    worst = max(begin for pairs in warm.values() for begin, _ in pairs)
    detail = {"begins": begins, "first_step_ends": ends, "worst": worst, "warm": warm, "cold": cold}
    unit = "seconds from the request to the first step (peer: a new process)"
    return comparison(name, ours, peer, peer / ours, unit, detail)


def _job(folder: Path, data: Path, encoder: Path, benchmark: str, name: str) -> Path:
    """Write JOB.json of a job with the paper's recipe, and return its path."""
    run_dir = folder / "runs" / f"{benchmark}-{name}"
    recipe = paper_recipe(BENCHMARKS[benchmark])
    longest = 128 if BENCHMARKS[benchmark].head != "span" else 384
    job = Job(
        digest=run_dir.name,
        encoder_name="bench",
        encoder_dir=encoder,
        benchmark=benchmark,
        data_dir=data,
        recipe=recipe.model_copy(update={"max_length": min(recipe.max_length, longest)}),
        seed=1,
        run_dir=run_dir,
        machine=HardwareOptions(accelerator="cpu", num_threads=1),
    )
    write_json(run_dir / "JOB.json", job.model_dump(mode="json"))
    return run_dir / "JOB.json"


def _warm_seconds(job_path: Path, pool: WorkerPool) -> tuple[float, float]:
    """Request the job, and stop it after its first step."""
    stop = threading.Event()
    asked = time.time()
    thread = threading.Thread(target=pool.run, args=(job_path.parent.name, job_path, stop))
    thread.start()
    begin, end = _first_step(job_path.parent / "log.txt")
    stop.set()
    thread.join()
    return begin - asked, end - asked


def _cold_seconds(job_path: Path) -> tuple[float, float]:
    log = job_path.parent / "log.txt"
    asked = time.time()
    with log.open("wb") as file:
        process = subprocess.Popen(
            module_command("model.finetune", str(job_path)), stdout=file, stderr=file, env={**os.environ, **TUNED}
        )
        begin, end = _first_step(log)
        process.terminate()
        process.wait()
    return begin - asked, end - asked


def _first_step(log: Path) -> tuple[float, float]:
    """Return when the first step of a job began and ended according to its log, in seconds since the epoch."""
    deadline = time.monotonic() + _MOST_SECONDS
    while time.monotonic() < deadline:
        content = log.read_text() if log.exists() else ""
        found = re.search(r"training begins at (.+)\nfirst step at (.+)\n", content)
        if found is not None:
            begin, end = (datetime.fromisoformat(moment).timestamp() for moment in found.groups())
            return begin, end
        time.sleep(0.01)
    raise RuntimeError(f"{log}: no first step in {_MOST_SECONDS:.0f} s: {log.read_text()[-500:]}")


def _write_encoder(folder: Path, data: Path) -> None:
    """Write a tiny encoder whose vocabulary has the frequent words of the data."""
    from model.config.encoder import PRESETS, EncoderConfig
    from model.encoder.encoder import Encoder
    from model.formats.hf_folder import save_encoder
    from model.tokenizer.wordpiece import SPECIAL_TOKENS, make_tokenizer, save_tokenizer

    text = "\n".join(path.read_text() for path in sorted(data.glob("glue/*/train.tsv"))).lower()
    letters = sorted(set(re.findall(r"[!-~]", text)))
    words = [word for word, _ in Counter(re.findall(r"[a-z]{2,}", text)).most_common(2000)]
    tokenizer = make_tokenizer([*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters), *words])
    save_tokenizer(tokenizer, folder)
    config = EncoderConfig.parse({**PRESETS["tiny"], "vocab_size": tokenizer.get_vocab_size()}, "bench")
    save_encoder(Encoder(config), folder)
