"""What the paper printed: Tables 1 to 4 and the NER scores of Table 7, as data.

Source: Devlin, Chang, Lee, Toutanova, arXiv:1810.04805v2. A system that the paper scores on both splits is two rows,
since a difference across splits means nothing: the plain name is the test split, "(dev)" is the development split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Split = Literal["test", "dev"]


@dataclass(frozen=True)
class Quote:
    """One system's scores on one benchmark, on one split, from one table of the paper."""

    system: str
    split: Split
    benchmark: str
    scores: dict[str, float]
    table: int
    num_runs: int | None = None  # the paper tells it for Table 7 only


# Table 1, the GLUE server's test split: MNLI-m, MNLI-mm, QQP, QNLI, SST-2, CoLA, STS-B, MRPC, RTE, and the
# average, which leaves WNLI out.
TABLE_1: dict[str, tuple[float, ...]] = {
    "Pre-OpenAI SOTA": (80.6, 80.1, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7, 74.0),
    "BiLSTM+ELMo+Attn": (76.4, 76.1, 64.8, 79.8, 90.4, 36.0, 73.3, 84.9, 56.8, 71.0),
    "OpenAI GPT": (82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0, 75.1),
    "BERT base": (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 79.6),
    "BERT large": (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1, 82.1),
}
_TABLE_1_SINGLE = (
    ("qqp", "f1"),
    ("qnli", "accuracy"),
    ("sst2", "accuracy"),
    ("cola", "matthews"),
    ("stsb", "spearman"),
    ("mrpc", "f1"),
    ("rte", "accuracy"),
)

# Tables 2 and 3, SQuAD: (exact match, F1) on dev and on test.
_Pair = tuple[float | None, float | None]
_NONE: _Pair = (None, None)
TABLE_2: dict[str, tuple[_Pair, _Pair]] = {
    "Human": (_NONE, (82.3, 91.2)),
    "nlnet (ensemble)": (_NONE, (86.0, 91.7)),
    "QANet (ensemble)": (_NONE, (84.5, 90.5)),
    "BiDAF+ELMo": ((None, 85.6), (None, 85.8)),
    "R.M. Reader (ensemble)": ((81.2, 87.9), (82.3, 88.5)),
    "BERT base": ((80.8, 88.5), _NONE),
    "BERT large": ((84.1, 90.9), _NONE),
    "BERT large (ensemble)": ((85.8, 91.8), _NONE),
    "BERT large + TriviaQA": ((84.2, 91.1), (85.1, 91.8)),
    "BERT large + TriviaQA (ensemble)": ((86.2, 92.2), (87.4, 93.2)),
}
TABLE_3: dict[str, tuple[_Pair, _Pair]] = {
    "Human": ((86.3, 89.0), (86.9, 89.5)),
    "MIR-MRC": (_NONE, (74.8, 78.0)),
    "nlnet": (_NONE, (74.2, 77.1)),
    "unet (ensemble)": (_NONE, (71.4, 74.9)),
    "SLQA+": (_NONE, (71.4, 74.4)),
    "BERT large": ((78.7, 81.9), (80.0, 83.1)),
}

# Table 4, SWAG accuracy, and Table 7, NER F1 (mean of 5 restarts for BERT): dev, test.
TABLE_4: dict[str, _Pair] = {
    "ESIM+GloVe": (51.9, 52.7),
    "ESIM+ELMo": (59.1, 59.2),
    "OpenAI GPT": (None, 78.0),
    "BERT base": (81.6, None),
    "BERT large": (86.6, 86.3),
    "Human (expert)": (None, 85.0),
    "Human (5 annotations)": (None, 88.0),
}
_TABLE_7: dict[str, _Pair] = {
    "ELMo": (95.7, 92.2),
    "CVT": (None, 92.6),
    "CSE": (None, 93.1),
    "BERT base": (96.4, 92.4),
    "BERT large": (96.6, 92.8),
}

# Rows that a reader looks for first; the others fold away.
_PROMINENT = frozenset(TABLE_1)


def _quotes() -> list[Quote]:
    quotes: list[Quote] = []
    for system, row in TABLE_1.items():
        mnli = {
            "accuracy_matched": row[0],
            "accuracy_mismatched": row[1],
            "accuracy": round((row[0] + row[1]) / 2, 2),  # not printed there: our headline is the mean of the two
        }
        quotes.append(Quote(system, "test", "mnli", mnli, 1))
        quotes += [
            Quote(system, "test", benchmark, {metric: value}, 1)
            for (benchmark, metric), value in zip(_TABLE_1_SINGLE, row[2:9], strict=True)
        ]
    splits: tuple[Split, Split] = ("dev", "test")
    for table, benchmark, squad in ((2, "squad1", TABLE_2), (3, "squad2", TABLE_3)):
        for system, pairs in squad.items():
            for split, (exact, f1) in zip(splits, pairs, strict=True):
                scores = {metric: value for metric, value in (("exact", exact), ("f1", f1)) if value is not None}
                if scores:
                    quotes.append(Quote(system, split, benchmark, scores, table))
    for table, benchmark, metric, single in ((4, "swag", "accuracy", TABLE_4), (7, "ner", "f1", _TABLE_7)):
        for system, values in single.items():
            runs = 5 if table == 7 and system.startswith("BERT") else None
            quotes += [
                Quote(system, split, benchmark, {metric: value}, table, runs)
                for split, value in zip(splits, values, strict=True)
                if value is not None
            ]
    return quotes


def quoted_systems(benchmarks: list[str]) -> list[dict[str, Any]]:
    """The paper's rows that score at least one of `benchmarks`, in the form of leaderboard.json's systems.

    `average` is Table 1's own (nine columns, WNLI left out) where the paper prints one, else None. A quoted
    figure is one number: it stands as mean, median and best, its deviation is None, and so is `num_runs` unless told.
    """
    systems: dict[tuple[str, str], dict[str, Any]] = {}
    for quote in _quotes():
        if quote.benchmark not in benchmarks:
            continue
        system = systems.setdefault((quote.system, quote.split), _empty(quote.system, quote.split))
        system["scores"][quote.benchmark] = {
            metric: {"mean": value, "std": None, "median": value, "best": value, "num_runs": quote.num_runs}
            for metric, value in quote.scores.items()
        }
        system["source"][quote.benchmark] = f"Table {quote.table}"
    return sorted(systems.values(), key=lambda system: (not system["prominent"], system["split"] == "dev"))


def _empty(name: str, split: Split) -> dict[str, Any]:
    on_table_1 = split == "test" and name in TABLE_1
    average = TABLE_1[name][9] if on_table_1 else None
    return {
        "name": name if split == "test" else f"{name} (dev)",
        "paper_name": name,
        "kind": "quoted",
        "split": split,
        "average": average,
        "average_of": "Table 1: nine columns, WNLI left out" if on_table_1 else None,
        "glue_average": average,
        "prominent": name in _PROMINENT,
        "source": {},
        "scores": {},
    }
