"""Files of predictions in all their forms, for all benchmarks, and what is said about one that does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.stats
import seqeval.metrics
import sklearn.metrics

from model.benchmarks.custom_task import row_of
from model.benchmarks.readers.examples import Split
from model.benchmarks.scoring.score_files import diagnostic_row, read_gold, score_files
from model.benchmarks.table import BENCHMARKS, Benchmark
from model.common.errors import UserError
from tasks.sample import SampleSettings, make_sample
from tasks.sample.random_source import RandomSource


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sample world: every benchmark in its own format."""
    from tasks.sample import SMALL

    folder = tmp_path_factory.mktemp("sample") / "data"
    make_sample(folder, SampleSettings(**SMALL))
    return folder


def predictions_for(row: Benchmark, gold: Split, seed: int = 0) -> list[Any]:
    """Predictions as records hold them, more or less right."""
    dice = RandomSource(seed, row.name)

    def one(example: Any) -> Any:
        if row.head == "span":
            texts = [answer.text for answer in example.answers]
            return dice.pick([*texts, "", example.context[:20]])
        if row.head == "tags":
            return [tag if dice.chance(0.8) else dice.pick(row.labels) for tag in example.tags]
        if row.head == "regression":
            return dice.below(500) / 100
        return row.labels[example.label] if dice.chance(0.7) else dice.pick(row.labels)

    return [one(example) for example in gold.examples]


def expected(row: Benchmark, gold: Split, predictions: list[Any]) -> dict[str, float]:
    """The metrics as scikit-learn, scipy and seqeval have them."""
    if row.head == "tags":
        tags = [list(example.tags) for example in gold.examples]
        scorers = {name: getattr(seqeval.metrics, f"{name}_score") for name in row.metrics}
        return {name: 100 * scorer(tags, predictions) for name, scorer in scorers.items()}
    labels = [example.label for example in gold.examples]
    if row.head == "regression":
        both = {"pearson": scipy.stats.pearsonr, "spearman": scipy.stats.spearmanr}
        return {name: 100 * float(both[name](labels, predictions)[0]) for name in row.metrics}
    found = [row.labels.index(prediction) for prediction in predictions]
    scorers = {
        "accuracy": sklearn.metrics.accuracy_score,
        "f1": sklearn.metrics.f1_score,
        "matthews": sklearn.metrics.matthews_corrcoef,
    }
    return {name: 100 * float(scorers[name](labels, found)) for name in row.metrics}


def gold_file(row: Benchmark, data_dir: Path) -> Path:
    return data_dir / next(iter(row.dev.values()))


def records(gold: Split, predictions: list[Any]) -> str:
    lines = [{"id": example.id, "prediction": one} for example, one in zip(gold.examples, predictions)]
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_in_every_form(name: str, data_dir: Path, tmp_path: Path) -> None:
    row = BENCHMARKS[name]
    path = gold_file(row, data_dir)
    gold = read_gold(row, path)
    predictions = predictions_for(row, gold)
    ids = [example.id for example in gold.examples]
    forms = {
        "ours.jsonl": records(gold, predictions),
        "without-ids.jsonl": "".join(json.dumps({"prediction": one}) + "\n" for one in predictions),
        "by-id.json": json.dumps(dict(zip(ids, predictions))),
    }
    lines = [" ".join(one) if row.head == "tags" else str(one) for one in predictions]
    if not any("\n" in line for line in lines):
        forms["lines.txt"] = "".join(f"{line}\n" for line in lines)
        forms["windows.txt"] = "\r\n".join(lines)
    if row.head not in ("tags", "span"):
        forms["glue.tsv"] = "index\tprediction\n" + "".join(f"{n}\t{line}\n" for n, line in enumerate(lines))
        forms["shuffled.tsv"] = "id\tPrediction\n" + "".join(
            f"{i}\t{line}\n" for i, line in reversed([*zip(ids, lines)])
        )
    if row.head == "tags":
        sentences = [
            "\n".join(f"{word} X X {tag}" for word, tag in zip(example.words, tags))
            for example, tags in zip(gold.examples, predictions)
        ]
        forms["columns.txt"] = "-DOCSTART- X X O\n\n" + "\n\n".join(sentences) + "\n"
        forms["columns.tsv"] = "\n\n".join(sentence.replace(" X X ", "\t") for sentence in sentences)
    found = {}
    for form, content in forms.items():
        (tmp_path / form).write_bytes(content.encode())
        found[form] = score_files(row, path, tmp_path / form)
    first = found.pop("ours.jsonl")
    assert (first["num_rows"], first["num_missing"], first["task"]) == (len(ids), 0, name)
    assert set(row.metrics) <= set(first["scores"])
    if row.head != "span":
        assert first["scores"] == pytest.approx(expected(row, gold, predictions))
    for form, report in found.items():
        assert report == first, form


def test_the_part_of_mnli_is_that_of_the_gold_file(data_dir: Path, tmp_path: Path) -> None:
    row = BENCHMARKS["mnli"]
    lines, alone = "", {}
    for suffix, name in row.dev.items():
        gold = read_gold(row, data_dir / name)
        predictions = predictions_for(row, gold, seed=len(suffix))
        alone[suffix] = expected(row, gold, predictions)
        lines += records(gold, predictions).replace('{"id"', f'{{"part": "{suffix}", "id"')
    path = tmp_path / "predictions.jsonl"
    path.write_text(lines)
    for suffix, name in row.dev.items():
        assert score_files(row, data_dir / name, path)["scores"] == pytest.approx(alone[suffix])
    other = tmp_path / "other.tsv"
    other.write_bytes((data_dir / row.dev["matched"]).read_bytes())
    with pytest.raises(UserError, match="several parts .*; name the gold file one of dev_matched.tsv"):
        score_files(row, other, path)


def test_rows_that_have_ids_of_their_own_may_be_numbered(tmp_path: Path) -> None:
    row = BENCHMARKS["qqp"]
    gold = tmp_path / "dev.tsv"
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    gold.write_text(head + "70\t1\t2\ta\tb\t1\n0\t3\t4\tc\td\t0\n")
    (tmp_path / "numbered.tsv").write_text("index\tprediction\n0\t1\n1\t0\n")
    (tmp_path / "named.tsv").write_text("index\tprediction\n0\t0\n70\t1\n")
    for name in ("numbered.tsv", "named.tsv"):
        assert score_files(row, gold, tmp_path / name)["scores"]["accuracy"] == 100.0


def test_the_diagnostic_set_is_scored_by_matthews(tmp_path: Path) -> None:
    labels = ["entailment", "neutral", "contradiction", "entailment", "neutral", "contradiction"]
    found = ["entailment", "neutral", "entailment", "entailment", "contradiction", "contradiction"]
    gold = "Lexical Semantics\tLogic\tDomain\tPremise\tHypothesis\tLabel\n"
    (tmp_path / "diagnostic-full.tsv").write_text(gold + "".join(f"x\t\tNews\ta\tb\t{label}\n" for label in labels))
    (tmp_path / "AX.tsv").write_text("index\tprediction\n" + "".join(f"{n}\t{one}\n" for n, one in enumerate(found)))
    report = score_files(diagnostic_row(), tmp_path / "diagnostic-full.tsv", tmp_path / "AX.tsv")
    assert report["scores"]["matthews"] == pytest.approx(100 * sklearn.metrics.matthews_corrcoef(labels, found))
    assert report["task"] == "ax"


def test_gold_as_the_hub_has_it(tmp_path: Path) -> None:
    table = {"sentence": ["a", "b"], "label": [1, 0], "idx": [0, 1]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "gold.parquet")
    (tmp_path / "p.txt").write_text("1\n1\n")
    assert score_files(BENCHMARKS["sst2"], tmp_path / "gold.parquet", tmp_path / "p.txt")["scores"]["accuracy"] == 50.0


def test_a_task_of_ones_own(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "own").mkdir()
    for name in ("train", "dev"):
        (data_dir / "own" / f"{name}.csv").write_text("text,label\nx,good\ny,bad\nz,good\n")
    (data_dir / "own" / "mood.yaml").write_text(
        "head: classes\ntrain: train.csv\ndev: dev.csv\ncolumns: {first: text, label: label}\n"
    )
    row = row_of("own/mood.yaml", data_dir)
    (tmp_path / "p.txt").write_text("good\nbad\nbad\n")
    report = score_files(row, data_dir / "own" / "dev.csv", tmp_path / "p.txt")
    assert report["scores"]["accuracy"] == pytest.approx(200 / 3)


RTE = "index\tsentence1\tsentence2\tlabel\n" + "".join(f"{n}\ta\tb\tentailment\n" for n in range(3))
GOOD = {str(n): "entailment" for n in range(3)}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", "entailment\n" * 2, "p.txt: 2 predictions where .*dev.tsv has 3 rows"),
        (
            "p.txt",
            "entailment\n" * 2 + "maybe\n",
            "p.txt: line 3: unknown label 'maybe'; expected one of entailment, not",
        ),
        ("p.txt", "", "0 predictions where .* has 3 rows"),
        ("p.tsv", "index\tprediction\n0\tentailment\n", "no prediction for 2 of the 3 rows of .*dev.tsv, first '1'"),
        ("p.tsv", "index\tprediction\n0\tx\t\n", "line 2: 3 columns where 2 were expected"),
        ("p.tsv", "prediction\tindex\n", "line 1: no column before 'prediction'"),
        ("p.tsv", "index\tprediction\n0\ta\n0\tb\n", "line 3: '0' is predicted twice"),
        ("p.json", json.dumps({**GOOD, "9": "entailment"}), "'9': no row '9' in .*dev.tsv; is it the same split"),
        ("p.json", json.dumps({"a": "x", "b": "y"}), r"no row 'a' in .* \(2 such\)"),
        ("p.json", json.dumps({**GOOD, "2": None}), "p.json: '2': unknown label None"),
        ("p.json", "[1]", "expected an object from id to prediction, found list"),
        ("p.json", "{", "line 1: not JSON"),
        ("p.jsonl", '{"id": 0}\n', "line 1: expected an object with 'prediction'"),
        ("p.jsonl", "{\n", "line 1: not JSON"),
        ("none.json", None, "none.json: no such file; expected predictions"),
    ],
)
def test_predictions_that_do_not_fit(name: str, content: str | None, message: str, tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text(RTE)
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message) as error:
        score_files(BENCHMARKS["rte"], tmp_path / "dev.tsv", tmp_path / name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cat O\nsat B-XYZ\n", "line 1: unknown tag 'B-XYZ'; expected one of O, B-PER"),
        ("cat O\ndog O\n", "word 2 is 'dog', 'sat' in the gold file; expected the 2 words and 1 sentences"),
        ("cat O\n\nsat O\n", "2 words in 2 sentences; expected the 2 words and 1 sentences"),
        ("cat O\nsat\n", "line 2: 1 column where a word and its tag were expected"),
        ("O\n", "line 1: 1 tags where 2 tags were expected, one per word"),
    ],
)
def test_tags_that_do_not_fit(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "gold.txt").write_text("cat X X B-PER\nsat X X O\n")
    (tmp_path / "p.txt").write_text(content)
    with pytest.raises(UserError, match=message):
        score_files(BENCHMARKS["ner"], tmp_path / "gold.txt", tmp_path / "p.txt")


def test_strict_tags_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "gold.txt").write_text("cat X X B-PER\nsat X X O\n")
    (tmp_path / "p.txt").write_text("cat I-PER\nsat O\n")
    report = score_files(BENCHMARKS["ner"], tmp_path / "gold.txt", tmp_path / "p.txt")
    assert (report["scores"]["f1"], report["strict"]["f1"]) == (100.0, 0.0)


def test_squads_odds_have_to_be_numbers_for_every_question(tmp_path: Path) -> None:
    questions = [{"id": "q", "question": "?", "answers": []}, {"id": "r", "question": "?", "answers": []}]
    gold = {"data": [{"paragraphs": [{"context": "cat", "qas": questions}]}]}
    (tmp_path / "gold.json").write_text(json.dumps(gold))
    (tmp_path / "p.json").write_text(json.dumps({"q": "cat", "r": ""}))
    paths = [tmp_path / name for name in ("gold.json", "p.json", "odds.json")]
    for odds, message in (
        ({"q": 1}, "no prediction for 1 of the 2 rows"),
        ({"q": 1, "r": "x"}, "'r': expected a number, got 'x'"),
        ({"q": 1, "r": 2, "s": 3}, "no row 's' in"),
    ):
        paths[2].write_text(json.dumps(odds))
        with pytest.raises(UserError, match=message):
            score_files(BENCHMARKS["squad2"], *paths)
    paths[2].write_text(json.dumps({"q": 1.5, "r": -1}))
    report = score_files(BENCHMARKS["squad2"], *paths, na_threshold=1.25)
    assert (report["scores"]["exact"], report["official"]["NoAns_exact"]) == (100.0, 100.0)
    assert score_files(BENCHMARKS["squad2"], *paths[:2])["scores"] == {
        "exact": 50.0,
        "f1": 50.0,
        "no_answer_exact": 50.0,
        "no_answer_f1": 50.0,
    }
    paths[1].write_text(json.dumps({"q": "cat"}))
    with pytest.raises(UserError, match="no prediction for 1 of the 2 rows"):
        score_files(BENCHMARKS["squad2"], *paths)
    with pytest.raises(UserError, match="--na-threshold apply only to benchmarks with unanswerable questions"):
        score_files(BENCHMARKS["squad1"], *paths)


@pytest.mark.parametrize("name", ["cola", "sst2", "mrpc", "stsb", "qnli", "rte", "wnli", "qqp", "swag"])
def test_the_real_gold_files(name: str, shared: Callable[[str], Path], tmp_path: Path) -> None:
    """Beside scikit-learn and scipy, with random, mostly right and constant predictions."""
    row = BENCHMARKS[name]
    path = gold_file(row, shared("swag" if name == "swag" else "glue"))
    gold = read_gold(row, path)
    for seed in range(3):
        predictions = predictions_for(row, gold, seed)
        (tmp_path / "p.jsonl").write_text(records(gold, predictions))
        found = score_files(row, path, tmp_path / "p.jsonl")["scores"]
        assert found == pytest.approx(expected(row, gold, predictions), rel=1e-12)
    if row.head != "regression":
        constant = [row.labels[0]] * len(gold.examples)
        (tmp_path / "p.jsonl").write_text(records(gold, constant))
        found = score_files(row, path, tmp_path / "p.jsonl")["scores"]
        assert found == pytest.approx(expected(row, gold, constant))
    assert np.isfinite(list(found.values())).all()
