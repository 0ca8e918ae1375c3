"""Generate the synthetic dataset: a small invented corpus, all thirteen benchmarks in their original file formats with
GLUE's diagnostic set, and a custom task.

It is a positive control. The pre-training text shows which words belong together. Training rows use a third of the words,
and most development rows use the others, so a pre-trained encoder should beat the same encoder trained from scratch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from model.common.state_files import read_state_or_fault
from tasks.sample import glue, other_benchmarks
from tasks.sample.benchmark_rows import RowGenerator, SampleSettings, write_text
from tasks.sample.corpus_files import write_books, write_dump
from tasks.sample.random_source import RandomSource
from tasks.sample.word_bank import make_word_bank

__all__ = ["NO_GAIN_EXPECTED", "SMALL", "SampleSettings", "is_sample", "make_sample", "read_sample_record"]

SMALL = {"num_articles": 80, "num_books": 2, "num_train_rows": 64, "num_dev_rows": 48, "num_test_rows": 8}
"""Settings of `cloze sample --small`, for tests."""

NO_GAIN_EXPECTED = {
    "squad2": "From so few rows, encoders of this size hardly learn whether a passage answers a question, and tend to "
    "give the majority answer (none), pre-trained or not; the encoder from scratch can be ahead.",
    "nsp_accuracy": "Next sentence prediction compares the topics of two sentences, which is hardly learned in so short "
    "a training: 50 to 65 % is normal.",
}
"""Benchmark, or metric of pre-training, on which the sample is expected to show no gain → the reason."""

# Benchmark: (writer, subfolder of the data folder).
WRITERS = {
    "CoLA": (glue.write_cola, "glue/CoLA"),
    "SST-2": (glue.write_sst2, "glue/SST-2"),
    "MRPC": (glue.write_mrpc, "glue/MRPC"),
    "QQP": (glue.write_qqp, "glue/QQP"),
    "STS-B": (glue.write_stsb, "glue/STS-B"),
    "MNLI": (glue.write_mnli, "glue/MNLI"),
    "QNLI": (glue.write_qnli, "glue/QNLI"),
    "RTE": (glue.write_rte, "glue/RTE"),
    "WNLI": (glue.write_wnli, "glue/WNLI"),
    "SQuAD": (other_benchmarks.write_squad, "squad"),
    "SWAG": (other_benchmarks.write_swag, "swag"),
    "NER": (other_benchmarks.write_conll, "conll2003"),
    "AX": (glue.write_diagnostic, "glue/diagnostic"),
    "letters": (other_benchmarks.write_letters, "tasks"),
}
_ENCODERS = """# Encoders

Checkpoints in the `transformers` layout, one directory each, to fine-tune (`finetune.encoders`) or to continue from
(`start` in `pretrain.encoders`). `cloze fetch` downloads models of the Hugging Face hub to data/encoders/NAME.
"""


def make_sample(out_dir: Path, settings: SampleSettings) -> dict[str, int]:
    """Write the synthetic dataset to `out_dir`, which can exist; equal settings give identical files.

    Returns the size of every file in bytes, by its path relative to `out_dir`.
    """
    bank = make_word_bank(settings.seed)
    write_dump(bank, RandomSource(settings.seed, "wikipedia"), settings.num_articles, out_dir / "wikipedia")
    write_books(bank, RandomSource(settings.seed, "books"), settings.num_books, out_dir / "books")
    for name, (write, folder) in WRITERS.items():
        write(RowGenerator(bank, RandomSource(settings.seed, name), settings, name), out_dir / folder)
    write_text(out_dir / "encoders" / "README.md", _ENCODERS)
    files = sorted(path for path in out_dir.rglob("*") if path.is_file())
    return {path.relative_to(out_dir).as_posix(): path.stat().st_size for path in files}


def read_sample_record(path: Path) -> dict[str, Any]:
    """Read what `cloze sample` has recorded; empty if it has not run here.

    Raises:
        UserError: the record is damaged; without it, a leaderboard would not say that its data are synthetic.
    """
    record, fault = read_state_or_fault(path)
    if fault:
        raise UserError(
            f"{path}: {fault}; delete it if data/ is yours, otherwise delete it and data/ and run `cloze sample` again"
        )
    return record


def is_sample(data_dir: Path, record: Mapping[str, Any]) -> bool:
    """Check whether the benchmarks in `data_dir` are those of a `record` of `cloze sample`, by the sizes of their files.

    Text and custom tasks can be others.
    """
    folders = {folder.partition("/")[0] for _, folder in WRITERS.values()} - {"tasks"}
    files = {name: size for name, size in record.get("files", {}).items() if name.partition("/")[0] in folders}
    return bool(files) and all(
        (data_dir / name).is_file() and (data_dir / name).stat().st_size == size for name, size in files.items()
    )
