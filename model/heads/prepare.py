"""From a benchmark's files to what a model trains on and is judged by, whatever the benchmark's head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from model.benchmarks.table import Benchmark
from model.config.finetuning import FinetuneRecipe
from model.heads import question_answering, sequence_classification, token_classification
from model.heads.evaluation import EvalDataset


def prepare(benchmark: Benchmark, examples: Sequence[Any], tokenizer: Tokenizer, recipe: FinetuneRecipe) -> EvalDataset:
    """Features of examples, and what judges a model's outputs on them."""
    if benchmark.head == "span":
        return question_answering.PreparedSpans(benchmark, examples, tokenizer, recipe)
    if benchmark.head == "tags":
        return token_classification.PreparedTags(benchmark, examples, tokenizer, recipe)
    return sequence_classification.PreparedTexts(benchmark, examples, tokenizer, recipe)


def majority_scores(benchmark: Benchmark, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
    """Scores on `dev` of a model that gives the majority answer of `train` to everything."""
    rooms: dict[str, Any] = {"span": question_answering, "tags": token_classification}
    scores: dict[str, float] = rooms.get(benchmark.head, sequence_classification).majority_scores(benchmark, train, dev)
    return scores
