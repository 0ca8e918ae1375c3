"""Files with one word per line and empty lines between sentences, as in CoNLL-2003."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from model.benchmarks.readers.examples import TagExample
from model.benchmarks.readers.row_reader import refuse_labels
from model.benchmarks.readers.rows import RowErrors, text_lines
from model.benchmarks.scoring.entities import has_entities, to_iob2
from model.benchmarks.table import Benchmark
from model.common.errors import UserError

_DOCUMENT_START = "-DOCSTART-"
_COLUMNS = ("word", "part of speech", "chunk", "entity")


def read_sentences(path: Path, row: Benchmark, errors: RowErrors) -> list[TagExample]:
    """Read sentences from a file whose lines begin with a word and end with its tag.

    Sentences are called "document-sentence", both counted from 0. Documents begin with -DOCSTART- lines; the sentences
    of a file without them have no `document`. Entities in IOB1 (the original corpus) are converted to IOB2 (most
    copies). Lines have CoNLL's four columns, or any number if the benchmark skips malformed rows.

    Raises:
        UserError: a line has the wrong number of columns, or a tag is not among the benchmark's labels.
    """
    any_number = row.skips_malformed
    labels = set(row.labels)
    examples: list[TagExample] = []
    lines = text_lines(path)
    marked = any(map(_starts_document, lines))
    document: list[tuple[str, ...]] = []  # each of its sentences refers to it while it grows
    for document_number, index, sentence in _sentences(lines):
        if index == 0:
            document = []
        words: list[str] = []
        tags: list[str] = []
        for number, fields in sentence:
            if any_number and len(fields) < 2:
                errors.malformed(path, number, "1 column where two or more were expected (word first, tag last)")
            elif not any_number and len(fields) != len(_COLUMNS):
                expected = f"{len(_COLUMNS)} were expected ({', '.join(_COLUMNS)})"
                errors.malformed(path, number, f"{len(fields)} columns where {expected}")
            elif labels and fields[-1] not in labels:
                found = {line.split()[-1] for line in lines if line.strip()}
                refuse_labels(path, number, fields[-1], row.labels, found, "tag")
            else:
                words.append(fields[0])
                tags.append(fields[-1])
        if len(words) == len(sentence):
            tags = to_iob2(tags) if has_entities(row) else tags
            place = document if marked else (), len(document)
            examples.append(TagExample(f"{document_number}-{index}", tuple(words), tuple(tags), *place))
            document.append(tuple(words))
    return examples


def has_documents(path: Path) -> bool:
    """Check whether a file marks documents."""
    return any(map(_starts_document, text_lines(path)))


def predicted_tags(path: Path, lines: Sequence[str]) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Read the words of a file of predictions, and the first line and the tags of each sentence."""
    sentences: list[tuple[int, list[str]]] = []
    words: list[str] = []
    for _, _, sentence in _sentences(lines):
        for number, fields in sentence:
            if len(fields) < 2:
                raise UserError(f"{path}: line {number}: 1 column where a word and its tag were expected")
            words.append(fields[0])
        sentences.append((sentence[0][0], [fields[-1] for _, fields in sentence]))
    return words, sentences


def _starts_document(line: str) -> bool:
    return line.split(maxsplit=1)[:1] == [_DOCUMENT_START]


def _sentences(lines: Sequence[str]) -> Iterator[tuple[int, int, list[tuple[int, list[str]]]]]:
    """Yield the document of each sentence, its place there, and its lines as (number from 1, columns)."""
    document, index = -1, 0
    sentence: list[tuple[int, list[str]]] = []
    for number, line in enumerate([*lines, ""], 1):
        fields = line.split()
        starts_document = _starts_document(line)
        if fields and not starts_document:
            sentence.append((number, fields))
            continue
        if sentence:
            yield max(document, 0), index, sentence
            index, sentence = index + 1, []
        if starts_document:
            document, index = document + 1, 0
