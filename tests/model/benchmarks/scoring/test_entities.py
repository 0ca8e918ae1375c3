"""Entity F1 against seqeval and conlleval's planted cases; tag features and what reads them back."""

from __future__ import annotations

import random

import numpy as np
import pytest
import seqeval.metrics
from tokenizers import Tokenizer

from model.benchmarks.readers.examples import TagExample
from model.benchmarks.scoring.entities import entities, entity_scores, to_iob2
from model.benchmarks.table import BENCHMARKS
from model.config.finetuning import FinetuneRecipe
from model.heads.token_classification import TagsDataset, TagsHead
from model.ops.fused_cpu import IGNORED

NER = BENCHMARKS["ner"]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("I-PER I-PER", [("PER", 0, 2)]),  # IOB1, or a prediction without its B-
        ("B-PER I-PER B-PER O", [("PER", 0, 2), ("PER", 2, 3)]),
        ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        ("O I-ORG O I-ORG", [("ORG", 1, 2), ("ORG", 3, 4)]),
    ],
)
def test_where_entities_begin_and_end(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert entities(tags.split()) == expected


def test_iob1_becomes_iob2() -> None:
    assert to_iob2(["I-PER", "I-PER", "B-PER", "O", "I-LOC"]) == ["B-PER", "I-PER", "B-PER", "O", "B-LOC"]


@pytest.mark.parametrize("seed", range(20))
def test_scores_agree_with_seqeval_on_any_tags(seed: int) -> None:
    chosen = random.Random(seed)
    gold = [[chosen.choice(NER.labels) for _ in range(chosen.randrange(1, 30))] for _ in range(20)]
    predicted = [[tag if chosen.random() < 0.7 else chosen.choice(NER.labels) for tag in tags] for tags in gold]
    scores = entity_scores(gold, predicted)
    assert scores["f1"] == pytest.approx(100 * seqeval.metrics.f1_score(gold, predicted))
    assert scores["precision"] == pytest.approx(100 * seqeval.metrics.precision_score(gold, predicted))
    assert scores["recall"] == pytest.approx(100 * seqeval.metrics.recall_score(gold, predicted))


def test_no_predicted_entity_scores_zero() -> None:
    assert entity_scores([["B-PER"]], [["O"]]) == {"f1": 0.0, "precision": 0.0, "recall": 0.0}


def sentence(words: str, tags: str) -> TagExample:
    return TagExample("0-0", tuple(words.split()), tuple(tags.split()))


def outputs_for(prepared: TagsDataset, num_labels: int) -> np.ndarray:
    """Logits of a model that is always right, with noise where no label is."""
    targets = prepared.features.targets
    outputs = np.random.default_rng(0).normal(size=(len(targets), num_labels)).astype(np.float32)
    labelled = np.flatnonzero(targets != IGNORED)
    outputs[labelled, targets[labelled]] += 100
    return outputs


def test_labels_lie_on_first_pieces_and_words_without_pieces_become_unknown(tokenizer: Tokenizer) -> None:
    prepared = TagsDataset(NER, [sentence("Paris runs \u200b Dog", "B-LOC O O B-PER")], tokenizer, FinetuneRecipe())
    tokens = [tokenizer.id_to_token(token) for token in prepared.features.sequences.values]
    assert tokens == ["[CLS]", "paris", "[UNK]", "[UNK]", "dog", "[SEP]"]
    assert prepared.features.targets.tolist() == [
        IGNORED,
        NER.labels.index("B-LOC"),
        0,
        0,
        NER.labels.index("B-PER"),
        IGNORED,
    ]
    prepared = TagsDataset(NER, [sentence("rans (cat)", "O B-ORG")], tokenizer, FinetuneRecipe())
    tokens = [tokenizer.id_to_token(token) for token in prepared.features.sequences.values]
    assert tokens == ["[CLS]", "ran", "##s", "(", "cat", ")", "[SEP]"]
    assert [target != IGNORED for target in prepared.features.targets.tolist()] == [0, 1, 0, 1, 0, 0, 0]


def test_every_word_of_a_long_sentence_is_labelled_once_and_read_back(tokenizer: Tokenizer) -> None:
    words, tags = "the big cat rans on Paris . " * 6, "O O B-PER I-PER O B-LOC O " * 6
    examples = [sentence("a dog", "O B-PER"), sentence(words, tags), sentence("x", "O")]
    prepared = TagsDataset(NER, examples, tokenizer, FinetuneRecipe(max_length=12))
    assert prepared.features.num_rows > 6
    assert prepared.features.row_lengths.max() == 12
    assert int(np.sum(prepared.features.targets != IGNORED)) == 2 + 42 + 1
    outcome = prepared.evaluate(outputs_for(prepared, 9))
    assert outcome.scores["f1"] == 100.0
    assert [record["prediction"] for record in outcome.predictions] == [list(e.tags) for e in examples]
    assert not outcome.degenerate


def test_a_model_that_finds_no_entity_is_degenerate_and_the_majority_scores_zero(
    tokenizer: Tokenizer,
) -> None:
    examples = [sentence("a dog", "O B-PER")]
    prepared = TagsDataset(NER, examples, tokenizer, FinetuneRecipe())
    outputs = np.zeros((4, 9), dtype=np.float32)
    assert prepared.evaluate(outputs).degenerate
    assert TagsHead().majority_scores(NER, examples, examples)["f1"] == 0.0
