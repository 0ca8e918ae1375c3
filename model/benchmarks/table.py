"""The benchmark table: the benchmarks of the BERT paper, one row each.

GLUE's diagnostic set (AX) has no training rows. It is the test file `diagnostic` of MNLI, whose model predicts it;
diagnostic-full.tsv, which has labels, is preferred to diagnostic.tsv, and this to the hub's `ax`.

Hyper-parameters are those of Devlin et al. 2019 (arXiv:1810.04805v2), sections 4.1 to 4.4, 5.3 and appendix A.3.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from model.benchmarks.benchmark import Benchmark
from model.benchmarks.hub_formats import HUB_FORMATS, NER_TAGS
from model.common.errors import UserError
from model.config.finetuning import FinetuneRecipe

__all__ = ["BENCHMARKS", "Benchmark", "find", "in_order", "paper_recipe"]

_GLUE_PAPER: dict[str, int | float] = {
    "batch_size": 32,
    "learning_rate": 3e-5,
    "num_epochs": 3,
    "max_length": 128,
}
_GLUE_GRID: dict[str, tuple[int | float, ...]] = {"learning_rate": (5e-5, 4e-5, 3e-5, 2e-5)}
_SQUAD_PAPER: dict[str, int | float] = {
    "batch_size": 32,
    "learning_rate": 5e-5,
    "num_epochs": 3,
    "max_length": 384,
    "doc_stride": 128,
    "max_query_length": 64,
    "max_answer_length": 30,
    "num_best": 20,
}


def _glue(folder: str, **row: Any) -> Benchmark:
    files = {
        "train": f"glue/{folder}/train.tsv",
        "dev": {"": f"glue/{folder}/dev.tsv"},
        "test": {"": f"glue/{folder}/test.tsv"},
    }
    defaults = {"head": "classes", "paper": _GLUE_PAPER, "grid": _GLUE_GRID}
    return Benchmark(**{**defaults, **files, "title": folder, "label": "label", "identity": "index", **row})


_ROWS = (
    _glue(
        "CoLA",
        name="cola",
        first="sentence",
        columns=("source", "label", "star", "sentence"),
        labels=("0", "1"),
        metrics=("matthews", "accuracy"),
    ),
    _glue("SST-2", name="sst2", first="sentence", labels=("0", "1"), metrics=("accuracy",)),
    _glue(
        "MRPC",
        name="mrpc",
        first="#1 String",
        second="#2 String",
        label="Quality",
        labels=("0", "1"),
        positive="1",
        metrics=("f1", "accuracy"),
    ),
    _glue(
        "QQP",
        name="qqp",
        first="question1",
        second="question2",
        label="is_duplicate",
        identity="id",
        labels=("0", "1"),
        positive="1",
        skips_malformed=True,
        metrics=("f1", "accuracy"),
    ),
    _glue(
        "STS-B",
        name="stsb",
        head="regression",
        first="sentence1",
        second="sentence2",
        label="score",
        metrics=("spearman", "pearson"),
    ),
    _glue(
        "MNLI",
        name="mnli",
        first="sentence1",
        second="sentence2",
        label="gold_label",
        labels=("contradiction", "entailment", "neutral"),
        skips_malformed=True,
        unlabelled="-",
        dev={"matched": "glue/MNLI/dev_matched.tsv", "mismatched": "glue/MNLI/dev_mismatched.tsv"},
        test={
            "matched": "glue/MNLI/test_matched.tsv",
            "mismatched": "glue/MNLI/test_mismatched.tsv",
            "diagnostic": "glue/diagnostic/diagnostic.tsv",
        },
        metrics=("accuracy",),
    ),
    _glue(
        "QNLI",
        name="qnli",
        first="question",
        second="sentence",
        labels=("entailment", "not_entailment"),
        metrics=("accuracy",),
    ),
    _glue(
        "RTE",
        name="rte",
        first="sentence1",
        second="sentence2",
        labels=("entailment", "not_entailment"),
        metrics=("accuracy",),
    ),
    _glue(
        "WNLI",
        name="wnli",
        first="sentence1",
        second="sentence2",
        labels=("0", "1"),
        metrics=("accuracy",),
    ),
    Benchmark(
        name="squad1",
        title="SQuAD v1.1",
        head="span",
        train="squad/train-v1.1.json",
        dev={"": "squad/dev-v1.1.json"},
        test={},
        metrics=("f1", "exact"),
        paper=_SQUAD_PAPER,
    ),
    Benchmark(
        name="squad2",
        title="SQuAD v2.0",
        head="span",
        train="squad/train-v2.0.json",
        dev={"": "squad/dev-v2.0.json"},
        test={},
        unanswerable=True,
        metrics=("f1", "exact"),
        paper={**_SQUAD_PAPER, "batch_size": 48, "num_epochs": 2},
    ),
    Benchmark(
        name="swag",
        title="SWAG",
        head="choice",
        train="swag/train.csv",
        dev={"": "swag/val.csv"},
        test={"": "swag/test.csv"},
        first="sent1",
        second="sent2",
        endings=tuple(f"ending{number}" for number in range(4)),
        label="label",
        identity="",  # pandas wrote SWAG's files: the first column is an index without a name
        labels=("0", "1", "2", "3"),
        metrics=("accuracy",),
        paper={"batch_size": 16, "learning_rate": 2e-5, "num_epochs": 3, "max_length": 128},
    ),
    Benchmark(
        name="ner",
        title="CoNLL-2003 NER",
        head="tags",
        train="conll2003/train.txt",
        dev={"": "conll2003/valid.txt"},
        test={"": "conll2003/test.txt"},
        labels=NER_TAGS,
        metrics=("f1", "precision", "recall"),
        paper={"batch_size": 32, "learning_rate": 5e-5, "num_epochs": 4, "max_length": 128},
        grid={"batch_size": (16, 32), "learning_rate": (5e-5, 3e-5, 2e-5), "num_epochs": (2, 3, 4)},
    ),
)

BENCHMARKS: dict[str, Benchmark] = {row.name: row.model_copy(update={"forms": HUB_FORMATS[row.name]}) for row in _ROWS}


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names of benchmarks in table order, followed by custom tasks in alphabetical order."""
    known = {name: number for number, name in enumerate(BENCHMARKS)}
    return sorted(names, key=lambda name: (known.get(name, len(known)), name))


def find(name: str) -> Benchmark:
    """The benchmark called `name`.

    Raises:
        UserError: there is none; the message suggests the nearest name.
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    nearest = difflib.get_close_matches(name, BENCHMARKS, n=1, cutoff=0.4)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"known: {', '.join(BENCHMARKS)}"
    raise UserError(f"unknown benchmark '{name}'; {hint}")


def paper_recipe(benchmark: Benchmark) -> FinetuneRecipe:
    """The recipe of the BERT paper for a benchmark."""
    return FinetuneRecipe.parse(dict(benchmark.paper), f"the table's row '{benchmark.name}'")
