"""SQuAD's official scores (evaluate-v1.1.py, evaluate-v2.0.py) and the choice of v2.0's no-answer
threshold."""

from __future__ import annotations

import collections
import functools
import operator
import re
import string
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(answer: str) -> str:
    """Lower case, without punctuation (ASCII), articles and superfluous blanks."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 when the prediction equals one of the answers after normalisation, else 0."""
    normalized = normalize(prediction)
    return float(any(normalized == normalize(answer) for answer in answers))


def token_f1(prediction: str, answers: Sequence[str], empty_matches: bool) -> float:
    """The best F1 of the bags of words over the answers.

    Two answers that are empty after normalisation score 1 under v2.0's rules (`empty_matches`), 0 under
    v1.1's.
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
    """The answers that v2.0's script compares with: those with words, or the empty one where there are
    none."""
    return [answer for answer in answers if normalize(answer)] or [""]


def question_scores(prediction: str, answers: Sequence[str], unanswerable: bool) -> tuple[float, float]:
    """Exact match and F1 (0 to 1) of one question, by v2.0's rules (`unanswerable`) or v1.1's."""
    if unanswerable:
        answers = gold_answers(answers)
    return exact_match(prediction, answers), token_f1(prediction, answers, unanswerable)


def score_v1(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """v1.1: exact match and F1, 0 to 100, means over the questions."""
    exact, f1 = _per_question(predictions, answers, False)
    return {"f1": mean_v1(f1), "exact": mean_v1(exact)}


def score_v2(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """v2.0: as v1.1, and both for the questions that have an answer and for those that have none."""
    exact, f1 = _per_question(predictions, answers, True)
    has_answer = [bool(gold) for gold in answers]
    scores = {"f1": mean_v2(f1), "exact": mean_v2(exact)}
    for name, wanted in (("has_answer", True), ("no_answer", False)):
        for metric, values in (("f1", f1), ("exact", exact)):
            chosen = [value for value, has in zip(values, has_answer) if has is wanted]
            if chosen:
                scores[f"{name}_{metric}"] = mean_v2(chosen)
    return scores


def best_threshold(predictions: Sequence[str], null_odds: Sequence[float], answers: Sequence[Sequence[str]]) -> float:
    """The threshold with the best F1 when questions whose odds of having no answer exceed it are left
    unanswered.

    Differs from the official search (`squad_scripts.official_search`) in that questions of equal odds are only
    answered together, so that the threshold gives the F1 that it was chosen for. When no answer at all is best, it
    lies below all odds.
    """
    _, f1 = _per_question(predictions, answers, True)
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
    """The predictions, empty where the odds of having no answer exceed the threshold."""
    return ["" if odds > threshold else prediction for prediction, odds in zip(predictions, null_odds, strict=True)]


def mean_v1(values: Sequence[float]) -> float:
    """100 times the mean as v1.1's script sums it, one by one; Python's own sum carries more digits from 3.12 on."""
    return 100.0 * functools.reduce(operator.add, values, 0.0) / len(values)


def mean_v2(values: Sequence[float]) -> float:
    """100 times the mean as v2.0's script sums it."""
    return 100.0 * sum(values) / len(values)


def _per_question(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], unanswerable: bool
) -> tuple[list[float], list[float]]:
    pairs = [
        question_scores(prediction, gold, unanswerable) for prediction, gold in zip(predictions, answers, strict=True)
    ]
    return [exact for exact, _ in pairs], [f1 for _, f1 in pairs]
