"""Sentences to be tagged (NER): a label on the first piece of each word, windows over sentences that are too
long."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from model.benchmarks.head_specs.word_tags import has_entities
from model.benchmarks.readers.examples import TagExample
from model.benchmarks.scoring.entities import entities, tag_scores
from model.benchmarks.table import Benchmark
from model.config.finetuning import FinetuneRecipe
from model.heads.evaluation import EvalResult
from model.heads.features import Features, Ints, Ragged, assemble
from model.heads.windows import owners, windows
from model.ops.fused_cpu import IGNORED
from model.tokenizer.wordpiece import special_ids


class PreparedTags:
    """Sentences as sequences, a row per window; a word is labelled in the window that sees it best."""

    def __init__(
        self,
        benchmark: Benchmark,
        examples: Sequence[TagExample],
        tokenizer: Tokenizer,
        recipe: FinetuneRecipe,
    ) -> None:
        self._benchmark = benchmark
        self._labels = benchmark.labels
        self._examples = examples
        special = special_ids(tokenizer)
        words = [word for example in examples for word in example.words]
        pieces, word_begins = _pieces(tokenizer, words, special.unk)
        label_of = {label: number for number, label in enumerate(benchmark.labels)}
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

    def of_words(self, outputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The logits of each word's first piece, (words, labels), all sentences' words in a row."""
        logits = np.zeros((len(self._words), outputs.shape[1]), dtype=np.float32)
        logits[self._words] = outputs[self._positions]
        return logits

    def evaluate(self, outputs: npt.NDArray[np.float32]) -> EvalResult:
        """Entity scores of the logits, (tokens, labels)."""
        best = self.of_words(outputs).argmax(axis=1)
        predicted: list[list[str]] = []
        begin = 0
        for example in self._examples:
            predicted.append([self._labels[label] for label in best[begin : begin + len(example.words)]])
            begin += len(example.words)
        gold = [example.tags for example in self._examples]
        records = [
            {"id": example.id, "words": example.words, "prediction": tags, "label": example.tags}
            for example, tags in zip(self._examples, predicted)
        ]
        if has_entities(self._benchmark):
            degenerate = any(map(entities, gold)) and not any(map(entities, predicted))
        else:
            degenerate = len(_tags_in(predicted)) == 1 and len(_tags_in(gold)) > 1
        return EvalResult(tag_scores(has_entities(self._benchmark), gold, predicted), records, degenerate)


def majority_scores(benchmark: Benchmark, train: Sequence[TagExample], dev: Sequence[TagExample]) -> dict[str, float]:
    """Scores of tagging every word O, the most frequent tag of any corpus; where tags mark no entities, with the most
    frequent tag of `train`."""
    gold = [example.tags for example in dev]
    tag = "O"
    if not has_entities(benchmark):
        tag = collections.Counter(tag for example in train for tag in example.tags).most_common(1)[0][0]
    return tag_scores(has_entities(benchmark), gold, [[tag] * len(tags) for tags in gold])


def _tags_in(sentences: Sequence[Sequence[str]]) -> set[str]:
    return {tag for tags in sentences for tag in tags}


def _pieces(tokenizer: Tokenizer, words: Sequence[str], unknown: int) -> tuple[Ragged, Ints]:
    """Pieces of all words in a row, and where each word begins, with the end of the last word after it.

    Every distinct word is encoded once. A word that normalisation leaves nothing of becomes [UNK], since
    each word needs a piece to carry its label.
    """
    distinct = list(dict.fromkeys(words))
    encodings = tokenizer.encode_batch_fast(distinct, add_special_tokens=False)
    ids = {word: encoding.ids or [unknown] for word, encoding in zip(distinct, encodings)}
    pieces = Ragged.of([ids[word] for word in words])
    return pieces, pieces.offsets


def _cut(num_words: Sequence[int], word_begins: Ints, capacity: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut sentences into windows of pieces.

    Returns the first piece and the number of pieces of each window, and for each word, in the order of its
    tokens, its first piece's position among the tokens of all sequences (each with [CLS] and [SEP]) and its
    number.
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
