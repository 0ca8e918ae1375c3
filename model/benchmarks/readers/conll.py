"""Files with a word per line (CoNLL-2003's, and tasks of one's own); blank lines between sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from model.benchmarks.readers.examples import Part, TagExample
from model.benchmarks.readers.labels import refuse_labels
from model.benchmarks.readers.row_faults import Faults
from model.benchmarks.readers.rows import read_text
from model.benchmarks.scoring.entities import to_iob2

_NUM_COLUMNS = 4
_DOCUMENT_START = "-DOCSTART-"


def read(path: Path, labels: Sequence[str]) -> Part:
    """Sentences of CoNLL-2003 with IOB2 tags: word, part of speech, chunk and entity tag in each line. The file may
    have IOB1 (as the corpus came) or IOB2 (as most copies have it).

    A sentence is named "document-sentence", both counted from 0.

    Raises:
        UserError: a line that has not four columns, or a tag that is not among `labels`.
    """
    return Part(path, read_sentences(path, labels, Faults(skips=False), entities=True, num_columns=_NUM_COLUMNS))


def read_sentences(
    path: Path, labels: Sequence[str] | None, faults: Faults, *, entities: bool, num_columns: int | None
) -> list[TagExample]:
    """Sentences of a file with the word first and the tag last in each line.

    Args:
        path: the file.
        labels: the tags that may occur; None for any.
        faults: hears of lines that are malformed; their sentences are left out where that is allowed.
        entities: whether the tags mark entities, in IOB1 or IOB2, and are brought to IOB2.
        num_columns: how many columns a line has; None for at least two.

    Raises:
        UserError: a line has another number of columns, or a tag is not among `labels`.
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
            faults.malformed(path, number, _columns_fault(len(fields), num_columns))
        elif known is not None and fields[-1] not in known:
            found = {line.split()[-1] for line in read_text(path).split("\n") if line.strip()}
            refuse_labels(path, number, fields[-1], labels or (), found, "tag")
        else:
            words.append(fields[0])
            tags.append(fields[-1])
    end_sentence()
    return examples


def _columns_fault(found: int, expected: int | None) -> str:
    if expected is None:
        return f"{found} column where two or more were expected (word first, tag last)"
    return f"{found} columns where {expected} were expected (word, part of speech, chunk, entity)"
