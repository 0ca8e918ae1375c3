"""The head "tags": a label on the first piece of each word, with windows over long sentences."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from model.benchmarks.requests import CharSpan, Request
from model.benchmarks.scoring.entities import entities, has_entities, tag_scores
from model.benchmarks.table import Benchmark
from model.config.finetuning import Batches, FinetuneRecipe
from model.heads.features import Features, Ints, Ragged, Window, assemble, owners, windows
from model.heads.head import DIGITS, EvalDataset, EvalResult, Examples, Head, Outputs, ReadLabels, Responses, softmax
from model.ops.fused_cpu import IGNORED
from model.tokenizer.wordpiece import special_ids


class TagsDataset(EvalDataset):
    """Features of sentences, a row per window. Each word is labeled in the window that has most of its context.

    With `document_context` in the recipe, windows extend into the sentences around it in its document, whose words
    have no labels. Examples without a document, as in requests, have no such context.
    """

    def __init__(self, row: Benchmark, examples: Examples, tokenizer: Tokenizer, recipe: FinetuneRecipe) -> None:
        self._row = row
        self._examples = examples
        special = special_ids(tokenizer)
        self._ends = np.cumsum([len(example.words) for example in examples], dtype=np.int64)
        words, places = _places(examples, recipe.document_context)
        pieces = _pieces(tokenizer, words, special.unk)
        bounds, self._positions = _cut(places, pieces.offsets, recipe.max_length - 2)
        sequences, boundaries = assemble(special, (pieces, bounds[:, 0], bounds[:, 1]))
        label_of = {label: number for number, label in enumerate(row.labels)}
        tags = [tag for example in examples for tag in example.tags or [""] * len(example.words)]
        targets = np.full(len(sequences.values), IGNORED, dtype=np.int64)
        targets[self._positions] = [label_of.get(tag, IGNORED) for tag in tags]
        self.features = Features(sequences, boundaries, targets, per_token=True)

    def evaluate(self, outputs: Outputs, chosen: Mapping[str, float] | None = None) -> EvalResult:
        """Score logits, (tokens, labels)."""
        predicted = self._tags(outputs[self._positions])
        gold = [example.tags for example in self._examples]
        records = [
            {"id": example.id, "words": example.words, "prediction": tags, "label": example.tags}
            for example, tags in zip(self._examples, predicted)
        ]
        if has_entities(self._row):
            degenerate = any(map(entities, gold)) and not any(map(entities, predicted))
        else:
            degenerate = len(set().union(*predicted)) == 1 and len(set().union(*gold)) > 1
        return EvalResult(tag_scores(self._row, gold, predicted), records, degenerate)

    def responses(self, requests: Sequence[Request], outputs: Outputs, chosen: Mapping[str, float]) -> Responses:
        logits = outputs[self._positions]
        probabilities = np.split(softmax(logits).max(axis=1), self._ends)
        found = []
        for request, tags, scores in zip(requests, self._tags(logits), probabilities):
            words = request.example.words
            text, spans = (request.text, request.word_spans) if request.word_spans else _joined(words)
            response: dict[str, Any] = {"prediction": tags, "words": list(words)}
            if has_entities(self._row):
                response["entities"] = [
                    {
                        "text": text[spans[first][0] : spans[end - 1][1]],
                        "type": entity_type,
                        "start": spans[first][0],
                        "end": spans[end - 1][1],
                        "score": round(float(scores[first:end].mean()), DIGITS),
                    }
                    for entity_type, first, end in entities(tags)
                ]
            found.append(response)
        return found

    def _tags(self, logits: Outputs) -> list[list[str]]:
        """Choose the best tags of each sentence from the logits of all words, (words, labels)."""
        sentences = np.split(logits.argmax(axis=1), self._ends)[:-1]  # the part after the last sentence is empty
        return [[self._row.labels[label] for label in sentence] for sentence in sentences]


class TagsHead(Head):
    """Predicts a label for each word. The loss is cross-entropy over the labeled words."""

    dataset = TagsDataset
    transformers_class = "BertForTokenClassification"
    peft_task_type = "TOKEN_CLS"
    reads_tokens = True
    batches: Batches = "length"

    def majority_scores(self, row: Benchmark, train: Examples, dev: Examples) -> dict[str, float]:
        """Score the tag O for every word, or the most frequent tag of `train` if the tags mark no entities."""
        gold = [example.tags for example in dev]
        tag = "O"
        if not has_entities(row):
            tag = collections.Counter(tag for example in train for tag in example.tags).most_common(1)[0][0]
        return tag_scores(row, gold, [[tag] * len(tags) for tags in gold])

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def from_transformers(self, row: Benchmark, num_outputs: int, read_labels: ReadLabels) -> Benchmark:
        return row.model_copy(update={"labels": read_labels()})


def _joined(words: Sequence[str]) -> tuple[str, Sequence[CharSpan]]:
    """Join words with spaces; also returns the position of each word."""
    ends = itertools.accumulate(len(word) + 1 for word in words)
    return " ".join(words), [(end - 1 - len(word), end - 1) for word, end in zip(words, ends)]


def _pieces(tokenizer: Tokenizer, words: Sequence[str], unknown: int) -> Ragged:
    """Tokenize each word into pieces. Every distinct word is encoded once.

    A word that normalization deletes becomes [UNK], because every word needs a piece for its label.
    """
    distinct = list(dict.fromkeys(words))
    encodings = tokenizer.encode_batch_fast(distinct, add_special_tokens=False)
    ids = {word: encoding.ids or [unknown] for word, encoding in zip(distinct, encodings)}
    return Ragged.of([ids[word] for word in words])


class _Place(NamedTuple):
    """A sentence and its document, as ranges of words: `begin` to `end` of `document_begin` to `document_end`."""

    begin: int
    end: int
    document_begin: int
    document_end: int


def _places(examples: Examples, document_context: bool) -> tuple[list[str], list[_Place]]:
    """Return the words of all documents, each once, and the place of each example in them.

    Without `document_context`, each sentence is its own document.
    """
    words: list[str] = []
    places: list[_Place] = []
    found: dict[int, tuple[Sequence[Sequence[str]], Ints]] = {}  # the document and the first word of each sentence
    for example in examples:
        sentences, index = (example.words,), 0
        if document_context and example.document:
            sentences, index = example.document, example.index
        if id(sentences) not in found:
            begins = len(words) + np.cumsum([0, *map(len, sentences)])
            found[id(sentences)] = sentences, begins
            words += itertools.chain(*sentences)
        begins = found[id(sentences)][1]
        places.append(_Place(begins[index], begins[index + 1], begins[0], begins[-1]))
    return words, places


def _cut(places: Sequence[_Place], word_begins: Ints, capacity: int) -> tuple[Ints, Ints]:
    """Cut sentences into windows of pieces. A window with space left extends into the document on both sides.

    Returns:
        The first piece and the number of pieces of each window, (windows, 2); and the position of the first piece of
        each word among the tokens of all sequences (with [CLS] and [SEP]), (words,).
    """
    bounds: list[Window] = []
    positions = [np.zeros(0, dtype=np.int64)]
    token = 0
    for place in places:
        begin, end = int(word_begins[place.begin]), int(word_begins[place.end])
        first_pieces = word_begins[place.begin : place.end] - begin
        spans = windows(end - begin, capacity, max(1, capacity // 2))
        if len(spans) == 1:
            start, stop = _with_context(place, word_begins, capacity)
            spans = [(start - begin, stop - start)]
        bounds += [(begin + start, length) for start, length in spans]
        starts, lengths = np.array(spans, dtype=np.int64).T
        ends = token + np.cumsum(lengths + 2)
        owner = owners(end - begin, spans)[first_pieces]
        positions.append((ends - lengths - 1 - starts)[owner] + first_pieces)
        token = int(ends[-1])
    return np.array(bounds, dtype=np.int64).reshape(-1, 2), np.concatenate(positions)


def _with_context(place: _Place, word_begins: Ints, capacity: int) -> Window:
    """Extend a sentence by as many whole words of its document as fit, equally on both sides where it has them.

    Returns:
        The first piece, and the end.
    """
    begin, end, first, last = (int(word_begins[word]) for word in place)
    spare = capacity - (end - begin)
    left = min(begin - first, max(spare // 2, spare - (last - end)))
    right = min(last - end, spare - left)
    start = word_begins[np.searchsorted(word_begins, begin - left)]
    stop = word_begins[np.searchsorted(word_begins, end + right, side="right") - 1]
    return int(start), int(stop)
