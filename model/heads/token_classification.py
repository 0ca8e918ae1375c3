"""The head "tags": a label on the first piece of each word, with windows over long sentences."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

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
    """Features of sentences, a row per window. Each word is labeled in the window that has most of its context."""

    def __init__(self, row: Benchmark, examples: Examples, tokenizer: Tokenizer, recipe: FinetuneRecipe) -> None:
        self._row = row
        self._examples = examples
        special = special_ids(tokenizer)
        num_words = [len(example.words) for example in examples]
        self._ends = np.cumsum(num_words, dtype=np.int64)
        pieces = _pieces(tokenizer, [word for example in examples for word in example.words], special.unk)
        bounds, self._positions = _cut(num_words, pieces.offsets, recipe.max_length - 2)
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


def _cut(num_words: Sequence[int], word_begins: Ints, capacity: int) -> tuple[Ints, Ints]:
    """Cut sentences into windows of pieces.

    Returns:
        The first piece and the number of pieces of each window, (windows, 2); and the position of the first piece of
        each word among the tokens of all sequences (with [CLS] and [SEP]), (words,).
    """
    bounds: list[Window] = []
    positions = [np.zeros(0, dtype=np.int64)]
    word, token = 0, 0
    for count in num_words:
        begin, end = int(word_begins[word]), int(word_begins[word + count])
        first_pieces = word_begins[word : word + count] - begin
        spans = windows(end - begin, capacity, max(1, capacity // 2))
        bounds += [(begin + start, length) for start, length in spans]
        starts, lengths = np.array(spans, dtype=np.int64).T
        ends = token + np.cumsum(lengths + 2)
        owner = owners(end - begin, spans)[first_pieces]
        positions.append((ends - lengths - 1 - starts)[owner] + first_pieces)
        word, token = word + count, int(ends[-1])
    return np.array(bounds, dtype=np.int64).reshape(-1, 2), np.concatenate(positions)
