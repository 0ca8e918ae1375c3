"""Sequences of sentences, pairs and choices against the tokenizer's own assembly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from model.benchmarks.readers.examples import ChoiceExample, TextExample
from model.benchmarks.table import BENCHMARKS
from model.config.finetuning import FinetuneRecipe
from model.heads.features import encode, truncated_lengths
from model.heads.head import EvalDataset
from model.heads.task_model import HEADS
from model.tokenizer.wordpiece import CachedTokenizer

TEXTS = ["the cat", "", "who ran on the big red mat ?", "paris , france .", "a " * 40]


def prepare(name: str, examples: Sequence[Any], tokenizer: Tokenizer, recipe: FinetuneRecipe) -> EvalDataset:
    return HEADS[BENCHMARKS[name].head].prepare(BENCHMARKS[name], examples, tokenizer, recipe)


def majority_scores(name: str, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
    return HEADS[BENCHMARKS[name].head].majority_scores(BENCHMARKS[name], train, dev)


def rows_of(prepared: EvalDataset) -> list[list[int]]:
    sequences = prepared.features.sequences
    return [sequences.values[a:b].tolist() for a, b in zip(sequences.offsets, sequences.offsets[1:])]


def framed(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with BERT's own template, as a referee."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return copy


def test_pairs_and_sentences_are_framed_as_the_tokenizer_frames_them(tokenizer: Tokenizer) -> None:
    pairs = [(a, b) for a in TEXTS for b in TEXTS]
    examples = [TextExample(str(n), a, b, n % 2) for n, (a, b) in enumerate(pairs)]
    prepared = prepare("mrpc", examples, tokenizer, FinetuneRecipe())
    expected = framed(tokenizer).encode_batch(pairs)
    assert rows_of(prepared) == [encoding.ids for encoding in expected]
    for boundary, encoding in zip(prepared.features.boundaries, expected):
        assert encoding.type_ids == [0] * boundary + [1] * (len(encoding.ids) - boundary)
    singles = [TextExample(str(n), text, None, 0) for n, text in enumerate(TEXTS)]
    prepared = HEADS[BENCHMARKS["sst2"].head].prepare(
        BENCHMARKS["sst2"], singles, tokenizer, FinetuneRecipe(max_length=20)
    )
    referee = framed(tokenizer)
    referee.enable_truncation(20)
    assert rows_of(prepared) == [encoding.ids for encoding in referee.encode_batch(TEXTS)]


def test_the_longer_text_loses_tokens_first() -> None:
    def popped(first: int, second: int, capacity: int) -> tuple[int, int]:
        while first + second > capacity:  # _truncate_seq_pair of the paper's code
            first, second = (first - 1, second) if first > second else (first, second - 1)
        return first, second

    grid = np.array([(a, b) for a in range(25) for b in range(25)])
    for capacity in (1, 2, 7, 16, 17):
        first, second = truncated_lengths(grid[:, 0], grid[:, 1], capacity)
        assert list(zip(first.tolist(), second.tolist())) == [popped(int(a), int(b), capacity) for a, b in grid]


def test_choices_are_groups_of_four(tokenizer: Tokenizer) -> None:
    examples = [ChoiceExample(str(n), "the cat", ("ran", "sat on", "a", "walk ed"), n) for n in range(3)]
    prepared = prepare("swag", examples, tokenizer, FinetuneRecipe())
    assert (prepared.features.num_rows, prepared.features.group_size) == (3, 4)
    assert rows_of(prepared)[5] == framed(tokenizer).encode("the cat", "sat on").ids
    assert prepared.features.row_lengths.tolist() == [7, 7, 7]


def test_judging_classes_and_flagging_one_class(tokenizer: Tokenizer) -> None:
    examples = [TextExample(str(n), "a", "b", n % 2) for n in range(4)]
    prepared = prepare("mrpc", examples, tokenizer, FinetuneRecipe())
    right = prepared.evaluate(np.eye(2, dtype=np.float32)[[0, 1, 0, 1]])
    assert right.scores == {"f1": 100.0, "accuracy": 100.0}
    assert right.predictions[1]["prediction"] == right.predictions[1]["label"] == "1"
    constant = prepared.evaluate(np.eye(2, dtype=np.float32)[[1, 1, 1, 1]])
    assert constant.degenerate and not right.degenerate
    assert constant.scores == {"f1": pytest.approx(200 / 3), "accuracy": 50.0}


def test_judging_regression_and_flagging_a_constant(tokenizer: Tokenizer) -> None:
    examples = [TextExample(str(n), "a", "b", float(n)) for n in range(5)]
    prepared = prepare("stsb", examples, tokenizer, FinetuneRecipe())
    scores = np.arange(5, dtype=np.float32)[:, None]
    assert prepared.evaluate(scores**2).scores["spearman"] == pytest.approx(100.0)
    assert not prepared.evaluate(scores).degenerate
    assert prepared.evaluate(2.5 + scores / 1000).degenerate


def test_majority_answers() -> None:
    train = [TextExample("", "a", "b", label) for label in (1, 1, 0)]
    dev = [TextExample("", "a", "b", label) for label in (1, 0, 0, 0)]
    assert majority_scores("mrpc", train, dev) == {
        "f1": pytest.approx(40.0),
        "accuracy": 25.0,
    }
    assert majority_scores("cola", train, dev)["matthews"] == 0.0
    scored = [TextExample("", "a", "b", label) for label in (1.0, 4.0)]
    assert majority_scores("stsb", scored, scored) == {
        "spearman": 0.0,
        "pearson": 0.0,
    }


@pytest.mark.parametrize("texts", [TEXTS, ["mat [SEP] mat", "[MASK]"], ["paris\nmat\x00", "é ü 巴黎", "[x]"], [], [""]])
def test_compiled_tokenising_gives_the_librarys_ids(tokenizer: Tokenizer, texts: list[str]) -> None:
    CachedTokenizer(tokenizer).encode_lines(["the cat"])  # now its code is loaded, and taken
    expected = [row.ids for row in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    found = encode(tokenizer, texts)
    assert [found.values[a:b].tolist() for a, b in zip(found.offsets, found.offsets[1:])] == expected
    assert found.values.dtype == np.int32 and found.offsets.dtype == np.int64
