"""Rows to be answered, from files and pipes of every form."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from model.benchmarks.head_specs import request_of
from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError
from tasks.predict.predict_io import Chunk, Format, rows_of, text_lines, write_vectors


def texts(path: Path, benchmark: str, format_: Format = "auto") -> list[Any]:
    """(first, second) of each row, or the message of what is wrong with it."""
    row = BENCHMARKS[benchmark]
    found = []
    for _, given in rows_of(path, row, format_):
        if isinstance(given, UserError):
            found.append(str(given))
            continue
        example = request_of(row, given).example
        found.append((example.first, example.second) if hasattr(example, "first") else example)
    return found


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "benchmark", "content", "expected"),
    [
        ("a.txt", "sst2", "one\ntwo\r\n\n{three\n", [("one", None), ("two", None), ("", None), ("{three", None)]),
        ("a.txt", "sst2", '{"text": "one"}\n"two"\n', [("one", None), ("two", None)]),
        ("a.txt", "rte", "a\tb\nc\td\n", [("a", "b"), ("c", "d")]),
        ("a.jsonl", "rte", '["a", "b"]\n{"text": "c", "text_pair": "d"}\n', [("a", "b"), ("c", "d")]),
        ("a.tsv", "rte", "index\tsentence1\tsentence2\n0\ta\tb\n", [("a", "b")]),
        ("a.tsv", "rte", 'sentence2\tx\tsentence1\nb\t-\ta "quote\n', [('a "quote', "b")]),
        ("a.tsv", "cola", "gj04\t1\t\tIt ran.\n", [("It ran.", None)]),
        ("a.tsv", "cola", "index\tsentence\n0\tIt ran.\n", [("It ran.", None)]),
        ("a.tsv", "sst2", "only text\n", [("only text", None)]),
        ("bom.txt", "sst2", b"\xef\xbb\xbfone\n", [("one", None)]),
        ("a.txt", "sst2", "no end", [("no end", None)]),
        ("a.txt", "sst2", "", []),
        ("a.tsv", "rte", "a\tb\tc\n", ["expected 2 columns (sentence1, sentence2), found 3"]),
        ("a.jsonl", "sst2", '"a"\n{"text": \n', [("a", None), "not JSON (Expecting value, column 10): '{\"text\": '"]),
        ("stdin.txt", "sst2", "[" * 99_999 + "\n", ["not JSON (nested too deeply)"]),
        ("a.txt", "sst2", b"a\n\xff\nb\n", [("a", None), "not UTF-8 (at byte 0)", ("b", None)]),
    ],
)
def test_formats(tmp_path: Path, name: str, benchmark: str, content: str | bytes, expected: list[Any]) -> None:
    assert texts(written(tmp_path, name, content), benchmark) == expected


def test_places_name_file_and_line(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "sentence1\tsentence2\na\tb\nc\n")
    found = list(rows_of(path, BENCHMARKS["rte"]))
    assert [where for where, _ in found] == [f"{path}: line 2", f"{path}: line 3"]
    assert isinstance(found[1][1], UserError)


def test_a_benchmarks_own_files(tmp_path: Path) -> None:
    answer = {"text": "rome", "answer_start": 3}
    question = {"id": "q1", "question": "where?", "answers": [answer]}
    content = {"data": [{"paragraphs": [{"context": "in rome", "qas": [question]}]}]}
    [example] = texts(written(tmp_path, "dev.json", json.dumps(content)), "squad1")
    assert (example.id, example.question, example.context) == ("q1", "where?", "in rome")
    header = ",sent1,sent2,ending0,ending1,ending2,ending3\n"
    [example] = texts(written(tmp_path, "test.csv", header + '0,"one, two",it,a,b,c,d\n'), "swag")
    assert (example.context, example.endings) == ("one, two", ("it a", "it b", "it c", "it d"))
    conll = "-DOCSTART- -X- -X- O\n\nAnna NNP B-NP B-PER\nran VBD B-VP O\n"
    [example] = texts(written(tmp_path, "valid.txt", conll), "ner")
    assert example.words == ("Anna", "ran")
    with pytest.raises(UserError, match="no column 'sent1'"):
        texts(written(tmp_path, "bad.csv", "a,b\n1,2\n"), "swag")


def test_standard_input_is_read_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.given = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            self.given += 1
            line = f"text {self.given}\n".encode()
            buffer[: len(line)] = line
            return len(line)

    pipe = Pipe()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(pipe, 64)))
    rows = rows_of(Path("-"), BENCHMARKS["sst2"])
    assert [next(rows) for _ in range(3)] == [(f"standard input: line {n}", f"text {n}") for n in (1, 2, 3)]
    assert pipe.given < 20, "an endless pipe is not read to its end"


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        texts(tmp_path / "none.txt", "sst2")
    with pytest.raises(UserError, match="found a directory"):
        texts(tmp_path, "sst2")
    with pytest.raises(UserError, match="give a file name"):
        texts(Path("-"), "swag", "own")


def test_lines_to_embed(tmp_path: Path) -> None:
    assert list(text_lines(written(tmp_path, "a", "one\n\ntwo"))) == ["one", "", "two"]
    with pytest.raises(UserError, match="line 2: not UTF-8"):
        list(text_lines(written(tmp_path, "a", b"one\n\xff\n")))


VECTORS = np.random.default_rng(0).standard_normal((70, 5)).astype(np.float32)
TEXTS = [f'text {number} "é"' for number in range(70)]


def chunks() -> Iterator[Chunk]:
    for begin in (0, 32, 64):
        yield TEXTS[begin : begin + 32], VECTORS[begin : begin + 32]


def test_every_format_holds_the_same(tmp_path: Path) -> None:
    for ending in ("npy", "safetensors", "parquet", "jsonl"):
        assert write_vectors(tmp_path / f"v.{ending}", chunks(), 5) == 70
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").open()]
    table = pq.read_table(tmp_path / "v.parquet")
    assert [line["text"] for line in lines] == table["text"].to_pylist() == TEXTS
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), VECTORS)
    np.testing.assert_array_equal(load_file(tmp_path / "v.safetensors")["vectors"], VECTORS)
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), dtype=np.float32), VECTORS)
    np.testing.assert_allclose(np.array([line["vector"] for line in lines]), VECTORS, rtol=1e-6)
    assert len(list(tmp_path.iterdir())) == 4
    assert np.load(tmp_path / "v.npy", mmap_mode="r").shape == (70, 5)


@pytest.mark.parametrize("ending", ["npy", "safetensors", "parquet", "jsonl"])
def test_none_at_all(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"v.{ending}"
    assert write_vectors(path, iter([]), 5) == 0
    if ending == "npy":
        assert np.load(path).shape == (0, 5)
    if ending == "safetensors":
        assert load_file(path)["vectors"].shape == (0, 5)


def test_a_file_is_there_when_it_is_whole(tmp_path: Path) -> None:
    def broken() -> Iterator[Chunk]:
        yield TEXTS[:1], VECTORS[:1]
        raise UserError("line 2: not UTF-8")

    (tmp_path / "v.npy").write_bytes(b"before")
    with pytest.raises(UserError, match="line 2"):
        write_vectors(tmp_path / "v.npy", broken(), 5)
    assert (tmp_path / "v.npy").read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(UserError, match=r"v.txt: expected a file that ends in .jsonl, .npy, .safetensors, .parquet"):
        write_vectors(tmp_path / "v.txt", chunks(), 5)
    with pytest.raises(UserError, match="no such directory"):
        write_vectors(tmp_path / "none" / "v.npy", chunks(), 5)
