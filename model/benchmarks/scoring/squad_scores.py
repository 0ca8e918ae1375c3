"""SQuAD's official scores (evaluate-v1.1.py, evaluate-v2.0.py), and the search for the no-answer threshold of v2.0."""

from __future__ import annotations

import collections
import functools
import operator
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

_PREFIXES = {"": "", "HasAns_": "has_answer_", "NoAns_": "no_answer_"}
_OUR_NAMES = {f"{theirs}{name}": f"{ours}{name}" for theirs, ours in _PREFIXES.items() for name in ("exact", "f1")}
_OUR_NAMES["exact_match"] = "exact"  # of v1.1
Answers = Mapping[Any, Sequence[str]]  # by question
DEFAULT_THRESHOLD = 1.0  # evaluate-v2.0.py's --na-prob-thresh

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(answer: str) -> str:
    """Lower-case an answer and remove ASCII punctuation, articles and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if the prediction equals one of the answers after normalization, else 0."""
    normalized = normalize(prediction)
    return float(any(normalized == normalize(answer) for answer in answers))


def token_f1(prediction: str, answers: Sequence[str], empty_matches: bool) -> float:
    """Compute the bag-of-words F1 with the best-matching answer.

    Two texts without words score 1 under v2.0's rules (`empty_matches`), 0 under v1.1's.
    """
    return max(_f1(normalize(prediction).split(), normalize(answer).split(), empty_matches) for answer in answers)


def _f1(predicted: list[str], gold: list[str], empty_matches: bool) -> float:
    if empty_matches and (not predicted or not gold):
        return float(predicted == gold)
    num_same = sum((collections.Counter(predicted) & collections.Counter(gold)).values())
    if num_same == 0:
        return 0.0
    precision, recall = num_same / len(predicted), num_same / len(gold)
    return 2 * precision * recall / (precision + recall)


def gold_answers(answers: Sequence[str]) -> list[str]:
    """Return the answers that v2.0's script uses: those that contain words, or "" if there are none."""
    return [answer for answer in answers if normalize(answer)] or [""]


def question_scores(prediction: str, answers: Sequence[str], unanswerable: bool) -> tuple[float, float]:
    """Compute exact match and F1 (0 to 1) of one question, by v2.0's rules (`unanswerable`) or v1.1's."""
    if unanswerable:
        answers = gold_answers(answers)
    return exact_match(prediction, answers), token_f1(prediction, answers, unanswerable)


def scores_of(predictions: Sequence[str], answers: Sequence[Sequence[str]], unanswerable: bool) -> dict[str, float]:
    """Compute the official scores, 0 to 100, by v2.0's rules (`unanswerable`) or v1.1's, under the job's names."""
    given, gold = dict(enumerate(predictions)), dict(enumerate(answers))
    assert len(given) == len(gold), "a prediction for each question"
    return by_our_names(evaluate_v2(gold, given) if unanswerable else evaluate_v1(gold, given))


def best_threshold(predictions: Sequence[str], null_odds: Sequence[float], answers: Sequence[Sequence[str]]) -> float:
    """Find the threshold with the best F1 if questions with higher no-answer odds are left unanswered.

    Unlike the official search, this one treats questions with equal odds together, so the threshold reproduces the F1
    it was chosen for. If answering nothing is best, the threshold is below all odds.
    """
    f1 = [question_scores(*pair, True)[1] for pair in zip(predictions, answers, strict=True)]
    order = sorted(range(len(predictions)), key=lambda question: null_odds[question])
    current = best = float(sum(not gold for gold in answers))
    threshold = (null_odds[order[0]] if order else 0.0) - 1.0
    for rank, question in enumerate(order):
        if answers[question]:
            current += f1[question]
        else:
            current -= float(bool(predictions[question]))
        last_of_its_odds = rank + 1 == len(order) or null_odds[order[rank + 1]] > null_odds[question]
        if last_of_its_odds and current > best:
            best, threshold = current, null_odds[question]
    return threshold


def apply_threshold(predictions: Sequence[str], null_odds: Sequence[float], threshold: float) -> list[str]:
    """Replace the predictions whose no-answer odds exceed the threshold with ""."""
    return ["" if odds > threshold else prediction for prediction, odds in zip(predictions, null_odds, strict=True)]


def evaluate_v1(answers: Answers, predictions: Mapping[Any, str]) -> dict[str, float]:
    """Score like evaluate-v1.1.py: exact_match and f1. A question without a prediction scores 0."""
    pairs = [
        question_scores(predictions[question], gold, False) if question in predictions else (0.0, 0.0)
        for question, gold in answers.items()
    ]
    # Python's `sum` is more precise than the script's from 3.12 on.
    exact, f1 = (functools.reduce(operator.add, column, 0.0) for column in zip(*pairs))
    return {"exact_match": 100.0 * exact / len(pairs), "f1": 100.0 * f1 / len(pairs)}


def evaluate_v2(
    answers: Answers,
    predictions: Mapping[Any, str],
    na_probs: Mapping[Any, float] | None = None,
    threshold: float = DEFAULT_THRESHOLD,
) -> dict[str, float]:
    """Score like evaluate-v2.0.py, which requires a prediction for every question.

    With `na_probs` (by question; their order breaks ties), a question counts as unanswered if its value exceeds
    `threshold`, and the result contains the best thresholds in hindsight.
    """
    pairs = {question: question_scores(predictions[question], gold, True) for question, gold in answers.items()}
    scores = {"exact": {question: exact for question, (exact, _) in pairs.items()}}
    scores["f1"] = {question: f1 for question, (_, f1) in pairs.items()}
    # Without `na_probs`, a threshold below 0 makes all questions unanswered, as in the script.
    odds = dict.fromkeys(answers, 0.0) if na_probs is None else na_probs
    answered = [question for question, gold in answers.items() if gold]
    unanswered = [question for question, gold in answers.items() if not gold]
    report: dict[str, float] = {}
    for prefix, questions in (("", list(answers)), ("HasAns_", answered), ("NoAns_", unanswered)):
        if not questions:
            continue
        for name, values in scores.items():
            used = [float(not answers[one]) if odds[one] > threshold else values[one] for one in questions]
            report[f"{prefix}{name}"] = 100.0 * sum(used) / len(used)
        report[f"{prefix}total"] = len(questions)
    if na_probs is not None:
        for name, values in scores.items():
            best, best_at = _official_search(values, predictions, na_probs, answers)
            report |= {f"best_{name}": best, f"best_{name}_thresh": best_at}
    return report


def _official_search(
    scores: Mapping[Any, float], predictions: Mapping[Any, str], na_probs: Mapping[Any, float], answers: Answers
) -> tuple[float, float]:
    """Find the best mean of `scores` (0 to 100) over all thresholds, and its threshold, as the script does.

    The search may stop between questions with equal values, so the threshold does not always reproduce the score; if
    answering nothing is best, it returns the threshold 0.0. `best_threshold` avoids both.
    """
    current = best = float(sum(not gold for gold in answers.values()))
    threshold = 0.0
    for question in sorted(na_probs, key=lambda question: na_probs[question]):
        if question not in scores:
            continue
        if answers[question]:
            current += scores[question]
        elif predictions[question]:
            current -= 1.0
        if current > best:
            best, threshold = current, na_probs[question]
    return 100.0 * best / len(scores), threshold


def by_our_names(official: Mapping[str, float]) -> dict[str, float]:
    return {_OUR_NAMES[name]: value for name, value in official.items() if name in _OUR_NAMES}
