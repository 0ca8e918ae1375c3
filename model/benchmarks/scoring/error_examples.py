"""Error examples: the dev rows that a run got wrong, with their texts, for people to read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from model.benchmarks.readers.examples import ChoiceExample, SpanExample, TagExample, TextExample
from model.benchmarks.scoring import squad
from model.benchmarks.scoring.entities import entities
from model.benchmarks.table import Benchmark

NUM_EXAMPLES = 20
MAX_CHARACTERS = 320  # of a text; what is cut off is marked
_BEFORE = 120  # characters of a context that are kept before the answer

_Record = Mapping[str, Any]
_Wrong = tuple[float, dict[str, Any]]  # how it ranks, the highest first; what is shown


def error_examples(row: Benchmark, examples: Sequence[Any], records: Sequence[_Record]) -> dict[str, Any]:
    """What errors.json says of the predictions `records` of `examples`, which are in the same order.

    `rows` are at most NUM_EXAMPLES wrong ones, each with its id, its texts as [name, text], the prediction, the
    label, and a `value` that they are ranked by; `ranked_by` names it: the confidence of the wrong answer where the
    head has one, else how far off the answer is. `num_wrong` counts them all (None for a regression, where
    every row is a little wrong). Equal predictions give equal examples; of equal values the earlier row comes first.
    """
    ranked_by, judge = _JUDGES[row.head]
    wrong: list[_Wrong] = []
    for example, record in zip(examples, records, strict=True):
        found = judge(row, example, record) if record.get("label") is not None else None
        if found is not None:
            wrong.append((found[0], {**_identity(record), "value": round(found[0], 4), **found[1]}))
    wrong.sort(key=lambda pair: -pair[0])
    return {
        "ranked_by": ranked_by,
        "num_rows": len(records),
        "num_wrong": None if row.head == "regression" else len(wrong),
        "rows": [shown for _, shown in wrong[:NUM_EXAMPLES]],
    }


def excerpt(text: str, start: int = 0) -> str:
    """`text` cut to MAX_CHARACTERS around the character `start`, with an ellipsis where something is left out."""
    text = text.replace("\n", " ")
    begin = max(0, min(start - _BEFORE, len(text) - MAX_CHARACTERS)) if len(text) > MAX_CHARACTERS else 0
    end = begin + MAX_CHARACTERS
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"


def _identity(record: _Record) -> dict[str, str]:
    part = {"part": str(record["part"])} if record.get("part") else {}
    return {"id": str(record["id"]), **part}


def _classes(row: Benchmark, example: TextExample, record: _Record) -> _Wrong | None:
    if record["prediction"] == record["label"]:
        return None
    return _confidence(record), {
        "texts": _texts(row, example),
        "prediction": str(record["prediction"]),
        "label": str(record["label"]),
    }


def _regression(row: Benchmark, example: TextExample, record: _Record) -> _Wrong | None:
    distance = abs(float(record["prediction"]) - float(record["label"]))
    return distance, {
        "texts": _texts(row, example),
        "prediction": f"{record['prediction']:.2f}",
        "label": f"{record['label']:.2f}",
    }


def _choice(row: Benchmark, example: ChoiceExample, record: _Record) -> _Wrong | None:
    if record["prediction"] == record["label"]:
        return None
    endings = [[label, excerpt(ending)] for label, ending in zip(row.labels, example.endings)]
    return _confidence(record), {
        "texts": [["context", excerpt(example.context)], *endings],
        "prediction": str(record["prediction"]),
        "label": str(record["label"]),
    }


def _span(row: Benchmark, example: SpanExample, record: _Record) -> _Wrong | None:
    gold = squad.gold_answers(record["label"]) if row.unanswerable else list(record["label"])
    if not gold or squad.exact_match(record["prediction"], gold):
        return None
    start = example.answers[0].start if example.answers else max(0, example.context.find(record["prediction"]))
    answers = dict.fromkeys(answer for answer in gold if answer)
    f1 = squad.token_f1(record["prediction"], gold, row.unanswerable)
    return 1.0 - f1, {
        "value": round(100 * f1, 1),
        "texts": [["question", excerpt(example.question)], ["context", excerpt(example.context, start)]],
        "prediction": excerpt(record["prediction"]) or "no answer",
        "label": excerpt(" | ".join(answers)) or "no answer",
    }


def _tags(row: Benchmark, example: TagExample, record: _Record) -> _Wrong | None:
    num_wrong = sum(one != other for one, other in zip(record["prediction"], record["label"]))
    if not num_wrong:
        return None
    return float(num_wrong), {
        "texts": [["sentence", excerpt(" ".join(example.words))]],
        "prediction": _named(example.words, record["prediction"], record["label"]),
        "label": _named(example.words, record["label"], record["prediction"]),
    }


def _named(words: Sequence[str], tags: Sequence[str], others: Sequence[str]) -> str:
    """The entities that the other side does not have; for tags that name none, the words that differ."""
    if any("-" in tag for tag in (*tags, *others)):
        found = [entity for entity in entities(tags) if entity not in set(entities(others))]
        named = [f"{kind} {' '.join(words[start:end])}" for kind, start, end in found]
    else:
        named = [f"{tag} {word}" for word, tag, other in zip(words, tags, others) if tag != other]
    return excerpt(" · ".join(named)) or "none"


def _texts(row: Benchmark, example: TextExample) -> list[list[str]]:
    texts = [[row.first or "text", excerpt(example.first)]]
    if example.second is not None:
        texts.append([row.second or "second text", excerpt(example.second)])
    return texts


def _confidence(record: _Record) -> float:
    """The softmax of the given answer's logit (the highest); 0 where a record has no logits."""
    logits = record.get("logits") or []
    return 1.0 / sum(math.exp(value - max(logits)) for value in logits) if logits else 0.0


_JUDGES: dict[str, tuple[str, Callable[[Benchmark, Any, _Record], _Wrong | None]]] = {
    "classes": ("confidence", _classes),
    "regression": ("distance", _regression),
    "choice": ("confidence", _choice),
    "span": ("F1", _span),
    "tags": ("wrong words", _tags),
}
