"""Files with one word per line and empty lines between sentences, as in CoNLL-2003."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from model.benchmarks.readers.examples import TagExample
from model.benchmarks.readers.row_errors import RowErrors
from model.benchmarks.readers.row_reader import refuse_labels
from model.benchmarks.readers.rows import read_text
from model.benchmarks.scoring.entities import to_iob2
from model.common.errors import UserError

_DOCUMENT_START = "-DOCSTART-"


def read_sentences(
    path: Path, labels: Sequence[str] | None, errors: RowErrors, *, entities: bool, num_columns: int | None
) -> list[TagExample]:
    """Read sentences from a file whose lines begin with a word and end with its tag.

    Sentences are called "document-sentence", both counted from 0.

    Args:
        path: the file.
        labels: the tags that may occur; None for any.
        errors: collects malformed lines; their sentences are skipped if that is allowed.
        entities: whether the tags mark entities; IOB1 (the original corpus) is converted to IOB2 (most copies).
        num_columns: number of columns; None for at least two.

    Raises:
        UserError: a line has the wrong number of columns, or a tag is not among `labels`.
    """
    known = None if labels is None else set(labels)
    examples: list[TagExample] = []
    document, sentence = -1, 0
    words: list[str] = []
    tags: list[str] = []
    broken = False

    def end_sentence() -> None:
        nonlocal sentence, broken
        if words and not broken:
            found = tuple(to_iob2(tags)) if entities else tuple(tags)
            examples.append(TagExample(f"{max(document, 0)}-{sentence}", tuple(words), found))
        sentence += bool(words or broken)
        broken = False
        words.clear()
        tags.clear()

    for number, line in enumerate(read_text(path).split("\n"), 1):
        fields = line.split()
        if not fields:
            end_sentence()
        elif fields[0] == _DOCUMENT_START:
            end_sentence()
            document, sentence = document + 1, 0
        elif len(fields) != num_columns if num_columns else len(fields) < 2:
            broken = True
            errors.malformed(path, number, _wrong_columns(len(fields), num_columns))
        elif known is not None and fields[-1] not in known:
            found = {line.split()[-1] for line in read_text(path).split("\n") if line.strip()}
            refuse_labels(path, number, fields[-1], labels or (), found, "tag")
        else:
            words.append(fields[0])
            tags.append(fields[-1])
    end_sentence()
    return examples


def _wrong_columns(found: int, expected: int | None) -> str:
    if expected is None:
        return f"{found} column where two or more were expected (word first, tag last)"
    return f"{found} columns where {expected} were expected (word, part of speech, chunk, entity)"


def predicted_tags(path: Path, lines: Sequence[str]) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The words of a file of predictions, and for each sentence its first line and its tags.

    Raises:
        UserError: a line has no tag.
    """
    sentences: list[tuple[int, list[str]]] = []
    words: list[str] = []
    inside = False
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields or fields[0] == _DOCUMENT_START:
            inside = False
            continue
        if len(fields) < 2:
            raise UserError(f"{path}: row {number}: 1 column where a word and its tag were expected")
        if not inside:
            sentences.append((number, []))
            inside = True
        sentences[-1][1].append(fields[-1])
        words.append(fields[0])
    return words, sentences
