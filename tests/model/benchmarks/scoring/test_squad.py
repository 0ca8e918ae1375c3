"""SQuAD: the official scores on planted cases, the threshold, windows, and answers as exact slices."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tokenizers import Tokenizer
from torchmetrics.functional.text import squad as referee

from model.benchmarks.readers.examples import Answer, SpanExample
from model.benchmarks.scoring import squad_scores
from model.benchmarks.table import BENCHMARKS, Benchmark
from model.common.errors import UserError
from model.config.finetuning import FinetuneRecipe
from model.heads.features import owners, windows
from model.heads.question_answering import SpanCandidate, SpanDataset, SpanHead, n_best, possible_spans

SQUAD1, SQUAD2 = BENCHMARKS["squad1"], BENCHMARKS["squad2"]
TEXTS = [
    "",
    "the",
    "The cat",
    "cat!",
    "a  Cat",
    "l'été",
    "(Étienne)",
    "U.S. Army",
    "us army",
    "1,000",
    "1000",
    "an",
    "Ünïcode—dash",
]


def test_normalisation() -> None:
    assert squad_scores.normalize("The U.S.  Army's, an “icon”!") == "us armys “icon”"


@pytest.mark.parametrize("prediction", TEXTS)
def test_scores_agree_with_torchmetrics_copy_of_the_official_script(prediction: str) -> None:
    for answer in TEXTS:
        expected = referee(
            {"prediction_text": prediction, "id": "0"},
            {
                "answers": {"text": [answer], "answer_start": [0]},
                "context": "",
                "question": "",
                "id": "0",
                "title": "",
            },
        )
        assert 100 * squad_scores.exact_match(prediction, [answer]) == float(expected["exact_match"])
        assert 100 * squad_scores.token_f1(prediction, [answer], True) == pytest.approx(float(expected["f1"]))


def test_the_best_of_several_answers_counts() -> None:
    assert squad_scores.scores_of(["the big cat"], [["dog", "big cat", "cat"]], False) == {"f1": 100.0, "exact": 100.0}
    assert squad_scores.scores_of(["big dog"], [["big cat", "dog big cat"]], False)["f1"] == pytest.approx(80.0)


def test_empty_answers_match_under_v2_only() -> None:
    assert squad_scores.scores_of([""], [[]], True)["f1"] == 100.0
    assert squad_scores.token_f1("the", ["a"], empty_matches=False) == 0.0
    assert squad_scores.exact_match("the", ["a"]) == 1.0


def test_v2_splits_by_whether_there_is_an_answer() -> None:
    scores = squad_scores.scores_of(["cat", "dog", "x"], [["cat"], [], ["x y", "the"]], True)
    assert scores["has_answer_exact"] == 50.0
    assert scores["no_answer_f1"] == 0.0
    assert scores["exact"] == pytest.approx(100 / 3)


@pytest.mark.parametrize("seed", range(10))
def test_the_threshold_is_the_best_of_all(seed: int) -> None:
    chosen = random.Random(seed)
    answers = [[] if chosen.random() < 0.4 else ["cat dog"] for _ in range(40)]
    predictions = [chosen.choice(["cat", "cat dog", "red", ""]) for _ in range(40)]
    odds = [chosen.randrange(-6, 6) / 2 for _ in range(40)]  # with ties
    threshold = squad_scores.best_threshold(predictions, odds, answers)

    def f1_at(threshold: float) -> float:
        return squad_scores.scores_of(squad_scores.apply_threshold(predictions, odds, threshold), answers, True)["f1"]

    assert f1_at(threshold) == pytest.approx(max(f1_at(step / 4) for step in range(-28, 28)))


def test_windows_cover_everything_once_and_stride_apart() -> None:
    assert windows(10, 4, 2) == [(0, 4), (2, 4), (4, 4), (6, 4)]
    assert windows(3, 4, 2) == [(0, 3)]
    assert windows(9, 4, 99) == [(0, 4), (4, 4), (8, 1)]
    assert windows(0, 4, 2) == [(0, 0)]


def test_a_token_belongs_to_the_window_that_sees_most_around_it() -> None:
    spans = windows(11, 5, 3)
    owner = owners(11, spans)
    assert spans == [(0, 5), (3, 5), (6, 5)]
    assert owner.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]


def question(text: str, context: str, answer: str | None, start: int | None = None) -> SpanExample:
    answers = () if answer is None else (Answer(answer, context.index(answer) if start is None else start),)
    return SpanExample("q", text, context, answers)


def sharp(prepared: SpanDataset) -> np.ndarray:
    """Logits of a model that is sure of the targets: start and end of the answer, or [CLS]."""
    sequences = prepared.features.sequences
    outputs = np.zeros((len(sequences.values), 2), dtype=np.float32)
    for row, (first, last) in enumerate(prepared.features.targets):
        certainty = 10.0 if last else 5.0  # a window without the answer is less sure than the one with it
        outputs[sequences.offsets[row] + first, 0] += certainty
        outputs[sequences.offsets[row] + last, 1] += certainty
    return outputs


def test_answers_are_exact_slices_across_windows_and_unicode(tokenizer: Tokenizer) -> None:
    contexts = [
        "The cat sat. " * 8 + "PARIS, (Fränce) is  big. " + "a dog ran . " * 8,
        "Cat\u0301 \U0001f600 dog-1989, x y z",
    ]
    examples = [
        question("Which city?", contexts[0], "PARIS, (Fränce"),
        question("who", contexts[1], "dog-1989"),
        question("who " * 90, contexts[1], "x y"),
    ]
    recipe = FinetuneRecipe(max_length=32, doc_stride=8, max_query_length=12)
    prepared = SpanDataset(SQUAD1, examples, tokenizer, recipe)
    assert prepared.features.row_lengths.max() <= 32
    assert prepared.features.num_rows > 5
    outcome = prepared.evaluate(sharp(prepared))
    assert [record["prediction"] for record in outcome.predictions] == ["PARIS, (Fränce", "dog-1989", "x y"]
    assert outcome.scores == {"f1": 100.0, "exact": 100.0}


def test_sequences_and_targets_of_one_question(tokenizer: Tokenizer) -> None:
    example = question("which city ?", "the cat sat on paris", "paris")
    prepared = SpanDataset(SQUAD1, [example], tokenizer, FinetuneRecipe(max_length=10, doc_stride=2))
    features = prepared.features
    rows = [
        features.sequences.values[begin:end]
        for begin, end in zip(features.sequences.offsets, features.sequences.offsets[1:])
    ]
    assert [tokenizer.decode(row, skip_special_tokens=False) for row in rows] == [
        "[CLS] which city ? [SEP] the cat sat on [SEP]",
        "[CLS] which city ? [SEP] sat on paris [SEP]",
    ]
    assert features.boundaries.tolist() == [5, 5]
    assert features.targets.tolist() == [[0, 0], [7, 7]]


def test_answers_have_at_most_the_allowed_length_and_end_after_they_begin() -> None:
    logits = np.zeros((40, 2))
    logits[5, 0], logits[39, 1], logits[2, 1], logits[9, 1] = 9, 9, 8, 3
    for length, expected in ((30, (5, 9)), (35, (5, 39))):
        firsts, lasts = possible_spans(logits, np.arange(40), 40, 20, length)
        assert (firsts[0], lasts[0]) == expected
    assert len(possible_spans(logits, np.arange(0), 40, 20, 30)[0]) == 0


def test_the_best_logits_are_chosen_before_impossible_answers_are_dropped(tokenizer: Tokenizer) -> None:
    prepared = SpanDataset(SQUAD1, [question("which city", "cat sat", "cat")], tokenizer, FinetuneRecipe(num_best=2))
    logits = np.array([[0, 1], [9, 0], [8, 0], [0, 0], [7, 5], [6, 4], [0, 0]], dtype=np.float32)
    assert len(logits) == len(prepared.features.sequences.values)  # [CLS] which city [SEP] cat sat [SEP]
    # Both of the best starts are in the question. Filtering before choosing would answer "cat".
    assert prepared.evaluate(logits).predictions[0]["prediction"] == ""
    logits[1, 0] = 0
    assert prepared.evaluate(logits).predictions[0]["prediction"] == "cat"


def official_predictions(
    dataset: SpanDataset, outputs: np.ndarray, unanswerable: bool, n_best_size: int, max_answer_length: int
) -> tuple[dict[str, str], dict[str, list[tuple[str, float, float]]], dict[str, float]]:
    """A transcription of `write_predictions` of BERT's run_squad.py: answers, n-best lists and null odds.

    Answers are slices of the context, and the answer "empty" if there is none is "". Computes with Python's floats.
    """
    predictions, n_best_lists, odds = {}, {}, {}
    row = 0
    for number, example in enumerate(dataset._examples):
        spans, offsets = dataset._windows[number], dataset._offsets[number].tolist()
        prelim = []
        score_null, null_logits = 1000000.0, (0.0, 0.0)
        for span_index, (doc_start, length) in enumerate(spans):
            begin, stop = dataset.features.sequences.offsets[row : row + 2]
            start_logits, end_logits = outputs[begin:stop].T.tolist()
            context = int(dataset.features.boundaries[row])
            token_to_orig = {context + i: doc_start + i for i in range(length)}
            row += 1
            start_indexes = best_indexes(start_logits, n_best_size)
            end_indexes = best_indexes(end_logits, n_best_size)
            if start_logits[0] + end_logits[0] < score_null:
                score_null, null_logits = start_logits[0] + end_logits[0], (start_logits[0], end_logits[0])
            for start in start_indexes:
                for end in end_indexes:
                    if start not in token_to_orig or end not in token_to_orig:
                        continue
                    if not is_max_context(spans, span_index, token_to_orig[start]):
                        continue
                    if end < start or end - start + 1 > max_answer_length:
                        continue
                    text = example.context[offsets[token_to_orig[start]][0] : offsets[token_to_orig[end]][1]]
                    prelim.append((text, start_logits[start], end_logits[end]))
        if unanswerable:
            prelim.append(("", *null_logits))
        prelim = sorted(prelim, key=lambda x: x[1] + x[2], reverse=True)
        seen: dict[str, bool] = {}
        n_best: list[tuple[str, float, float]] = []
        for pred in prelim:
            if len(n_best) >= n_best_size:
                break
            if pred[0] and pred[0] in seen:
                continue
            seen[pred[0]] = True
            n_best.append(pred)
        if unanswerable and "" not in seen:
            n_best.append(("", *null_logits))
        if not n_best:
            n_best.append(("", 0.0, 0.0))
        best = next((entry for entry in n_best if entry[0]), None)
        predictions[example.id] = n_best[0][0] if not unanswerable else best[0] if best else ""
        odds[example.id] = score_null - best[1] - best[2] if best else 0.0
        n_best_lists[example.id] = n_best
    return predictions, n_best_lists, odds


def best_indexes(logits: list[float], n_best_size: int) -> list[int]:
    return [i for i, _ in sorted(enumerate(logits), key=lambda x: x[1], reverse=True)][:n_best_size]


def is_max_context(doc_spans: list[tuple[int, int]], cur_span_index: int, position: int) -> bool:
    best_score, best_span_index = None, None
    for span_index, (start, length) in enumerate(doc_spans):
        end = start + length - 1
        if position < start or position > end:
            continue
        score = min(position - start, end - position) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best_span_index = score, span_index
    return cur_span_index == best_span_index


@pytest.mark.parametrize("row", [SQUAD1, SQUAD2])
@pytest.mark.parametrize("quantum", [0.0, 0.5])  # 0.5 makes many ties
def test_answers_are_those_of_run_squad(row: Benchmark, quantum: float, tokenizer: Tokenizer) -> None:
    generator = np.random.default_rng(5)
    words = ["the", "cat", "dog", "sat", "ran", "on", "paris", "big", "red", ",", "."]
    examples = [
        SpanExample(
            f"q{number}", "who sat", " ".join(generator.choice(words, generator.integers(1, 90))), (Answer("x", 0),)
        )
        for number in range(60)
    ]
    recipe = FinetuneRecipe(max_length=32, doc_stride=8, num_best=6, max_answer_length=7)
    prepared = SpanDataset(row, examples, tokenizer, recipe)
    outputs = generator.normal(size=(len(prepared.features.sequences.values), 2)).astype(np.float32)
    if quantum:
        outputs = np.round(outputs / quantum) * quantum
    outcome = prepared.evaluate(outputs)
    documents = outcome.documents()
    answers, n_best_lists, odds = official_predictions(prepared, outputs, row.unanswerable, 6, 7)
    assert [record.get("best_span", record["prediction"]) for record in outcome.predictions] == [*answers.values()]
    assert len(set(answers.values())) > 30
    for name, entries in documents["nbest_predictions"].items():
        assert [entry["text"] for entry in entries] == [text for text, _, _ in n_best_lists[name]]
        logits = [(entry["start_logit"], entry["end_logit"]) for entry in entries]
        assert np.allclose(logits, [pair for _, *pair in n_best_lists[name]], atol=1e-6)
    if row.unanswerable:
        assert [record["null_odds"] for record in outcome.predictions] == pytest.approx([*odds.values()], abs=1e-6)


def test_n_best_lists_have_no_text_twice_and_always_the_answer_none() -> None:
    given = [SpanCandidate(text, 0, 0, 1.0, score) for text, score in (("a", 4.0), ("b", 3.0), ("a", 2.0), ("c", 1.0))]
    entries = n_best(iter(given), 2, None)
    assert [(entry["text"], entry["end_logit"]) for entry in entries] == [("a", 4.0), ("b", 3.0)]
    assert entries[0]["probability"] == pytest.approx(1 / (1 + np.exp(-1)), abs=1e-6)
    weak, strong = SpanCandidate("", 0, 0, -5.0, 0.0), SpanCandidate("", 0, 0, 5.0, 5.0)
    assert [entry["text"] for entry in n_best(iter(given), 2, weak)] == ["a", "b", ""]
    assert [entry["text"] for entry in n_best(iter(given), 2, strong)] == ["", "a"]
    assert [entry["text"] for entry in n_best(iter(given), 20, weak)] == ["a", "b", "c", ""]
    assert n_best(iter([]), 2, None) == [{"text": "", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]


@pytest.mark.parametrize("row", [SQUAD1, SQUAD2])
def test_official_files_agree_with_the_records(row: Benchmark, tokenizer: Tokenizer) -> None:
    context = "The cat sat. " * 8 + "PARIS, (Fränce) is big. " + "a dog ran . " * 8
    examples = [
        SpanExample(f"q{number}", "who", context, (Answer("PARIS", context.index("PARIS")),) if number % 2 else ())
        for number in range(6)
    ]
    if row is SQUAD1:
        examples = examples[1::2]
    prepared = SpanDataset(row, examples, tokenizer, FinetuneRecipe(max_length=32, doc_stride=8, num_best=5))
    outputs = np.random.default_rng(0).normal(size=(len(prepared.features.sequences.values), 2)).astype(np.float32)
    outcome = prepared.evaluate(outputs)
    documents = outcome.documents()
    assert documents["predictions"] == {record["id"]: record["prediction"] for record in outcome.predictions}
    assert ("null_odds" in documents) == row.unanswerable
    for record in outcome.predictions:
        entries = documents["nbest_predictions"][record["id"]]
        texts = [entry["text"] for entry in entries]
        assert len(set(texts)) == len(texts) and 5 <= len(texts) <= 6
        assert all(text in context for text in texts)
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1.0, abs=1e-5)
        spans = [entry for entry in entries if entry["text"]]
        best = spans[0]["start_logit"] + spans[0]["end_logit"]
        assert spans[0]["text"] == record.get("best_span", record["prediction"])
        if row.unanswerable:
            [none] = [entry for entry in entries if not entry["text"]]
            assert none["start_logit"] + none["end_logit"] - best == pytest.approx(record["null_odds"], abs=1e-5)
            assert documents["null_odds"][record["id"]] == record["null_odds"]


def test_no_answer_is_chosen_by_a_threshold_for_f1(tokenizer: Tokenizer) -> None:
    context = "the cat sat on paris"
    examples = [question("who", context, "cat"), question("which", context, None)]
    prepared = SpanDataset(SQUAD2, examples, tokenizer, FinetuneRecipe())
    outcome = prepared.evaluate(sharp(prepared))
    assert [record["prediction"] for record in outcome.predictions] == ["cat", ""]
    odds = [record["null_odds"] for record in outcome.predictions]
    assert odds[0] <= outcome.chosen["null_threshold"] < odds[1]
    assert outcome.scores["f1"] == 100.0
    silent = prepared.evaluate(np.zeros((len(prepared.features.sequences.values), 2), dtype=np.float32))
    assert 0.0 <= silent.scores["f1"] <= 100.0


def test_majority_answers() -> None:
    context = "the cat sat on paris"
    train = [question("a", context, "cat"), question("b", context, None), question("c", context, None)]
    dev = [question("d", context, None), question("e", context, "cat")]
    assert SpanHead().majority_scores(SQUAD2, train, dev)["f1"] == 50.0
    assert SpanHead().majority_scores(SQUAD1, train[:1], dev[1:])["exact"] == 100.0


def test_a_context_without_tokens_gives_no_answer(tokenizer: Tokenizer) -> None:
    example = SpanExample("q", "who", " ", (Answer("x", 0),))
    prepared = SpanDataset(SQUAD1, [example], tokenizer, FinetuneRecipe())
    assert prepared.evaluate(sharp(prepared)).predictions[0]["prediction"] == ""


def test_no_room_for_a_context_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="leaves no space for a context"):
        SpanDataset(SQUAD1, [question("who " * 20, "cat", "cat")], tokenizer, FinetuneRecipe(max_length=16))
