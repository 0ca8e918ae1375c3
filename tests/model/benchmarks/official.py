"""SQuAD files with answers that are meant to break a scorer, and the official scripts that judge them.

The scripts are not part of the project: `CLOZE_OFFICIAL_SCORERS=FOLDER python -m tests.model.benchmarks.official` runs
those in FOLDER (evaluate-v1.1.py, evaluate-v2.0.py) over the cases below and records what they print in official.json,
so that a clone without them is tested against their figures all the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.sample.random_source import RandomSource

RECORDED = Path(__file__).with_name("official.json")
VARIABLE = "CLOZE_OFFICIAL_SCORERS"
SCRIPTS = {"1.1": "evaluate-v1.1.py", "2.0": "evaluate-v2.0.py"}
# Articles, punctuation, blanks of all kinds, letters with more than one form, other scripts.
TEXTS = """
the|The|a an the|A.|an.apple|a_the|the-cat|theatre|athéa|a\u0301|thé|x a|a x|an|A a|Theá|à a|\u0301a|the the
...|“the cat”|‘cat’|—|cat—dog|U.S.|us|$1,000|1000|1 000|50%|C#|'s|_|`|cat,dog|(cat)
 |\u00a0|cat\u00a0dog|cat\u2003dog|cat\u200bdog|cat\u2028dog|cat\x1cdog|cat\x85dog|\tcat\r
Étienne|E\u0301tienne|étienne|İstanbul|i\u0307stanbul|STRASSE|straße|ﬁsh|fish|x²|x2|１２|12
\u2126|\u03a9|ς|σ|\ufeffcat|ca\u00adt|😀|😀 cat|שלום|Привет Мир|東京|東京 都
cat cat dog|cat dog dog|dog cat|cat
""".strip("\n").replace("\n", "|").split("|")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A gold file, a file of predictions, and odds of there being no answer."""

    version: str
    gold: dict[str, Any]
    predictions: dict[str, str]
    na_probs: dict[str, float]
    threshold: float


def perturbed(dice: RandomSource, text: str) -> str:
    """An answer with something changed that a scorer may or may not forgive."""
    words = text.split(" ")
    changes: list[Callable[[], str]] = [
        lambda: text,
        lambda: text.upper(),
        lambda: f"the {text}",
        lambda: f"“{text}”.",
        lambda: text.replace(" ", "\u00a0"),
        lambda: unicodedata.normalize("NFD", text),
        lambda: unicodedata.normalize("NFKC", text),
        lambda: " ".join(words[:-1]),
        lambda: " ".join([*words, dice.pick(TEXTS)]),
        lambda: " ".join(dice.shuffled(words)),
        lambda: "",
        lambda: dice.pick(TEXTS),
    ]
    return dice.pick(changes)()


def answer_for(dice: RandomSource, context: str, answers: list[str]) -> str:
    """A prediction: a gold answer or something like it, a slice of the context, nothing, or a hard text."""
    if answers and dice.chance(0.6):
        return perturbed(dice, dice.pick(answers))
    if dice.chance(0.5):
        start = dice.below(len(context))
        return context[start : start + dice.between(1, 40)]
    return "" if dice.chance(0.5) else dice.pick(TEXTS)


def generated(seed: int, version: str, num_questions: int = 80) -> Case:
    """A small file of hard texts."""
    dice = RandomSource(seed, version)

    def texts(count: int) -> str:
        return " ".join(dice.pick(TEXTS) for _ in range(count))

    questions = []
    context = texts(200)
    for number in range(num_questions):
        unanswerable = version == "2.0" and dice.chance(0.4)
        answers = [{"text": texts(dice.between(1, 3)), "answer_start": 0} for _ in range(dice.between(1, 3))]
        question = {"id": f"q{number}", "question": "?", "is_impossible": unanswerable}
        questions.append({**question, "answers": [] if unanswerable else answers})
    gold = {"version": version, "data": [{"title": "t", "paragraphs": [{"context": context, "qas": questions}]}]}
    return case_of(dice, version, gold)


def case_of(dice: RandomSource, version: str, gold: dict[str, Any]) -> Case:
    """Predictions for any gold file."""
    predictions = {
        question["id"]: answer_for(dice, context, [answer["text"] for answer in question["answers"]])
        for context, question in questions_of(gold)
    }
    steps = dice.pick([1, 10, 1_000_000])  # with many ties, or none
    na_probs = {question: dice.between(-3 * steps, 3 * steps) / steps for question in dice.shuffled(list(predictions))}
    return Case(version, gold, predictions, na_probs, dice.between(-20, 20) / 10)


def questions_of(gold: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each question with its context."""
    for article in gold["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield paragraph["context"], question


def write_case(case: Case, folder: Path) -> list[str]:
    """The case's files, as arguments of an official script."""
    names = {"gold.json": case.gold, "predictions.json": case.predictions, "na_prob.json": case.na_probs}
    for name, document in names.items():
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
    arguments = [str(folder / "gold.json"), str(folder / "predictions.json")]
    if case.version == "2.0":
        arguments += ["--na-prob-file", str(folder / "na_prob.json"), "--na-prob-thresh", str(case.threshold)]
    return arguments


def official(scripts: Path, version: str, arguments: list[str]) -> dict[str, float]:
    """What the official script prints."""
    command = [sys.executable, str(scripts / SCRIPTS[version]), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def cases() -> dict[str, Case]:
    """The recorded cases by name."""
    return {f"{version}/{seed}": generated(seed, version) for version in SCRIPTS for seed in range(8)}


def main() -> None:
    """Record what the official scripts say."""
    scripts = Path(os.environ[VARIABLE])
    recorded = {}
    for name, case in cases().items():
        with tempfile.TemporaryDirectory() as folder:
            recorded[name] = official(scripts, case.version, write_case(case, Path(folder)))
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
