"""Scores beside the official ones: SQuAD's scripts, conlleval and seqeval, on hard answers and on the real gold files.

The scripts themselves run where CLOZE_OFFICIAL_SCORERS names their folder (evaluate-v1.1.py, evaluate-v2.0.py,
conlleval.pl); their recorded figures serve everywhere else.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import seqeval.metrics
from seqeval.scheme import IOB2

from model.benchmarks.scoring.entities import entity_scores
from model.benchmarks.scoring.score_files import score_files
from model.benchmarks.table import BENCHMARKS
from tasks.sample.random_source import RandomSource
from tests.model.benchmarks.official import (
    RECORDED,
    SCRIPTS,
    VARIABLE,
    Case,
    answer_for,
    case_of,
    cases,
    generated,
    official,
    questions_of,
    write_case,
)

ROWS = {"1.1": BENCHMARKS["squad1"], "2.0": BENCHMARKS["squad2"]}
NER = BENCHMARKS["ner"]


def ours(case: Case, folder: Path) -> dict[str, float]:
    """Our official report of a case that has been written to a folder."""
    odds = (folder / "na_prob.json", case.threshold) if case.version == "2.0" else (None, None)
    report = score_files(ROWS[case.version], folder / "gold.json", folder / "predictions.json", *odds)
    return report["official"]


@pytest.fixture(scope="session")
def scripts() -> Path:
    """The folder of the official scripts."""
    if VARIABLE not in os.environ:
        pytest.skip(f"{VARIABLE} names no folder with the official scripts")
    return Path(os.environ[VARIABLE])


@pytest.mark.parametrize("name", cases())
def test_equal_to_what_the_official_scripts_printed(name: str, tmp_path: Path) -> None:
    case = cases()[name]
    write_case(case, tmp_path)
    # Since Python 3.12, sum() rounds floats better than where the scripts' output was recorded.
    assert ours(case, tmp_path) == pytest.approx(json.loads(RECORDED.read_text())[name], rel=1e-14)


@pytest.mark.parametrize("version", SCRIPTS)
def test_equal_to_the_official_scripts_as_they_run(version: str, scripts: Path, tmp_path: Path) -> None:
    for seed in range(100, 130):
        case = generated(seed, version)
        arguments = write_case(case, tmp_path)
        assert ours(case, tmp_path) == official(scripts, version, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("version", SCRIPTS)
def test_equal_on_the_real_gold_files(
    version: str, scripts: Path, shared: Callable[[str], Path], tmp_path: Path
) -> None:
    gold = json.loads((shared("squad") / "squad" / f"dev-v{version}.json").read_text(encoding="utf-8"))
    assert sum(1 for _ in questions_of(gold)) > 10_000
    mixed = [case_of(RandomSource(seed, version), version, gold) for seed in range(2)]
    empty = Case(version, gold, dict.fromkeys(mixed[0].predictions, ""), mixed[0].na_probs, 0.0)
    right = {one["id"]: one["answers"][0]["text"] if one["answers"] else "" for _, one in questions_of(gold)}
    for case in (*mixed, empty, Case(version, gold, right, mixed[1].na_probs, 1.0)):
        arguments = write_case(case, tmp_path)
        assert ours(case, tmp_path) == official(scripts, version, arguments)


def test_a_question_without_a_prediction_counts_as_zero_in_v1(tmp_path: Path) -> None:
    case = generated(3, "1.1")
    kept = dict(list(case.predictions.items())[:60])
    write_case(Case("1.1", case.gold, kept, {}, 0.0), tmp_path)
    report = score_files(ROWS["1.1"], tmp_path / "gold.json", tmp_path / "predictions.json")
    assert report["num_missing"] == 20
    questions = [question for _, question in questions_of(case.gold)][:60]
    case.gold["data"][0]["paragraphs"][0]["qas"] = questions
    write_case(Case("1.1", case.gold, kept, {}, 0.0), tmp_path)
    alone = score_files(ROWS["1.1"], tmp_path / "gold.json", tmp_path / "predictions.json")
    assert report["scores"]["f1"] == pytest.approx(alone["scores"]["f1"] * 60 / 80)


def test_the_missing_too_are_as_the_script_counts_them(scripts: Path, tmp_path: Path) -> None:
    case = generated(3, "1.1")
    kept = Case("1.1", case.gold, dict(list(case.predictions.items())[:60]), {}, 0.0)
    arguments = write_case(kept, tmp_path)
    assert ours(kept, tmp_path) == official(scripts, "1.1", arguments)


@pytest.mark.parametrize("steps", [1, 1000])
def test_both_searches_of_the_threshold_are_reported(steps: int, tmp_path: Path) -> None:
    for seed in range(20):
        case, dice = generated(seed, "2.0"), RandomSource(seed, "plain")
        for _, question in questions_of(case.gold):
            if question["answers"]:
                question["answers"] = [{"text": dice.pick(["cat", "cat dog", "red"]), "answer_start": 0}]
        silent = 100 * sum(not question["answers"] for _, question in questions_of(case.gold)) / len(case.predictions)
        predictions = {question: dice.pick(["cat", "dog", "red cat", ""]) for question in case.predictions}
        odds = {question: dice.between(-3 * steps, 3 * steps) / steps for question in case.predictions}
        write_case(Case("2.0", case.gold, predictions, odds, 1.0), tmp_path)
        names = ("gold.json", "predictions.json", "na_prob.json")
        report = score_files(ROWS["2.0"], *(tmp_path / name for name in names))
        found = report["best"]["scores"]["f1"]
        assert found <= report["official"]["best_f1"] + 1e-9, "the script may stop between equal odds; ours does not"
        if len(set(odds.values())) == len(odds):
            assert found == pytest.approx(report["official"]["best_f1"])
            if found > silent:
                assert report["best"]["null_threshold"] == report["official"]["best_f1_thresh"]


def hard_tags(dice: RandomSource, gold: list[list[str]]) -> list[list[str]]:
    """Tags with beginnings lost, types changed within entities, and chance."""

    def changed(tag: str) -> str:
        if tag != "O" and dice.chance(0.15):
            return f"I-{tag[2:]}"
        if tag != "O" and dice.chance(0.1):
            return f"{tag[:2]}{dice.pick(['PER', 'ORG', 'LOC', 'MISC'])}"
        return dice.pick(NER.labels) if dice.chance(0.05) else tag

    return [[changed(tag) for tag in tags] for tags in gold]


def conlleval(scripts: Path, gold: list[list[str]], predicted: list[list[str]]) -> dict[str, int]:
    """How many phrases conlleval finds: in the gold tags, in the predicted ones, and right."""
    sentences = (
        "\n".join(f"w {one} {other}" for one, other in zip(tags, others)) for tags, others in zip(gold, predicted)
    )
    command = ["perl", str(scripts / "conlleval.pl"), "-d", " "]
    done = subprocess.run(command, input="\n\n".join(sentences) + "\n", capture_output=True, text=True, check=True)
    found = re.search(r"with (\d+) phrases; found: (\d+) phrases; correct: (\d+)", done.stdout)
    assert found is not None, done.stdout
    return dict(zip(("gold", "predicted", "correct"), map(int, found.groups())))


def generated_tags(seed: int) -> tuple[list[list[str]], list[list[str]]]:
    dice = RandomSource(seed, "tags")
    gold = [[dice.pick(NER.labels) for _ in range(dice.between(1, 25))] for _ in range(30)]
    return gold, hard_tags(dice, gold)


@pytest.mark.parametrize("seed", range(20))
def test_entities_as_seqeval_counts_them_default_and_strict(seed: int) -> None:
    gold, predicted = generated_tags(seed)
    for strict, options in ((False, {}), (True, {"mode": "strict", "scheme": IOB2})):
        scores = entity_scores(gold, predicted, strict)
        for name in ("f1", "precision", "recall"):
            expected = getattr(seqeval.metrics, f"{name}_score")(gold, predicted, zero_division=0, **options)
            assert scores[name] == pytest.approx(100 * expected)


@pytest.mark.parametrize("seed", range(10))
def test_entities_as_conlleval_counts_them(seed: int, scripts: Path) -> None:
    gold, predicted = generated_tags(seed)
    found = conlleval(scripts, gold, predicted)
    scores = entity_scores(gold, predicted)
    assert scores["precision"] == pytest.approx(100 * found["correct"] / found["predicted"])
    assert scores["recall"] == pytest.approx(100 * found["correct"] / found["gold"])


def test_answers_of_the_right_kind_come_out_of_the_generator() -> None:
    kinds: dict[str, Any] = {"empty": 0, "right": 0, "other": 0}
    dice = RandomSource(0, "kinds")
    for _ in range(500):
        answer = answer_for(dice, "the cat sat", ["cat"])
        kinds["empty" if not answer else "right" if answer == "cat" else "other"] += 1
    assert min(kinds.values()) > 20
