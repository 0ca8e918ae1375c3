"""The head "tags": a label on the first piece of each word, with windows over long sentences."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from model.benchmarks.benchmark import Benchmark
from model.benchmarks.head_specs.word_tags import has_entities
from model.benchmarks.readers.examples import TagExample
from model.benchmarks.requests import Request
from model.benchmarks.scoring.entities import entities, tag_scores
from model.config.finetuning import FinetuneRecipe
from model.heads.features import Features, Ints, Ragged, assemble
from model.heads.head import (
    DIGITS,
    EvalDataset,
    EvalResult,
    Examples,
    Head,
    Outputs,
    ReadLabels,
    Responses,
    label_config,
    softmax,
)
from model.heads.windows import owners, windows
from model.ops.fused_cpu import IGNORED
from model.tokenizer.wordpiece import special_ids


class TagsDataset(EvalDataset):
    """Sentences as sequences, a row per window; each word is labeled in the window with most context around it."""

    def __init__(
        self, row: Benchmark, examples: Sequence[TagExample], tokenizer: Tokenizer, recipe: FinetuneRecipe
    ) -> None:
        self._row = row
        self._examples = examples
        special = special_ids(tokenizer)
        words = [word for example in examples for word in example.words]
        pieces, word_begins = _pieces(tokenizer, words, special.unk)
        label_of = {label: number for number, label in enumerate(row.labels)}
        tags = np.array(
            [label_of.get(tag, IGNORED) for example in examples for tag in example.tags or [""] * len(example.words)],
            dtype=np.int64,
        )
        starts, lengths, self._positions, self._words = _cut(
            [len(example.words) for example in examples], word_begins, recipe.max_length - 2
        )
        sequences, boundaries = assemble(special, (pieces, starts, lengths))
        targets = np.full(len(sequences.values), IGNORED, dtype=np.int64)
        targets[self._positions] = tags[self._words]
        self.features = Features(sequences, boundaries, targets, per_token=True)

    def of_words(self, outputs: Outputs) -> Outputs:
        """The logits of each word's first piece, (words, labels), all sentences concatenated."""
        logits = np.zeros((len(self._words), outputs.shape[1]), dtype=np.float32)
        logits[self._words] = outputs[self._positions]
        return logits

    def evaluate(self, outputs: Outputs) -> EvalResult:
        """Score logits, (tokens, labels)."""
        predicted = [tags for tags, _ in self._sentences(self.of_words(outputs))]
        gold = [example.tags for example in self._examples]
        records = [
            {"id": example.id, "words": example.words, "prediction": tags, "label": example.tags}
            for example, tags in zip(self._examples, predicted)
        ]
        if has_entities(self._row):
            degenerate = any(map(entities, gold)) and not any(map(entities, predicted))
        else:
            degenerate = len(_tags_in(predicted)) == 1 and len(_tags_in(gold)) > 1
        return EvalResult(tag_scores(has_entities(self._row), gold, predicted), records, degenerate)

    def responses(self, requests: Sequence[Request], outputs: Outputs, chosen: Mapping[str, float]) -> Responses:
        logits = self.of_words(outputs)
        probabilities = softmax(logits).max(axis=1) if len(logits) else np.zeros(0)
        found = []
        for request, (tags, begin) in zip(requests, self._sentences(logits)):
            response: dict[str, Any] = {"prediction": tags, "words": list(request.example.words)}
            if has_entities(self._row):
                response["entities"] = [
                    {
                        "text": request.text[request.word_spans[first][0] : request.word_spans[end - 1][1]],
                        "type": entity_type,
                        "start": request.word_spans[first][0],
                        "end": request.word_spans[end - 1][1],
                        "score": round(float(probabilities[begin + first : begin + end].mean()), DIGITS),
                    }
                    for entity_type, first, end in entities(tags)
                ]
            found.append(response)
        return found

    def _sentences(self, logits: Outputs) -> list[tuple[list[str], int]]:
        """The predicted tags of each sentence, and the number of its first word."""
        best = logits.argmax(axis=1)
        found, begin = [], 0
        for example in self._examples:
            tags = [self._row.labels[label] for label in best[begin : begin + len(example.words)]]
            found.append((tags, begin))
            begin += len(example.words)
        return found


class TagsHead(Head):
    """A label for each word; cross-entropy over the labeled words."""

    transformers_class = "BertForTokenClassification"
    peft_task_type = "TOKEN_CLS"
    reads_tokens = True

    def prepare(self, row: Benchmark, examples: Examples, tokenizer: Tokenizer, recipe: FinetuneRecipe) -> EvalDataset:
        return TagsDataset(row, examples, tokenizer, recipe)

    def majority_scores(self, row: Benchmark, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
        """Scores of tagging every word O; if the tags mark no entities, with the most frequent tag of `train`."""
        gold = [example.tags for example in dev]
        tag = "O"
        if not has_entities(row):
            tag = collections.Counter(tag for example in train for tag in example.tags).most_common(1)[0][0]
        return tag_scores(has_entities(row), gold, [[tag] * len(tags) for tags in gold])

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def transformers_config(self, row: Benchmark) -> dict[str, Any]:
        return label_config(row.labels)

    def from_transformers(self, row: Benchmark, num_outputs: int, read_labels: ReadLabels) -> Benchmark:
        return row.model_copy(update={"labels": read_labels()})


def _tags_in(sentences: Sequence[Sequence[str]]) -> set[str]:
    return {tag for tags in sentences for tag in tags}


def _pieces(tokenizer: Tokenizer, words: Sequence[str], unknown: int) -> tuple[Ragged, Ints]:
    """Pieces of all words concatenated, and the offset of each word, followed by the end of the last one.

    Every distinct word is encoded once. A word that normalization deletes becomes [UNK], since each word needs a piece
    to carry its label.
    """
    distinct = list(dict.fromkeys(words))
    encodings = tokenizer.encode_batch_fast(distinct, add_special_tokens=False)
    ids = {word: encoding.ids or [unknown] for word, encoding in zip(distinct, encodings)}
    pieces = Ragged.of([ids[word] for word in words])
    return pieces, pieces.offsets


def _cut(num_words: Sequence[int], word_begins: Ints, capacity: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut sentences into windows of pieces.

    Returns:
        The first piece and the number of pieces of each window; and for each word, in token order, the position of its
        first piece among the tokens of all sequences (with [CLS] and [SEP]), and its number.
    """
    starts: list[int] = []
    lengths: list[int] = []
    positions: list[Ints] = []
    words: list[Ints] = []
    word, token = 0, 0
    for count in num_words:
        begin, end = int(word_begins[word]), int(word_begins[word + count])
        first_pieces = word_begins[word : word + count] - begin
        spans = windows(end - begin, capacity, max(1, capacity // 2))
        owner = owners(end - begin, spans)[first_pieces]
        for number, (start, length) in enumerate(spans):
            mine = np.flatnonzero(owner == number)
            positions.append(token + 1 + first_pieces[mine] - start)
            words.append(word + mine)
            starts.append(begin + start)
            lengths.append(length)
            token += length + 2
        word += count
    empty = np.zeros(0, dtype=np.int64)
    return (
        np.array(starts, dtype=np.int64),
        np.array(lengths, dtype=np.int64),
        np.concatenate([empty, *positions]),
        np.concatenate([empty, *words]),
    )
