"""From a benchmark's files to what a model trains on and is judged by, whatever the benchmark's head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from model.benchmarks import spans, tags, texts
from model.benchmarks.outcome import Prepared
from model.benchmarks.recipe import FinetuneRecipe
from model.benchmarks.table import Benchmark


def prepare(benchmark: Benchmark, examples: Sequence[Any], tokenizer: Tokenizer, recipe: FinetuneRecipe) -> Prepared:
    """Features of examples, and what judges a model's outputs on them."""
    if benchmark.head == "span":
        return spans.PreparedSpans(benchmark, examples, tokenizer, recipe)
    if benchmark.head == "tags":
        return tags.PreparedTags(benchmark, examples, tokenizer, recipe)
    return texts.PreparedTexts(benchmark, examples, tokenizer, recipe)


def majority_scores(benchmark: Benchmark, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
    """Scores on `dev` of a model that gives the majority answer of `train` to everything."""
    rooms: dict[str, Any] = {"span": spans, "tags": tags}
    scores: dict[str, float] = rooms.get(benchmark.head, texts).majority_scores(benchmark, train, dev)
    return scores
