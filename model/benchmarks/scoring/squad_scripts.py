"""What SQuAD's official scripts print for a file of predictions: the same keys, and the same numbers to the last
digit.

Answers are given as a mapping from question to its gold texts, in the file's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from model.benchmarks.scoring.squad import mean_v1, mean_v2, question_scores

Answers = Mapping[str, Sequence[str]]
DEFAULT_THRESHOLD = 1.0  # evaluate-v2.0.py's --na-prob-thresh


def evaluate_v1(answers: Answers, predictions: Mapping[str, str]) -> dict[str, float]:
    """evaluate-v1.1.py: exact_match and f1. A question without a prediction scores 0."""
    pairs = [
        question_scores(predictions[question], gold, False) if question in predictions else (0.0, 0.0)
        for question, gold in answers.items()
    ]
    return {"exact_match": mean_v1([exact for exact, _ in pairs]), "f1": mean_v1([f1 for _, f1 in pairs])}


def evaluate_v2(
    answers: Answers,
    predictions: Mapping[str, str],
    na_probs: Mapping[str, float] | None = None,
    threshold: float = DEFAULT_THRESHOLD,
) -> dict[str, float]:
    """evaluate-v2.0.py. Every question needs a prediction: without one the script ends with an error.

    With `na_probs` (by question, in its file's order, which decides among equal ones) a question counts as
    unanswered where its number exceeds `threshold`, and the best thresholds in hindsight are added.
    """
    pairs = {question: question_scores(predictions[question], gold, True) for question, gold in answers.items()}
    raw = {name: {question: pair[column] for question, pair in pairs.items()} for column, name in enumerate(_METRICS)}
    used = {name: _thresholded(scores, answers, na_probs, threshold) for name, scores in raw.items()}
    report = _means(used, list(answers), "")
    for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
        chosen = [question for question, gold in answers.items() if bool(gold) is wanted]
        if chosen:
            report |= _means(used, chosen, prefix)
    if na_probs is not None:
        for name, scores in raw.items():
            best, best_at = official_search(scores, predictions, na_probs, answers)
            report |= {f"best_{name}": best, f"best_{name}_thresh": best_at}
    return report


def official_search(
    scores: Mapping[str, float], predictions: Mapping[str, str], na_probs: Mapping[str, float], answers: Answers
) -> tuple[float, float]:
    """The best mean of `scores` (0 to 100) over all thresholds, and that threshold, as the script searches.

    It may stop between questions of equal numbers, so that its score is not always the one that its threshold gives;
    0.0 is its threshold where answering nothing is best. `squad.best_threshold` mends both.
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


_METRICS = ("exact", "f1")  # the order of question_scores


def _thresholded(
    scores: Mapping[str, float], answers: Answers, na_probs: Mapping[str, float] | None, threshold: float
) -> dict[str, float]:
    if na_probs is None:
        na_probs = dict.fromkeys(scores, 0.0)  # which a threshold below 0 makes unanswered, as in the script
    return {
        question: float(not answers[question]) if na_probs[question] > threshold else score
        for question, score in scores.items()
    }


def _means(used: Mapping[str, Mapping[str, float]], questions: Sequence[str], prefix: str) -> dict[str, float]:
    means = {f"{prefix}{name}": mean_v2([values[one] for one in questions]) for name, values in used.items()}
    return {**means, f"{prefix}total": len(questions)}
