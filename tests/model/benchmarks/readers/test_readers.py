"""Every file format with its quirks, and what is said about a file that is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from model.benchmarks.readers.examples import Answer
from model.benchmarks.splits import read_dev, read_test, read_train
from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError


def put(data_dir: Path, name: str, text: str) -> None:
    """Write one file of a data folder."""
    (data_dir / name).parent.mkdir(parents=True, exist_ok=True)
    (data_dir / name).write_bytes(text.encode())


MNLI_COLUMNS = """index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse
sentence2_parse sentence1 sentence2 label1 gold_label"""
MNLI_HEADER = "\t".join(MNLI_COLUMNS.split())


def mnli_row(index: int, label: str) -> str:
    return "\t".join(
        [
            str(index),
            "p",
            "q",
            "fiction",
            "( a )",
            "( b )",
            "(R a)",
            "(R b)",
            "It ran.",
            "It sat.",
            label,
            label,
        ]
    )


def test_cola_has_no_header_but_its_test_file_has(tmp_path: Path) -> None:
    put(tmp_path, "glue/CoLA/train.tsv", 'gj04\t1\t\tHe said "so.\ngj04\t0\t*\tSaid he.\n')
    put(tmp_path, "glue/CoLA/test.tsv", "index\tsentence\n0\tWho sat?\n")
    examples = read_train(BENCHMARKS["cola"], tmp_path).examples
    assert [(example.first, example.second, example.label) for example in examples] == [
        ('He said "so.', None, 1),
        ("Said he.", None, 0),
    ]
    [unlabelled] = read_test(BENCHMARKS["cola"], tmp_path)[""].examples
    assert (unlabelled.id, unlabelled.first, unlabelled.label) == ("0", "Who sat?", None)


def test_mrpc_with_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    put(
        tmp_path,
        "glue/MRPC/train.tsv",
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tA " b\tC d\r\n',
    )
    [example] = read_train(BENCHMARKS["mrpc"], tmp_path).examples
    assert (example.first, example.second, example.label) == ('A " b', "C d", 1)


def test_a_line_separator_inside_a_text_does_not_break_the_row(tmp_path: Path) -> None:
    put(tmp_path, "glue/SST-2/train.tsv", "sentence\tlabel\none\u2028two\x0bthree\t1\n")
    assert read_train(BENCHMARKS["sst2"], tmp_path).examples[0].first == "one\u2028two\x0bthree"


def test_qqp_training_rows_that_are_malformed_in_the_wild_are_counted(tmp_path: Path) -> None:
    rows = [f"{number}\t1\t2\tWhy?\tHow?\t{number % 2}" for number in range(20)]
    text = "\n".join(["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", *rows, "20\t1\t2\tbroken"]) + "\n"
    put(tmp_path, "glue/QQP/train.tsv", text)
    put(tmp_path, "glue/QQP/dev.tsv", text)
    part = read_train(BENCHMARKS["qqp"], tmp_path)
    assert (len(part.examples), part.num_skipped, part.examples[3].id) == (20, 1, "3")
    with pytest.raises(UserError, match=r"dev\.tsv: line 22: 4 columns where 6 were expected"):
        read_dev(BENCHMARKS["qqp"], tmp_path)


def test_a_training_file_that_is_mostly_malformed_is_refused(tmp_path: Path) -> None:
    put(
        tmp_path,
        "glue/QQP/train.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\n" + "1\t1\t2\ta\tb\t0\n" * 2,
    )
    with pytest.raises(UserError, match="1 of 3 rows are malformed"):
        read_train(BENCHMARKS["qqp"], tmp_path)


def test_mnli_in_glues_twelve_columns_and_in_four(tmp_path: Path) -> None:
    labels = ["entailment", "neutral", "contradiction"] * 4
    rows = [mnli_row(number, label) for number, label in enumerate(labels)]
    put(tmp_path, "glue/MNLI/train.tsv", "\n".join([MNLI_HEADER, *rows, mnli_row(12, "-")]) + "\n")
    put(
        tmp_path,
        "glue/MNLI/dev_matched.tsv",
        "index\tsentence1\tsentence2\tgold_label\n9\tIt ran.\tIt sat.\tneutral\n",
    )
    train, dev = read_train(BENCHMARKS["mnli"], tmp_path), read_dev(BENCHMARKS["mnli"], tmp_path)
    assert train.num_skipped == 1
    assert [example.label for example in train.examples] == [1, 2, 0] * 4
    assert (train.examples[5].first, train.examples[5].second) == ("It ran.", "It sat.")
    assert list(dev) == ["matched"], "dev_mismatched may lack"
    assert (dev["matched"].examples[0].id, dev["matched"].examples[0].label) == ("9", 2)


def test_stsb_scores_and_one_that_is_not_a_number(tmp_path: Path) -> None:
    header = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    put(tmp_path, "glue/STS-B/train.tsv", header + "0\tg\tf\t2012\t0\tnone\tnone\tA cat.\tA dog.\t3.250\n")
    [example] = read_train(BENCHMARKS["stsb"], tmp_path).examples
    assert (example.first, example.second, example.label) == ("A cat.", "A dog.", 3.25)
    put(tmp_path, "glue/STS-B/train.tsv", header + "0\tg\tf\t2012\t0\tnone\tnone\tA cat.\tA dog.\tn/a\n")
    with pytest.raises(UserError, match=r"line 2: expected a number in column 'score', got 'n/a'"):
        read_train(BENCHMARKS["stsb"], tmp_path)


def test_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    put(tmp_path, "glue/RTE/train.tsv", "label\tsentence2\tindex\tsentence1\nentailment\tB\t5\tA\n")
    [example] = read_train(BENCHMARKS["rte"], tmp_path).examples
    assert (example.id, example.first, example.second, example.label) == ("5", "A", "B", 0)


def test_faults_name_file_row_and_what_was_found(tmp_path: Path) -> None:
    header = "index\tquestion\tsentence\tlabel\n"
    for text, message in (
        (header + "0\ta\tb\tentailment\n1\ta\tb\n", r"train\.tsv: line 3: 3 columns where 4 were expected"),
        (
            header + "0\ta\tb\tyes\n1\ta\tb\tno\n",
            r"line 2: unknown label 'yes'; expected entailment.*found: 'no', 'yes'",
        ),
        ("index\tquestion\tlabel\n", r"line 1: no column 'sentence'; expected .*, found 'index'"),
        ("", r"train\.tsv: empty"),
        (header, r"no rows to train on"),
    ):
        put(tmp_path, "glue/QNLI/train.tsv", text)
        with pytest.raises(UserError, match=message) as caught:
            read_train(BENCHMARKS["qnli"], tmp_path)
        assert "\n" not in str(caught.value)
    (tmp_path / "glue/QNLI/train.tsv").write_bytes(header.encode() + b"0\ta\t\xff\tentailment\n")
    with pytest.raises(UserError, match="line 2: not UTF-8"):
        read_train(BENCHMARKS["qnli"], tmp_path)


def test_dev_rows_without_labels_and_missing_files_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "glue/WNLI/dev.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n")
    with pytest.raises(UserError, match="no column 'label'"):
        read_dev(BENCHMARKS["wnli"], tmp_path)
    put(tmp_path, "glue/WNLI/dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t\n")
    with pytest.raises(UserError, match=r"line 2: no label"):
        read_dev(BENCHMARKS["wnli"], tmp_path)
    with pytest.raises(UserError, match=r"train\.tsv: no such file"):
        read_train(BENCHMARKS["wnli"], tmp_path)


SWAG_HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"


def test_swag_with_quoted_commas_and_line_breaks(tmp_path: Path) -> None:
    row = '7,v,0,"A. He","A cat, ""big"", sat.",He,gold,"ran, on.",sat.,walked.,"is\nin."'
    put(tmp_path, "swag/train.csv", SWAG_HEADER + row + ",2\n")
    put(tmp_path, "swag/test.csv", SWAG_HEADER.replace(",label", "") + row + "\n")
    [example] = read_train(BENCHMARKS["swag"], tmp_path).examples
    assert (example.id, example.context, example.label) == ("7", 'A cat, "big", sat.', 2)
    assert example.endings == ("He ran, on.", "He sat.", "He walked.", "He is\nin.")
    assert read_test(BENCHMARKS["swag"], tmp_path)[""].examples[0].label is None
    put(tmp_path, "swag/train.csv", SWAG_HEADER + row + '\n"open')
    with pytest.raises(UserError, match="line 3: 11 columns where 12"):
        read_train(BENCHMARKS["swag"], tmp_path)
    put(tmp_path, "swag/train.csv", SWAG_HEADER + row + ',2\n"open')
    with pytest.raises(UserError, match="line 4: unexpected end of data"):
        read_train(BENCHMARKS["swag"], tmp_path)


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2"])
def test_conll_in_both_schemes(tmp_path: Path, scheme: str) -> None:
    first = "I" if scheme == "IOB1" else "B"
    lines = [
        *("-DOCSTART- -X- -X- O", "", f"EU NNP B-NP {first}-ORG", "rejects VB B-VP O"),
        *(f"New NN I-NP {first}-LOC", "York NN I-NP I-LOC", "Paris NN I-NP B-LOC", "", ""),
        *(". . O O", "-DOCSTART- -X- O O", "", "a a a O"),
    ]
    put(tmp_path, "conll2003/train.txt", "\n".join(lines))
    examples = read_train(BENCHMARKS["ner"], tmp_path).examples
    assert [example.id for example in examples] == ["0-0", "0-1", "1-0"]
    assert examples[0].words == ("EU", "rejects", "New", "York", "Paris")
    assert examples[0].tags == ("B-ORG", "O", "B-LOC", "I-LOC", "B-LOC")


def test_conll_faults(tmp_path: Path) -> None:
    put(tmp_path, "conll2003/train.txt", "EU NNP B-NP B-ORG\nrejects O\n")
    with pytest.raises(UserError, match="line 2: 2 columns where 4 were expected"):
        read_train(BENCHMARKS["ner"], tmp_path)
    put(tmp_path, "conll2003/train.txt", "EU NNP B-NP B-PLANET\na a a O\n")
    with pytest.raises(UserError, match=r"line 1: unknown tag 'B-PLANET'; .*tags found: 'B-PLANET', 'O'"):
        read_train(BENCHMARKS["ner"], tmp_path)


def squad_file(questions: list[dict[str, object]]) -> str:
    paragraph = {"context": "Paris is in France.", "qas": questions}
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]})


def test_squad_versions_and_what_training_skips(tmp_path: Path) -> None:
    good = {"id": "a", "question": "Which?", "answers": [{"text": "France", "answer_start": 12}]}
    moved = {"id": "b", "question": "Which?", "answers": [{"text": "France", "answer_start": 3}]}
    none = {
        "id": "c",
        "question": "Who?",
        "answers": [],
        "is_impossible": True,
        "plausible_answers": [{"text": "x"}],
    }
    put(tmp_path, "squad/train-v1.1.json", squad_file([good] * 9 + [moved]))
    put(tmp_path, "squad/train-v2.0.json", squad_file([good] * 9 + [moved, none]))
    put(tmp_path, "squad/dev-v1.1.json", squad_file([good, none]))
    first, second = read_train(BENCHMARKS["squad1"], tmp_path), read_train(BENCHMARKS["squad2"], tmp_path)
    assert ([example.id for example in first.examples], first.num_skipped) == (["a"] * 9, 1)
    assert ([example.id for example in second.examples], second.num_skipped) == (["a"] * 9 + ["c"], 1)
    assert first.examples[0].answers == (Answer("France", 12),)
    assert second.examples[9].answers == ()
    with pytest.raises(UserError, match=r"data\[0\]\.paragraphs\[0\]\.qas\[1\]: .*expected v1\.1"):
        read_dev(BENCHMARKS["squad1"], tmp_path)


def test_squad_faults_say_where(tmp_path: Path) -> None:
    for text, message in (
        ('{"data": [\n{"title": ', r"line 2: not JSON"),
        ('{"data": [{"title": "t"}]}', r"data\[0\]: expected 'paragraphs' \(list\), it is missing"),
        (squad_file([{"id": "a", "question": 5, "answers": []}]), r"qas\[0\]"),
        ("[]", "expected an object"),
    ):
        put(tmp_path, "squad/dev-v1.1.json", text)
        with pytest.raises(UserError, match=message):
            read_dev(BENCHMARKS["squad1"], tmp_path)


@pytest.mark.parametrize(
    ("name", "num_train", "num_dev"),
    [
        *(("cola", 8551, 1043), ("sst2", 67349, 872), ("mrpc", 3668, 408), ("qqp", 20000, 4000)),
        *(
            ("stsb", 5749, 1500),
            ("mnli", 13598, 9815),
            ("qnli", 9999, 5463),
            ("rte", 2490, 277),
            ("wnli", 635, 71),
        ),
    ],
)
def test_real_glue(shared: Callable[[str], Path], name: str, num_train: int, num_dev: int) -> None:
    data_dir = shared("glue")
    train, dev = read_train(BENCHMARKS[name], data_dir), read_dev(BENCHMARKS[name], data_dir)
    assert (len(train.examples), train.num_skipped) == (num_train, 0)
    assert len(next(iter(dev.values())).examples) == num_dev


def test_real_squad_and_swag(shared: Callable[[str], Path]) -> None:
    data_dir = shared("squad")
    for name, num_train, num_dev in (("squad1", 30205, 10570), ("squad2", 16652, 11873)):
        assert len(read_train(BENCHMARKS[name], data_dir).examples) == num_train
        assert len(read_dev(BENCHMARKS[name], data_dir)[""].examples) == num_dev
    data_dir = shared("swag")
    assert len(read_train(BENCHMARKS["swag"], data_dir).examples) == 120
    assert len(read_dev(BENCHMARKS["swag"], data_dir)[""].examples) == 40
