"""What an own task of each head may say, and what it gets where it says nothing."""

from __future__ import annotations

from dataclasses import dataclass

from model.benchmarks.table import BENCHMARKS

_Columns = dict[str, tuple[str, str | None]]
_TEXT: _Columns = {
    "first": ("first", "text"),
    "second": ("second", None),
    "label": ("label", "label"),
    "id": ("identity", "id"),
}


@dataclass(frozen=True)
class OwnHead:
    """A head as an own task sees it."""

    columns: _Columns
    """The names in `columns` → (field of Benchmark, the column's name where none is given; None: no such column)."""
    metrics: tuple[str, ...]
    """Reported where none are given."""
    all_metrics: tuple[str, ...]
    like: str
    """The benchmark of the paper whose hyper-parameters it starts from."""

    @property
    def paper(self) -> dict[str, int | float]:
        """Hyper-parameters, as keys of FinetuneRecipe."""
        return BENCHMARKS[self.like].paper

    @property
    def grid(self) -> dict[str, tuple[int | float, ...]]:
        """The grid that `paper` stands for."""
        return BENCHMARKS[self.like].grid


HEADS: dict[str, OwnHead] = {
    "classes": OwnHead(_TEXT, ("accuracy",), ("accuracy", "f1", "macro_f1", "matthews"), "sst2"),
    "regression": OwnHead(_TEXT, ("spearman", "pearson"), ("spearman", "pearson"), "stsb"),
    "choice": OwnHead(
        {
            "context": ("first", "context"),
            "start": ("second", None),
            "endings": ("endings", "endings"),
            "label": ("label", "label"),
            "id": ("identity", "id"),
        },
        ("accuracy",),
        ("accuracy",),
        "swag",
    ),
    "span": OwnHead(
        {
            "question": ("first", "question"),
            "context": ("second", "context"),
            "answers": ("label", "answers"),
            "answer_start": ("answer_start", "answer_start"),
            "id": ("identity", "id"),
        },
        ("f1", "exact"),
        ("f1", "exact"),
        "squad1",
    ),
    "tags": OwnHead(
        {"words": ("first", "words"), "tags": ("label", "tags"), "id": ("identity", "id")},
        ("f1", "precision", "recall"),
        ("f1", "precision", "recall", "accuracy"),
        "ner",
    ),
}
