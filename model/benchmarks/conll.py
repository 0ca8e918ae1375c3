"""CoNLL-2003's files: a word per line with part of speech, chunk and entity tag; blank lines between
sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from model.benchmarks.examples import Part, TagExample
from model.benchmarks.rows import read_text
from model.benchmarks.tagging import to_iob2
from model.errors import UserError

_NUM_COLUMNS = 4
_DOCUMENT_START = "-DOCSTART-"


def read(path: Path, labels: Sequence[str]) -> Part:
    """Sentences with IOB2 tags. The file may have IOB1 (as the corpus came) or IOB2 (as most copies have it).

    A sentence is named "document-sentence", both counted from 0.

    Raises:
        UserError: a line that has not four columns, or a tag that is not among `labels`.
    """
    known = set(labels)
    examples: list[TagExample] = []
    document, sentence = -1, 0
    words: list[str] = []
    tags: list[str] = []

    def end_sentence() -> None:
        nonlocal sentence
        if words:
            examples.append(TagExample(f"{max(document, 0)}-{sentence}", tuple(words), tuple(to_iob2(tags))))
            sentence += 1
        words.clear()
        tags.clear()

    for number, line in enumerate(read_text(path).split("\n"), 1):
        fields = line.split()
        if not fields:
            end_sentence()
        elif fields[0] == _DOCUMENT_START:
            end_sentence()
            document, sentence = document + 1, 0
        elif len(fields) != _NUM_COLUMNS:
            raise UserError(
                f"{path}: row {number}: {len(fields)} columns where {_NUM_COLUMNS} were expected "
                "(word, part of speech, chunk, entity)"
            )
        elif fields[-1] not in known:
            found = sorted({line.split()[-1] for line in read_text(path).split("\n") if line.strip()})
            raise UserError(
                f"{path}: row {number}: unknown tag {fields[-1]!r}; expected {', '.join(labels)}; "
                f"tags found: {', '.join(found[:20])}"
            )
        else:
            words.append(fields[0])
            tags.append(fields[-1])
    end_sentence()
    return Part(path, examples)
