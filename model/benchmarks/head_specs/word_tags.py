"""The head "tags": a tag for each word of a sentence, such as the entities of NER."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from model.benchmarks.benchmark import Benchmark
from model.benchmarks.head_specs.base import (
    Examples,
    HeadSpec,
    Labels,
    NoAnswer,
    PredictionItem,
    Record,
    Records,
    Scores,
    WrongRow,
    excerpt,
)
from model.benchmarks.readers import conll
from model.benchmarks.readers.examples import TagExample
from model.benchmarks.readers.row_errors import MalformedRow, RowErrors
from model.benchmarks.readers.row_reader import RowReader
from model.benchmarks.readers.rows import Row
from model.benchmarks.requests import CharSpan, Fields, Request, as_text, describe
from model.benchmarks.scoring.entities import entities, entity_scores, tag_scores, to_iob2
from model.benchmarks.scoring.metrics import Formula
from model.benchmarks.sources import SourceFiles
from model.common.errors import UserError

_LINE_ENDINGS = (".txt", ".conll")
_CONLL_COLUMNS = 4
_SYMBOLS = frozenset("$+<=>^`|~")  # BERT's tokenizer treats them as punctuation; Unicode does not


def has_entities(row: Benchmark) -> bool:
    """Whether the tags mark entities (IOB2, scored by entity) rather than a class for each word."""
    return "accuracy" not in row.metrics


class TagReader(RowReader):
    """Reads columns of words and of tags: lists (JSON lines, Parquet), or text separated by spaces."""

    noun = "tag"

    def _columns(self) -> tuple[list[str], list[str]]:
        return [self.row.first], []

    def _example(self, row: Row) -> TagExample:
        words = [str(word) for word in self._items(row, self.row.first)]
        if not words:
            raise MalformedRow(f"no words in column {self.row.first!r}")
        if self.row.label not in self.at or (row[1][self.at[self.row.label]] is None and not self._labeled):
            return TagExample(self.id_of(row), tuple(words), ())
        tags = [self.labels.spelled(tag) for tag in self._items(row, self.row.label)]
        if len(tags) != len(words):
            raise MalformedRow(f"{len(tags)} tags for {len(words)} words")
        self.labels.found(row, tags)
        return TagExample(self.id_of(row), tuple(words), tuple(to_iob2(tags) if has_entities(self.row) else tags))

    def _items(self, row: Row, column: str) -> list[Any]:
        value = row[1][self.at[column]]
        if isinstance(value, str):
            return value.split()
        if not isinstance(value, list):
            raise MalformedRow(f"expected a list in column {column!r}, found {type(value).__name__}")
        return value


class TagsSpec(HeadSpec):
    """A tag for each word."""

    name = "tags"
    implementation = "model.heads.token_classification:TagsHead"
    reader = TagReader
    custom_columns = {"words": ("first", "words"), "tags": ("label", "tags"), "id": ("identity", "id")}
    metrics = ("f1", "precision", "recall")
    all_metrics = ("f1", "precision", "recall", "accuracy")
    paper_benchmark = "ner"
    ranked_by = "wrong words"

    def read(self, source: SourceFiles, errors: RowErrors, training: bool, labeled: bool) -> Sequence[Any]:
        if source.ending not in _LINE_ENDINGS:
            return super().read(source, errors, training, labeled)
        row = source.row
        num_columns = None if row.skips_malformed else _CONLL_COLUMNS
        return [
            one
            for path in source.paths
            for one in conll.read_sentences(
                path, row.labels or None, errors, entities=has_entities(row), num_columns=num_columns
            )
        ]

    def _count_labels(self, source: SourceFiles, errors: RowErrors) -> Counter[str]:
        as_classes = source.row.model_copy(update={"metrics": ("accuracy",), "labels": ()})
        examples = self.read(replace(source, row=as_classes), errors, training=True, labeled=True)
        return Counter(tag for example in examples for tag in example.tags)

    def resolve_custom(self, row: Benchmark, labels: Labels, metrics_given: bool) -> tuple[Labels, Labels]:
        metrics = row.metrics
        labels, are_entities = complete_entity_tags(labels)
        if not metrics_given and not are_entities:
            metrics = ("accuracy",)
        if "accuracy" not in metrics and not are_entities:
            odd = next((label for label in labels if label != "O" and label[:2] not in ("B-", "I-")), labels[0])
            raise UserError(f"metrics: {metrics[0]} counts entities, tagged O, B-x and I-x; found {odd!r}")
        if "accuracy" in metrics and len(metrics) > 1:
            raise UserError("metrics: accuracy of words cannot be combined with the scores of entities; use one kind")
        return labels, metrics

    def predictions_in_lines(
        self, row: Benchmark, path: Path, examples: Examples, gold_path: Path, lines: list[str]
    ) -> list[PredictionItem] | None:
        if lines and all(field in row.labels for field in lines[0].split()):
            return None  # the first line holds a sentence's tags rather than a word and its columns
        words, sentences = conll.predicted_tags(path, lines)
        expected = [word for example in examples for word in example.words]
        if words != expected or len(sentences) != len(examples):
            place = next((n for n, pair in enumerate(zip(words, expected)) if pair[0] != pair[1]), None)
            what = f"{len(words)} words in {len(sentences)} sentences"
            if place is not None:
                what = f"word {place + 1} is {words[place]!r}, {expected[place]!r} in the gold file"
            raise UserError(
                f"{path}: {what}; expected the {len(expected)} words and {len(examples)} sentences of {gold_path}"
            )
        return [(f"row {number}", tags) for number, tags in sentences]

    def parse_prediction(self, row: Benchmark, where: str, value: Any, example: Any) -> Any:
        tags = value.split() if isinstance(value, str) else value
        if not isinstance(tags, list) or len(tags) != len(example.words):
            found = f"{len(tags)} tags" if isinstance(tags, list) else repr(value)
            raise UserError(f"{where}: {found} where {len(example.words)} tags were expected, one per word")
        for tag in tags:
            if tag not in row.labels:
                raise UserError(f"{where}: unknown tag {tag!r}; expected one of {', '.join(row.labels)}")
        return tuple(tags)

    def score(self, row: Benchmark, examples: Examples, predictions: Sequence[Any], no_answer: NoAnswer) -> Scores:
        gold = [example.tags for example in examples]
        report = {"scores": tag_scores(has_entities(row), gold, predictions)}
        return report | ({"strict": entity_scores(gold, predictions, strict=True)} if has_entities(row) else {})

    def row_counts(self, row: Benchmark, metric: str, records: Records) -> Any:
        return [(_num_correct_words if metric == "accuracy" else _entity_counts)(record) for record in records]

    def formula(self, metric: str) -> Formula:
        return super().formula("precision" if metric == "accuracy" else metric)  # the share of correct words

    def wrong_row(self, row: Benchmark, example: Any, record: Record) -> WrongRow | None:
        num_wrong = sum(one != other for one, other in zip(record["prediction"], record["label"]))
        if not num_wrong:
            return None
        return float(num_wrong), {
            "texts": [["sentence", excerpt(" ".join(example.words))]],
            "prediction": _difference(example.words, record["prediction"], record["label"]),
            "label": _difference(example.words, record["label"], record["prediction"]),
        }

    def request_columns(self, row: Benchmark) -> tuple[str, ...]:
        return (row.first or "text",)

    def request_of_example(self, example: Any) -> Request:
        return Request(example, example.id, *_joined(example.words))

    def example(self, row: Benchmark, fields: Fields) -> Any:
        given = fields.given
        if fields.by_name is not None:
            name = next((name for name in ("words", row.first, "text") if name in fields.by_name), "text")
            given = fields.value(name)
        if isinstance(given, str):
            text = as_text(given, "text")
            spans = tuple(split_words(text))
            words = tuple(text[begin:end] for begin, end in spans)
        elif isinstance(given, Sequence):
            words = tuple(as_text(word, "words") for word in given)
            text, spans = _joined(words)
        else:
            raise UserError(f"expected a text or its words, found {describe(given)}")
        return Request(TagExample(fields.example_id, words, ()), fields.id, text, spans)


def complete_entity_tags(labels: Iterable[str]) -> tuple[tuple[str, ...], bool]:
    """The tags, and whether they mark entities.

    Entity tags are completed to B- and I- of every type, since readers convert the data to IOB2.
    """
    labels = tuple(labels)
    if not all(label == "O" or (label[:2] in ("B-", "I-") and len(label) > 2) for label in labels):
        return labels, False
    types = list(dict.fromkeys(label[2:] for label in labels if label != "O"))
    complete = ("O", *(f"{prefix}-{entity_type}" for entity_type in types for prefix in "BI"))
    return (labels if set(complete) == set(labels) else complete), True


def split_words(text: str) -> list[CharSpan]:
    """The positions of the words of a text, split as in CoNLL-2003.

    Words end at white space; punctuation at either end of a word and a possessive 's become words. Punctuation inside
    words (1996-08-22, U.N.) and after initials (J.) is kept.
    """
    words: list[CharSpan] = []
    end = 0
    for chunk in text.split():
        begin = text.index(chunk, end)
        end = begin + len(chunk)
        first, last = begin, end
        while first < last and _is_punctuation(text[first]):
            words.append((first, first + 1))
            first += 1
        after: list[CharSpan] = []
        while first < last and _is_punctuation(text[last - 1]) and not _is_abbreviation(text[first:last]):
            last -= 1
            after.append((last, last + 1))
        if last - first > 2 and text[last - 2 : last] in ("'s", "’s"):
            after.append((last - 2, last))
            last -= 2
        if first < last:
            words.append((first, last))
        words += reversed(after)
    return words


def _is_punctuation(character: str) -> bool:
    return character in _SYMBOLS or unicodedata.category(character).startswith("P")


def _is_abbreviation(word: str) -> bool:
    """Whether the period at the end belongs to the word, as in U.N. and J."""
    return word.endswith(".") and ("." in word[:-1].strip(".") or (len(word) == 2 and word[0].isupper()))


def _joined(words: Sequence[str]) -> tuple[str, tuple[CharSpan, ...]]:
    """The words joined by spaces, and the position of each."""
    spans: list[CharSpan] = []
    begin = 0
    for word in words:
        spans.append((begin, begin + len(word)))
        begin += len(word) + 1
    return " ".join(words), tuple(spans)


def _num_correct_words(record: Record) -> list[int]:
    words = list(zip(record["label"], record["prediction"], strict=True))
    return [sum(gold == predicted for gold, predicted in words), len(words)]


def _entity_counts(record: Record) -> list[int]:
    gold, predicted = set(entities(record["label"])), set(entities(record["prediction"]))
    return [len(gold & predicted), len(predicted), len(gold)]


def _difference(words: Sequence[str], tags: Sequence[str], others: Sequence[str]) -> str:
    """The entities of `tags` that `others` lacks; without entities, the words whose tags differ."""
    if any("-" in tag for tag in (*tags, *others)):
        found = [entity for entity in entities(tags) if entity not in set(entities(others))]
        named = [f"{entity_type} {' '.join(words[start:end])}" for entity_type, start, end in found]
    else:
        named = [f"{tag} {word}" for word, tag, other in zip(words, tags, others) if tag != other]
    return excerpt(" · ".join(named)) or "none"
