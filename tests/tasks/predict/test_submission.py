"""The zip for GLUE's server, against the rules of docs/submission.md."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError
from tasks.predict.submission import (
    HEADER,
    SHEETS,
    check_rows,
    check_submission,
    sheet_faults,
    sheet_text,
    write_submission,
)

# The data set's card (https://huggingface.co/datasets/nyu-mll/glue, splits `test`), written down apart from the code.
ROWS = {"CoLA": 1063, "SST-2": 1821, "MRPC": 1725, "QQP": 390965, "STS-B": 1379, "MNLI-m": 9796}
ROWS |= {"MNLI-mm": 9847, "QNLI": 5463, "RTE": 3000, "WNLI": 146, "AX": 1104}


LABELS = {"mnli": ("contradiction", "entailment", "neutral"), "stsb": ()}
LABELS |= dict.fromkeys(("qnli", "rte"), ("entailment", "not_entailment"))
LABELS |= dict.fromkeys(("cola", "sst2", "mrpc", "qqp", "wnli"), ("0", "1"))


def whole() -> dict[str, str]:
    """A right answer sheet for each."""
    answers = {"QNLI": "entailment", "RTE": "not_entailment", "MNLI-m": "neutral", "MNLI-mm": "contradiction"}
    answers |= {"AX": "entailment", "STS-B": "3.250"}
    return {
        name: "index\tprediction\n" + "".join(f"{n}\t{answers.get(name, '1')}\n" for n in range(count))
        for name, count in ROWS.items()
    }


@pytest.fixture(scope="module")
def good() -> dict[str, str]:
    return whole()


def zipped(path: Path, texts: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(name if "." in name else f"{name}.tsv", text)
    return path


def test_the_sheets_are_those_of_the_server() -> None:
    assert {sheet.name: sheet.num_rows for sheet in SHEETS} == ROWS
    for sheet in SHEETS:
        row = BENCHMARKS[sheet.benchmark]
        assert sheet.labels == LABELS[sheet.benchmark]
        assert sheet.part in row.test
        assert (row.head == "regression") == (sheet.labels == ())


def test_a_right_zip_is_accepted_and_has_equal_bytes(good: dict[str, str], tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        write_submission(tmp_path / name, good)
    assert check_submission(tmp_path / "a.zip") == []
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert sorted(archive.namelist()) == sorted(f"{name}.tsv" for name in ROWS)
        assert archive.read("WNLI.tsv") == good["WNLI"].encode()
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert (
        check_submission(zipped(tmp_path / "theirs.zip", {k: v.replace("\n", "\r\n") for k, v in good.items()})) == []
    )


@pytest.mark.parametrize(
    ("name", "before", "after", "fault"),
    [
        ("RTE", "2999\tnot_entailment\n", "", "RTE.tsv: 2999 rows where 3000 are expected"),
        ("RTE", "7\tnot_entailment\n", "", "RTE.tsv: line 9: expected index 7, found 8"),
        ("WNLI", "5\t1\n", "5\t1\n5\t1\n", "WNLI.tsv: line 8: duplicate index 5"),
        ("QNLI", "3\tentailment", "3\t1", "QNLI.tsv: line 5: label '1'; expected entailment, not_entailment"),
        ("MNLI-m", "0\tneutral", "0\tNeutral", "MNLI-m.tsv: line 2: label 'Neutral'"),
        ("CoLA", "0\t1", "0\t1.0", "CoLA.tsv: line 2: label '1.0'; expected 0, 1"),
        ("STS-B", "0\t3.250", "0\t5.001", "STS-B.tsv: line 2: score 5.001 is outside 0 to 5"),
        ("STS-B", "0\t3.250", "0\tnan", "STS-B.tsv: line 2: score nan is outside"),
        ("STS-B", "0\t3.250", "0\thigh", "STS-B.tsv: line 2: expected a number, found 'high'"),
        ("AX", "index\tprediction", "id\tlabel", "AX.tsv: line 1: expected the header"),
        ("AX", "0\tentailment", "0,entailment", "AX.tsv: line 2: expected an index, a tab and a prediction"),
        ("AX", "index\tprediction\n", "", "AX.tsv: line 1: expected the header"),
        ("WNLI", "145\t1\n", "145\t1\n\n", "WNLI.tsv: line 148: expected an index"),
    ],
)
def test_one_fault_is_found_and_named(good: dict[str, str], name: str, before: str, after: str, fault: str) -> None:
    sheet = next(sheet for sheet in SHEETS if sheet.name == name)
    assert list(sheet_faults(sheet, good[name].encode())) == []
    changed = good[name].replace(before, after, 1)
    assert changed != good[name]
    faults = [f"{name}.tsv: {one}" for one in sheet_faults(sheet, changed.encode())]
    assert any(one.startswith(fault) for one in faults), faults[:5]


def test_files_that_lack_or_lie_elsewhere(good: dict[str, str], tmp_path: Path) -> None:
    without = {name: text for name, text in good.items() if name != "AX"}
    assert check_submission(zipped(tmp_path / "a.zip", without)) == ["AX.tsv: missing"]
    assert check_submission(zipped(tmp_path / "b.zip", without), partial=True) == []
    small = {name: text for name, text in good.items() if name != "QQP"}
    faults = check_submission(zipped(tmp_path / "c.zip", {**small, "glue/QQP.tsv": "", "RTE": HEADER}))
    assert [fault.partition(":")[0] for fault in faults] == ["glue/QQP.tsv", "QQP.tsv", "RTE.tsv"]
    faults = check_submission(zipped(tmp_path / "e.zip", {**small, "RTE": good["RTE"].replace("\tnot_", "\t")}), True)
    assert faults == []
    faults = check_submission(zipped(tmp_path / "f.zip", {"RTE": good["RTE"].replace("\tnot_", "\tno_")}), True)
    assert len(faults) == 6 and faults[-1].startswith("RTE.tsv: 2995 more faults, the last: line 3001: label")
    assert list(sheet_faults(RTE, b"\xff\xfe")) == ["not UTF-8 (at byte 0)"]


def test_what_is_no_zip(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_text("no")
    for name, message in (("none.zip", "no such file"), ("x.zip", "not a zip")):
        with pytest.raises(UserError, match=message):
            check_submission(tmp_path / name)
    content = io.BytesIO()
    zipfile.ZipFile(content, "w").close()
    (tmp_path / "empty.zip").write_bytes(content.getvalue())
    assert len(check_submission(tmp_path / "empty.zip")) == len(ROWS)


RTE, STSB = (next(sheet for sheet in SHEETS if sheet.name == name) for name in ("RTE", "STS-B"))


def test_test_files_of_another_size_or_order_are_refused() -> None:
    path = Path("glue/RTE/test.tsv")
    check_rows(RTE, path, [str(number) for number in range(3000)], partial=False)
    with pytest.raises(UserError, match=r"^glue/RTE/test.tsv: 2999 rows, but GLUE's test set has 3000, .*--partial"):
        check_rows(RTE, path, [str(number) for number in range(2999)], partial=False)
    check_rows(RTE, path, ["0", "1"], partial=True)
    with pytest.raises(UserError, match=r"row 1: expected index 1, found '7'"):
        check_rows(RTE, path, ["0", "7"], partial=True)


def test_scores_are_cut_and_labels_are_checked() -> None:
    assert sheet_text(STSB, [-0.2, 5.4, 2.34567]) == f"{HEADER}\n0\t0.000\n1\t5.000\n2\t2.346\n"
    assert sheet_text(RTE, ["entailment"]) == f"{HEADER}\n0\tentailment\n"
    with pytest.raises(UserError, match=r"RTE.tsv: row 0: label 'LABEL_0'; the server knows entailment"):
        sheet_text(RTE, ["LABEL_0"])
    with pytest.raises(UserError, match=r"STS-B.tsv: row 1: the score is nan"):
        sheet_text(STSB, [1.0, float("nan")])
