"""The head "tags": a tag for each word of a sentence, such as the entities of NER."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from model.benchmarks.head_specs.base import (
    ClassCounts,
    Examples,
    FieldType,
    HeadSpec,
    NoAnswer,
    PredictionItems,
    Record,
    Scores,
    WrongRow,
    excerpt,
)
from model.benchmarks.readers.conll import has_documents, predicted_tags, read_sentences
from model.benchmarks.readers.examples import Example, Split, TagExample
from model.benchmarks.readers.row_reader import RowReader
from model.benchmarks.readers.rows import MalformedRow, Row, RowErrors
from model.benchmarks.requests import CharSpan, Fields, Request, as_text, describe
from model.benchmarks.scoring.entities import entities, entity_counts, entity_scores, has_entities, tag_scores, to_iob2
from model.benchmarks.scoring.metrics import Formula
from model.benchmarks.sources import SourceFiles, split_sources, train_source
from model.benchmarks.table import Benchmark
from model.common.errors import UserError, shown
from model.config.finetuning import FinetuneRecipe

_LINE_ENDINGS = (".txt", ".conll")
_SYMBOLS = frozenset("$+<=>^`|~")  # BERT's tokenizer treats them as punctuation; Unicode does not


class TagsSpec(HeadSpec):
    implementation = "model.heads.token_classification:TagsHead"
    noun = "tag"
    custom_columns = {"words": ("first", "words"), "tags": ("label", "tags"), "id": ("identity", "id")}
    metrics = ("f1", "precision", "recall")
    all_metrics = ("f1", "precision", "recall", "accuracy")
    paper_benchmark = "ner"
    ranked_by = "wrong words"

    def read(self, source: SourceFiles, errors: RowErrors, labeled: bool) -> Examples:
        if source.ending not in _LINE_ENDINGS:
            return super().read(source, errors, labeled)
        return [one for path in source.paths for one in read_sentences(path, source.row, errors)]

    def check_files(self, row: Benchmark, data_dir: Path, recipe: FinetuneRecipe) -> None:
        if not recipe.document_context:
            return
        for source in (train_source(row, data_dir), *split_sources(row, data_dir, "dev").values()):
            for path in source.paths if source.exists else ():
                if source.ending not in _LINE_ENDINGS or not has_documents(path):
                    raise UserError(
                        f"{path}: no documents, which document_context needs; begin each with a -DOCSTART- line in a "
                        f".txt or .conll file, or set document_context: false in the recipe of {row.name}"
                    )

    def read_row(self, reader: RowReader, row: Row) -> Example:
        column = reader.row.label
        words = tuple(str(word) for word in _items(reader, row, reader.row.first))
        if not words:
            raise MalformedRow(f"no words in column {reader.row.first!r}")
        if not reader.labeled and reader.field(row, column) is None:
            return TagExample(reader.id_of(row), words, ())
        tags = [reader.spell(tag) for tag in _items(reader, row, column)]
        if len(tags) != len(words):
            raise MalformedRow(f"{len(tags)} tags for {len(words)} words")
        reader.check_labels(row, tags)
        return TagExample(reader.id_of(row), words, tuple(to_iob2(tags) if has_entities(reader.row) else tags))

    def _count_labels(self, source: SourceFiles, errors: RowErrors) -> Counter[str]:
        as_classes = source.row.model_copy(update={"metrics": ("accuracy",), "labels": ()})
        examples = self.read(replace(source, row=as_classes), errors, labeled=True)
        return Counter(tag for example in examples for tag in example.tags)

    def complete_custom(self, row: Benchmark, default_metrics: bool) -> Benchmark:
        """Add the missing B- and I- tags of every type of entity, since readers convert the data to IOB2."""
        labels, metrics = row.labels, row.metrics
        odd = [label for label in labels if label != "O" and (label[:2] not in ("B-", "I-") or len(label) == 2)]
        if default_metrics and odd:
            metrics = ("accuracy",)
        if "accuracy" not in metrics and odd:
            raise UserError(
                f"metrics: {metrics[0]} counts entities, whose tags are O, B-x and I-x; found {shown(odd[0])}"
            )
        if "accuracy" in metrics and len(metrics) > 1:
            raise UserError("metrics: accuracy of words cannot be combined with the scores of entities; use one kind")
        if not odd:
            types = dict.fromkeys(label[2:] for label in labels if label != "O")
            complete = ("O", *(f"{prefix}-{entity_type}" for entity_type in types for prefix in "BI"))
            labels = labels if set(complete) == set(labels) else complete
        return row.model_copy(update={"labels": labels, "metrics": metrics})

    def predictions_in_lines(self, row: Benchmark, path: Path, gold: Split, lines: list[str]) -> PredictionItems | None:
        if lines and all(field in row.labels for field in lines[0].split()):
            return None  # the first line holds a sentence's tags rather than a word and its columns
        words, sentences = predicted_tags(path, lines)
        expected = [word for example in gold.examples for word in example.words]
        if words != expected or len(sentences) != len(gold.examples):
            place = next((n for n, pair in enumerate(zip(words, expected)) if pair[0] != pair[1]), None)
            what = f"{len(words)} words in {len(sentences)} sentences"
            if place is not None:
                what = f"word {place + 1} is {shown(words[place])}, {shown(expected[place])} in the gold file"
            right = f"{len(expected)} words and {len(gold.examples)} sentences"
            raise UserError(f"{path}: {what}; expected the {right} of {gold.path}")
        return [(f"line {number}", tags) for number, tags in sentences]

    def parse_prediction(self, row: Benchmark, where: str, value: Any, example: Any) -> Any:
        tags = value.split() if isinstance(value, str) else value
        if not isinstance(tags, list) or len(tags) != len(example.words):
            found = f"{len(tags)} tags" if isinstance(tags, list) else shown(value)
            raise UserError(f"{where}: {found} where {len(example.words)} tags were expected, one per word")
        for tag in tags:
            if tag not in row.labels:
                raise UserError(f"{where}: unknown tag {shown(tag)}; expected one of {', '.join(row.labels)}")
        return tuple(tags)

    def score(self, row: Benchmark, examples: Examples, predictions: Sequence[Any], no_answer: NoAnswer) -> Scores:
        gold = [example.tags for example in examples]
        report = {"scores": tag_scores(row, gold, predictions)}
        if has_entities(row):
            report["strict"] = entity_scores(gold, predictions, strict=True)
        return report

    def class_counts(self, row: Benchmark, records: Sequence[Record]) -> ClassCounts | None:
        """Count entities by type; without entities, words by tag."""
        right, predicted, gold = Counter[str](), Counter[str](), Counter[str]()
        for record in records:
            found, expected = (self._units(row, record[key]) for key in ("prediction", "label"))
            predicted.update(unit[0] for unit in found)
            gold.update(unit[0] for unit in expected)
            right.update(unit[0] for unit in found & expected)
        names = sorted(predicted | gold)
        return ClassCounts(names, [(right[name], predicted[name], gold[name]) for name in names])

    def _units(self, row: Benchmark, tags: Sequence[str]) -> set[tuple[str, int, int]]:
        if has_entities(row):
            return set(entities(tags))
        return {(tag, position, position + 1) for position, tag in enumerate(tags)}

    def row_counts(self, row: Benchmark, metric: str, records: Sequence[Record]) -> Any:
        count = _num_correct_words if metric == "accuracy" else entity_counts
        return [count(record["label"], record["prediction"]) for record in records]

    def formula(self, metric: str) -> Formula:
        return super().formula("precision" if metric == "accuracy" else metric)  # share of correct words

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

    def response_types(self) -> dict[str, FieldType]:
        return {"prediction": "strings", "words": "strings", "entities": "any"}

    def request(self, row: Benchmark, fields: Fields) -> Request:
        given = fields.given
        if fields.by_name is not None:
            name = next((name for name in ("words", row.first, "text") if name in fields.by_name), "text")
            given = fields.value(name)
        if isinstance(given, str):
            text = as_text(given, "text")
            spans = tuple(split_words(text))
            words = tuple(text[begin:end] for begin, end in spans)
            return Request(TagExample(fields.example_id, words, ()), fields.id, text, spans)
        if isinstance(given, Sequence):
            words = tuple(as_text(word, "words") for word in given)
            return Request(TagExample(fields.example_id, words, ()), fields.id)
        raise UserError(f"expected a text or its words, found {describe(given)}")


def _items(reader: RowReader, row: Row, column: str) -> list[Any]:
    """Read a list (JSON lines, Parquet), or split a text at spaces."""
    value = reader.field(row, column)
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, list):
        raise MalformedRow(f"expected a list in column {column!r}, found {type(value).__name__}")
    return value


def split_words(text: str) -> list[CharSpan]:
    """Split a text into words as in CoNLL-2003, and return their positions.

    Words end at white space; punctuation at either end of a word and a possessive 's become words. Punctuation inside
    words (1996-08-22, U.N.) and after initials (J.) is kept.
    """
    words: list[CharSpan] = []
    for chunk in re.finditer(r"\S+", text):
        first, last = chunk.span()
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
    """Check whether the period at the end belongs to the word, as in U.N. and J."""
    return word.endswith(".") and ("." in word[:-1].strip(".") or (len(word) == 2 and word[0].isupper()))


def _num_correct_words(gold: Sequence[str], predicted: Sequence[str]) -> tuple[int, int]:
    return sum(tag == other for tag, other in zip(gold, predicted, strict=True)), len(gold)


def _difference(words: Sequence[str], tags: Sequence[str], others: Sequence[str]) -> str:
    """List the entities of `tags` that `others` lacks; without entities, the words whose tags differ."""
    if any("-" in tag for tag in (*tags, *others)):
        found = [entity for entity in entities(tags) if entity not in set(entities(others))]
        named = [f"{entity_type} {' '.join(words[start:end])}" for entity_type, start, end in found]
    else:
        named = [f"{tag} {word}" for word, tag, other in zip(words, tags, others) if tag != other]
    return excerpt(" · ".join(named)) or "none"
