"""`cloze predict`, `fill-mask`, `embed` and GLUE submissions on a finished run."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

from model.common.files import read_json
from tests.flows.clone import CLOZE, Clone

pytestmark = pytest.mark.slow


def call(clone: Clone, *arguments: str, given: str = "", code: int = 0, where: Path | None = None) -> tuple[str, str]:
    """Run `cloze` with standard input, and return standard output and standard error."""
    done = subprocess.run(
        [*CLOZE, *arguments],
        cwd=where or clone.root,
        env=clone.environment,
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def test_predictions_on_dev_equal_those_of_the_job(finished: Clone) -> None:
    folder = finished.root / "build" / "finetune" / "pretrained" / "rte"
    best = read_json(folder / "metrics.json")["best"]
    expected = [json.loads(line) for line in (folder / "jobs" / best / "predictions.jsonl").open()]
    command = ("predict", "rte", "data/glue/RTE/dev.tsv", "--encoder", "pretrained", "--threads", "1")
    out, said = call(finished, *command)
    answers = [json.loads(line) for line in out.splitlines()]
    assert [(one["id"], one["prediction"]) for one in answers] == [(one["id"], one["prediction"]) for one in expected]
    for answer, row in zip(answers, expected):
        exponentials = np.exp(row["logits"])
        assert list(answer["probabilities"].values()) == pytest.approx(exponentials / exponentials.sum(), abs=1e-4)
    assert "using pretrained's model for rte" in said


def test_rows_through_a_pipe(finished: Clone, tmp_path: Path) -> None:
    rows = ['{"text": "a", "text_pair": "b", "id": 5}', "{oops", '["c", "d"]']
    _, said = call(finished, "predict", "rte", "--format", "jsonl", given="\n".join(rows), code=2)
    assert said.splitlines()[-1].startswith("cloze: standard input: line 2: not JSON")
    model = finished.root / "build" / "finetune" / "pretrained" / "rte" / "model"
    options = ("--model", str(model), "--skip-bad", "--output", "out.jsonl")  # a folder that is no project will do
    _, said = call(finished, "predict", "rte", *options, given="\n".join(rows), where=tmp_path)
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").open()]
    assert [set(answer) == {"error"} for answer in answers] == [False, True, False]
    assert answers[0]["id"] == 5 and "1 rows could not be read" in said
    assert "no model for 'rtx'" in call(finished, "predict", "rtx", given="a", code=2)[1]


def test_masks_and_vectors(finished: Clone, tmp_path: Path) -> None:
    out, _ = call(finished, "fill-mask", "The [MASK] is in [MASK].", "--top", "3", "--json")
    assert [len(mask["candidates"]) for mask in json.loads(out)["masks"]] == [3, 3]
    out, _ = call(finished, "fill-mask", "The [MASK] is here.")
    assert len(out.splitlines()) == 6
    assert "no [MASK]" in call(finished, "fill-mask", "none", code=2)[1]
    call(finished, "embed", "--output", str(tmp_path / "v.npy"), given="one\ntwo three\n\n")
    assert np.load(tmp_path / "v.npy").shape == (3, 128)


def test_the_submission_to_the_glue_server(finished: Clone, tmp_path: Path) -> None:
    _, said = call(finished, "leaderboard", "--submission", str(tmp_path / "a.zip"), code=2)
    assert re.search(r"data/glue/CoLA/test.tsv: \d+ rows, but GLUE's test set has 1063", said.splitlines()[-1])
    assert not list(tmp_path.iterdir())
    for name in ("a.zip", "b.zip"):
        call(finished, "leaderboard", "--submission", str(tmp_path / name), "--partial", "--threads", "1")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert len(archive.namelist()) == 11
        rows = archive.read("STS-B.tsv").decode().splitlines()
    assert rows[0] == "index\tprediction" and len(rows) > 5
    assert all(0 <= float(row.split("\t")[1]) <= 5 for row in rows[1:])
    check = ("leaderboard", "--check-submission", str(tmp_path / "a.zip"))
    assert "rows where 3000 are expected" in call(finished, *check, code=2)[0]
    call(finished, *check, "--partial")
