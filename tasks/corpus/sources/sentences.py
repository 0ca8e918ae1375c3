"""Paragraphs to sentences, by Wikimedia's sentencex."""

from __future__ import annotations

from collections.abc import Iterable

import sentencex

from tasks.corpus.sources.prose import ends_sentence, has_letter, num_words
from tasks.params.corpus import Prose

_GOES_ON = frozenset(",;:)]”»")  # what no sentence begins with


def sentences_of(paragraphs: Iterable[str], language: str, prose: Prose | None = None) -> list[str]:
    """The sentences of all paragraphs, in order; a sentence never reaches over the end of its paragraph.

    A piece without any letter ("1.", a row of asterisks) is joined to the sentence before it, or left out at the
    start of a paragraph.

    Args:
        paragraphs: tidy lines.
        language: code of the language; one that sentencex does not know is cut by its general rules.
        prose: what a paragraph must be to stay. An end without a sentence mark (a paragraph that ran into a list or a
            formula) is cut off.
    """
    sentences: list[str] = []
    for paragraph in paragraphs:
        pieces = _pieces(paragraph, language)
        if prose is not None:
            if prose.require_sentence_end and pieces and not ends_sentence(pieces[-1]):
                pieces.pop()
            if sum(map(num_words, pieces)) < prose.min_paragraph_words:
                continue
        sentences += pieces
    return sentences


def _pieces(paragraph: str, language: str) -> list[str]:
    pieces: list[str] = []
    for piece in sentencex.segment(language, paragraph):
        piece = piece.strip()
        if pieces and piece and (not has_letter(piece) or piece[0] in _GOES_ON):
            pieces[-1] += piece if piece[0] in _GOES_ON else f" {piece}"
        elif has_letter(piece):
            pieces.append(piece)
    return pieces
