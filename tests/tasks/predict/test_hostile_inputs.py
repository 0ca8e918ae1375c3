"""Hostile inputs and model directories for `predict`, `embed`, `score` and `fill-mask`: one line, exit code 2."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import resource
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from flows.cli.main import cli
from model.benchmarks.table import BENCHMARKS
from model.common.errors import UserError
from model.config.encoder import EncoderConfig
from model.encoder.encoder import Encoder
from model.formats.hf_folder import save_encoder
from model.heads.task_model import HEADS
from model.objectives.masked_lm import MaskedLanguageHead
from tests.conftest import program
from tests.model.conftest import small_tokenizer
from tests.processor_time import check_processor_time

MOST_SECONDS, MOST_BYTES = 2.0, 1 << 30
DEEP, DIGITS = 100_000, "9" * 5_000
WIDTH = 32


def write_models(folder: Path) -> None:
    """A model directory by benchmark, and `encoder`, which has a masked language modeling head."""
    tokenizer = small_tokenizer()
    config = EncoderConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    for name in ("encoder", "sst2", "rte", "ner", "squad1", "swag"):
        torch.manual_seed(0)
        path = folder / name
        save_encoder(Encoder(config), path, masked=MaskedLanguageHead(config))
        tokenizer.save(str(path / "tokenizer.json"))
        if name in BENCHMARKS:
            row = BENCHMARKS[name]
            layer = HEADS[row.head].layer_name
            num_outputs = {"span": 2, "choice": 1}.get(row.head, len(row.labels))
            head = {f"{layer}.weight": torch.zeros(num_outputs, WIDTH), f"{layer}.bias": torch.zeros(num_outputs)}
            save_file(load_file(path / "model.safetensors") | head, path / "model.safetensors")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


def call(arguments: list[str], given: bytes = b"") -> str:
    """Run a command in this process and return what it writes; check the time and memory that it takes."""
    sys.stdin = io.TextIOWrapper(io.BytesIO(given))
    sys.stdout = io.TextIOWrapper(io.BytesIO())
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        cli.main(arguments, prog_name="cloze", standalone_mode=False)
        sys.stdout.flush()
        return sys.stdout.buffer.getvalue().decode()
    finally:
        sys.stdin, sys.stdout = sys.__stdin__, sys.__stdout__
        check_processor_time(time.process_time() - began, MOST_SECONDS)
        assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < MOST_BYTES


def refused(arguments: list[str], expected: str, given: bytes = b"") -> None:
    with pytest.raises(UserError) as caught:
        call(arguments, given)
    message = str(caught.value)
    assert re.search(expected, message) and len(message.splitlines()) == 1 and len(message) < 1000, message


nested = "[" * DEEP
hundreds = "[" * 500 + "]" * 500
pair = '{"sentence1": "a", "sentence2": '
long_line = b"x" * 100_000_000
question = {"id": "1", "question": "where?", "answers": [{"text": "rome", "answer_start": 3}]}
squad = {"data": [{"paragraphs": [{"context": "in rome", "qas": [question]}]}]}

ROWS: list[tuple[str, str, str | bytes, str]] = [
    # benchmark, file name, content, expected message
    ("sst2", "a.jsonl", nested, r"a.jsonl: line 1: not JSON \(nested too deeply"),
    ("sst2", "a.jsonl", f'"fine"\n{hundreds}', r"a.jsonl: line 2: not JSON \(nested too deeply"),
    ("sst2", "a.jsonl", '{"a":' * 500 + "1" + "}" * 500, r"line 1: not JSON \(nested too deeply"),
    ("rte", "a.jsonl", pair + hundreds + "}", r"line 1: not JSON \(nested too deeply"),
    ("sst2", "a.txt", '{"a":' + nested, r"a.txt: line 1: not JSON \(nested too deeply"),
    ("sst2", "a.jsonl", DIGITS, r"a.jsonl: line 1: not JSON .an integer has thousands"),
    ("sst2", "a.jsonl", '{"text": -' + DIGITS + "}", r"line 1: not JSON .an integer has thousands"),
    ("sst2", "a.jsonl", '{"text": "a", "id": ' + DIGITS + "}", r"line 1: not JSON .an integer has thousands"),
    ("sst2", "a.jsonl", "NaN", r"a.jsonl: line 1: not JSON \(NaN"),
    ("sst2", "a.jsonl", '{"text": "a", "id": Infinity}', r"line 1: not JSON \(Infinity"),
    ("sst2", "a.jsonl", '{"text": "a", "id": [1]}', r"line 1: 'id': expected a text or a number, found 1 values"),
    ("sst2", "a.jsonl", '{"text": "a", "id": {"b": 1}}', r"line 1: 'id': expected a text or a number, found an object"),
    ("sst2", "a.jsonl", '{"text": "a", "id": "\\ud800"}', r"line 1: 'id': contains an unpaired surrogate"),
    ("sst2", "a.jsonl", '{"text": "\\udfff"}', r"line 1: 'text': contains an unpaired surrogate"),
    ("sst2", "a.jsonl", '{"\\ud800": "a"}', r"line 1: no field 'text'; found '\\ud800'"),
    ("sst2", "a.jsonl", "{" + ", ".join(f'"{"k" * 300}{n}": 1' for n in range(999)) + "}", r"line 1: no field 'text'"),
    ("sst2", "a.jsonl", '{"text": null}', r"line 1: 'text': expected text, found nothing"),
    ("sst2", "a.jsonl", '{"text": 1e400}', r"line 1: 'text': expected text, found float"),
    ("sst2", "a.jsonl", '{"text": true}', r"line 1: 'text': expected text, found bool"),
    ("sst2", "a.jsonl", '{"text": ["a"]}', r"line 1: 'text': expected text, found 1 values"),
    ("sst2", "a.jsonl", "[]", r"line 1: expected a text, found 0 values"),
    ("sst2", "a.jsonl", "5", r"line 1: expected a text, found int"),
    ("sst2", "a.jsonl", '"a"\n\n', r"line 2: not JSON"),
    ("sst2", "a.jsonl", '"a"\n"b', r"line 2: not JSON"),
    ("sst2", "a.jsonl", '"a"\0', r"line 1: not JSON"),
    ("sst2", "a.jsonl", b'"a"\n"\xff"', r"a.jsonl: line 2: not UTF-8 \(at byte 1\)"),
    ("sst2", "a.jsonl", b'\xff\xfe"\x00a\x00"\x00', r"a.jsonl: line 1: not UTF-8"),
    ("sst2", "a.txt", b"fine\n\xed\xa0\x80", r"a.txt: line 2: not UTF-8"),
    ("sst2", "a.txt", long_line, r"a.txt: line 1: longer than 16 MiB"),
    ("sst2", "a.jsonl", b'"a"\n"' + long_line + b'"', r"a.jsonl: line 2: longer than 16 MiB"),
    ("rte", "a.jsonl", '["a"]', r"line 1: expected 2 texts \(sentence1, sentence2\), found 1 values"),
    ("rte", "a.jsonl", '"a"', r"line 1: expected 2 texts"),
    ("rte", "a.jsonl", '["a", 2]', r"line 1: 'text_pair': expected text, found int"),
    ("rte", "a.tsv", "a\tb\nc\n", r"a.tsv: line 2: expected 2 columns"),
    ("rte", "a.tsv", "\t" * 2_000_000, r"a.tsv: line 1: expected 2 columns"),
    ("ner", "a.jsonl", '{"words": ["a", ["b"]]}', r"line 1: 'words': expected text, found 1 values"),
    ("ner", "a.jsonl", '{"words": 5}', r"line 1: expected a text or its words, found int"),
    ("ner", "a.conll", "a b c\n", r"a.conll: line 1: 3 columns where 4 were expected"),
    ("ner", "a.conll", b"\xff\n", r"a.conll: line 1: not UTF-8"),
    ("swag", "a.jsonl", '{"context": "a", "endings": ["b"]}', r"line 1: 'endings': expected 4, found 1"),
    ("swag", "a.jsonl", '{"context": "a", "endings": {"b": "c"}}', r"line 1: 'endings': expected a list of texts"),
    ("swag", "a.csv", "sent1\n1\n", r"a.csv: line 1: no column"),
    ("swag", "a.csv", '"' + "x" * 200_000, r"a.csv: line 1: "),
    ("swag", "a.csv", "", r"a.csv: empty"),
    ("squad1", "a.json", nested, r"a.json: not JSON \(nested too deeply"),
    ("squad1", "a.json", '{"data": ' + hundreds + "}", r"a.json: not JSON \(nested"),
    ("squad1", "a.json", '{"data": ' + DIGITS + "}", r"a.json: not JSON .an integer has thousands"),
    ("squad1", "a.json", '{"data": NaN}', r"a.json: .*NaN"),
    ("squad1", "a.json", "[1]", r"a.json: expected an object with 'data', found list"),
    ("squad1", "a.json", "", r"a.json: line 1: not JSON"),
    ("squad1", "a.json", '{"data": [{"paragraphs": [{"context": 5, "qas": []}]}]}', r"expected 'context' \(str\)"),
    ("squad1", "a.json", '{"data": [{"paragraphs": [{"context": "\\ud800", "qas": [{"id": "1", "question": "q", '
     '"answers": [{"text": "a", "answer_start": 0}]}]}]}]}', r"a.json: row 0: .*unpaired surrogate"),
    ("squad1", "a.jsonl", '{"question": "q"}', r"line 1: no field 'context'"),
    ("sst2", "a.parquet", "PAR1" + "x" * 99 + "PAR1", r"a.parquet: not a Parquet file"),
    ("sst2", "a.parquet", "", r"a.parquet: not a Parquet file"),
]  # fmt: skip


@pytest.mark.parametrize(("benchmark", "name", "content", "expected"), ROWS, ids=range(len(ROWS)))
def test_rows_to_predict(
    models: Path, tmp_path: Path, benchmark: str, name: str, content: str | bytes, expected: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    arguments = ["predict", benchmark, "--model", str(models / benchmark), "--device", "cpu"]
    refused([*arguments, str(path)], expected)
    if " line " in expected and path.suffix in (".txt", ".jsonl") and "nested" not in expected:
        refused([*arguments, "-", "--format", path.suffix[1:].replace("txt", "lines")],
                re.sub(r"\ba\.\w+", "standard input", expected), path.read_bytes())  # fmt: skip


GOLD = "sentence\tlabel\na\t1\nb\t0\n"
SCORES: list[tuple[str, dict[str, str | bytes], str]] = [
    # benchmark, files, expected message
    ("sst2", {"gold.tsv": GOLD, "p.jsonl": nested}, r"p.jsonl: line 1: not JSON \(nested too deeply"),
    ("sst2", {"gold.tsv": GOLD, "p.jsonl": '{"prediction": ' + hundreds + "}"}, r"p.jsonl: line 1: not JSON \(nested"),
    ("sst2", {"gold.tsv": GOLD, "p.jsonl": '{"prediction": ' + DIGITS + "}"}, r"not JSON .an integer has"),
    ("sst2", {"gold.tsv": GOLD, "p.jsonl": '{"prediction": []}\n{"prediction": 1}'}, r"line 1: unknown label \[\]"),
    ("sst2", {"gold.tsv": GOLD, "p.jsonl": '{"prediction": {"a": 1}}\n' * 2}, r"line 1: unknown label \{'a': 1\}"),
    ("sst2", {"gold.tsv": GOLD, "p.jsonl": '{"prediction": NaN}\n' * 2}, r"line 1: not JSON \(NaN"),
    ("sst2", {"gold.tsv": GOLD, "p.jsonl": '{"prediction": "' + "x" * 9999 + '"}\n{"prediction": 1}'}, r"unknown"),
    ("sst2", {"gold.tsv": GOLD, "p.jsonl": '{"prediction": 1, "id": [1]}\n' * 2}, r"line 1: 'id': expected a text or"),
    ("sst2", {"gold.tsv": GOLD, "p.jsonl": '{"prediction": 1, "part": [1]}\n' * 2}, r"line 1: 'part': expected a text"),
    ("sst2", {"gold.tsv": GOLD, "p.txt": DIGITS + "\n1\n"}, r"p.txt: line 1: unknown label"),
    ("sst2", {"gold.tsv": GOLD, "p.txt": b"\xff\n1\n"}, r"p.txt: line 1: not UTF-8"),
    ("sst2", {"gold.tsv": GOLD, "p.txt": ""}, r"p.txt: 0 predictions where .* has 2 rows"),
    ("sst2", {"gold.tsv": GOLD, "p.tsv": "index\tprediction\n0\t1\n" + DIGITS + "\t1\n"}, r"p.tsv: line 3: no row"),
    ("sst2", {"gold.tsv": GOLD.replace("1", DIGITS), "p.txt": "1\n0\n"}, r"gold.tsv: line 2: unknown label"),
    ("sst2", {"gold.tsv": "", "p.txt": "1\n0\n"}, r"gold.tsv: empty"),
    ("sst2", {"gold.jsonl": nested, "p.txt": "1\n0\n"}, r"gold.jsonl: line 1: not JSON \(nested too deeply"),
    ("sst2", {"gold.jsonl": DIGITS, "p.txt": "1\n0\n"}, r"gold.jsonl: line 1: not JSON .an integer has thousands"),
    ("stsb", {"gold.jsonl": '{"sentence1": "a", "sentence2": "b", "score": "NaN"}', "p.txt": "1\n"}, r"line 1: "),
    ("squad1", {"gold.json": json.dumps(squad), "p.json": nested}, r"p.json: not JSON \(nested too deeply"),
    ("squad1", {"gold.json": json.dumps(squad), "p.json": '{"a": ' + hundreds + "}"}, r"p.json: not JSON \(nested"),
    ("squad1", {"gold.json": json.dumps(squad), "p.json": "[]"}, r"p.json: expected an object from id to prediction"),
    ("squad1", {"gold.json": json.dumps(squad), "p.json": '{"\\ud800": "a"}'}, r"p.json: .*no row"),
]  # fmt: skip


@pytest.mark.parametrize(("benchmark", "files", "expected"), SCORES, ids=range(len(SCORES)))
def test_files_to_score(tmp_path: Path, benchmark: str, files: Mapping[str, str | bytes], expected: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(["score", benchmark, *(str(tmp_path / name) for name in files)], expected)


def as_device(path: Path) -> Path:
    return Path("/dev/zero")


def as_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def as_directory(path: Path) -> Path:
    path.mkdir()
    return path


def as_loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


def below_file(path: Path) -> Path:
    path.write_text("")
    return path / "a.txt"


def missing(path: Path) -> Path:
    return path


def endless_name(path: Path) -> Path:
    return path.with_name("x" * 300)


NO_FILES = [
    (as_device, "not a regular file"),
    (as_pipe, "not a regular file"),
    (as_directory, "directory"),
    (as_loop, "symbolic links"),
    (below_file, "[Nn]ot a directory|no such file"),
    (missing, "no such file"),
    (endless_name, "too long"),
]


@pytest.mark.parametrize(("make", "expected"), NO_FILES)
@pytest.mark.parametrize("command", ["predict", "predict own", "embed", "score gold", "score predictions"])
def test_paths_that_are_no_files(
    models: Path, tmp_path: Path, command: str, make: Callable[[Path], Path], expected: str
) -> None:
    path, fine = str(make(tmp_path / "file")), tmp_path / "fine.tsv"
    fine.write_text(GOLD)
    arguments = {
        "predict": ["predict", "sst2", path, "--model", str(models / "sst2")],
        "predict own": ["predict", "sst2", path, "--model", str(models / "sst2"), "--format", "own"],
        "embed": ["embed", path, "--encoder", str(models / "encoder")],
        "score gold": ["score", "sst2", path, str(fine)],
        "score predictions": ["score", "sst2", str(fine), path],
    }[command]
    refused(arguments, expected)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (as_pipe, "not a regular file"),  # no device: as root, a mistake would replace it
        (as_directory, "directory"),
        (below_file, "no such directory"),
        (lambda path: path / "a.jsonl", "no such directory"),
        (lambda path: Path("/proc/version.jsonl"), "cannot be written"),
        (endless_name, "too long"),
    ],
)
@pytest.mark.parametrize("command", ["predict", "embed"])
def test_outputs_that_cannot_be_written(
    models: Path, tmp_path: Path, command: str, make: Callable[[Path], Path], expected: str
) -> None:
    path = make(tmp_path / "file.jsonl")
    arguments = ["predict", "sst2", "--model", str(models / "sst2")]
    if command == "embed":
        arguments = ["embed", "--encoder", str(models / "encoder")]
    refused([*arguments, "--output", str(path)], expected, b"one\ntwo\n")
    assert not list(tmp_path.glob(".*partial"))


@pytest.mark.parametrize(
    ("texts", "given", "expected"),
    [
        (["none"], b"", r"text 0: no \[MASK\]"),
        (["[MASK] \udcff"], b"", r"'text 0': contains an unpaired surrogate"),
        (["[MASK] " * 99], b"", r"text 0: 101 tokens, more than the encoder's 64"),
        (["-"], b"a [MASK]\nb\n", r"standard input: line 2: no \[MASK\]"),
        (["-"], b"a [MASK]\n\xff\n", r"standard input: line 2: not UTF-8"),
        (["-"], b"a [MASK]\n" + long_line, r"standard input: line 2: longer than 16 MiB"),
    ],
)
def test_texts_with_masks(models: Path, texts: list[str], given: bytes, expected: str) -> None:
    refused(["fill-mask", "--encoder", str(models / "encoder"), *texts], expected, given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b"a\n\xff\n", r"standard input: line 2: not UTF-8"),
        (b"a\n" + long_line, r"standard input: line 2: longer than 16 MiB"),
    ],
)
def test_texts_to_embed(models: Path, given: bytes, expected: str) -> None:
    refused(["embed", "--encoder", str(models / "encoder")], expected, given)


def test_odd_texts_are_answered(models: Path) -> None:
    given = b"\xef\xbb\xbfone\n\0\n\n" + b"x " * 500_000 + "\u202e\U000e0001\n".encode()
    answers = call(["predict", "sst2", "--model", str(models / "sst2")], given).splitlines()
    assert len(answers) == 4 and all("prediction" in json.loads(line) for line in answers)
    assert len(call(["embed", "--encoder", str(models / "encoder")], given).splitlines()) == 4
    assert call(["predict", "sst2", "--model", str(models / "sst2")], b"") == ""
    given = b'"a"\n' + b"[" * DEEP + b'\n"' + long_line + b'"\n{"text": "\\ud800"}\n"b"'
    answers = call(
        ["predict", "sst2", "--model", str(models / "sst2"), "--format", "jsonl", "--skip-bad"], given
    ).splitlines()
    assert ["error" in json.loads(line) for line in answers] == [False, True, True, True, False]


def header(entries: Any, data: bytes = b"", length: int | None = None) -> bytes:
    encoded = json.dumps(entries).encode() if not isinstance(entries, bytes) else entries
    return struct.pack("<Q", len(encoded) if length is None else length) + encoded + data


def tensors_with(**changed: torch.Tensor | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        found = load_file(path)
        for name, tensor in changed.items():
            key = next(one for one in found if one.endswith(name.replace("__", ".")))
            del found[key]
            if tensor is not None:
                found[key] = tensor
        save_file(found, path)

    return change


def weights(content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.safetensors").write_bytes(content) and None


def settings(**changed: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))

    return change


def text_of(name: str, content: str | bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


class Planted:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.putenv, ("PLANTED_BY_A_PICKLE", "1"))


def pickled(content: Any, raw: bool = False) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        path = folder / "pytorch_model.bin"
        path.write_bytes(content) if raw else torch.save(content, path)

    return change


def vocabulary(**changed: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        content["model"]["vocab"] |= changed
        path.write_text(json.dumps(content))

    return change


def modules(*entries: Any) -> Callable[[Path], None]:
    return text_of("modules.json", json.dumps(entries))


def with_length(value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        modules({"type": "a.Transformer", "path": ""})(folder)
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": value}))

    return change


def head_json(**changed: Any) -> Callable[[Path], None]:
    return text_of("head.json", json.dumps({"benchmark": "sst2", "recipe": {"batch_size": 8}} | changed))


one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
layer = "encoder__layer__1__attention__self__query__weight"
MODELS: list[tuple[Callable[[Path], None], str]] = [
    (weights(b""), r"model.safetensors: damaged"),
    (weights(b"\xff" * 8), r"model.safetensors: damaged"),
    (weights(header({}, length=10**15)), r"model.safetensors: damaged"),
    (weights(header(b" " * 101_000_000)), r"model.safetensors: damaged"),
    (weights(header(nested.encode())), r"model.safetensors: damaged"),
    (weights(header({"a": one | {"data_offsets": [0, 10**18]}}, bytes(8))), r"model.safetensors: damaged"),
    (weights(header({"a": one, "b": one}, bytes(8))), r"model.safetensors: damaged"),
    (weights(header({"a": one | {"data_offsets": [8, 0]}}, bytes(8))), r"model.safetensors: damaged"),
    (weights(header({"a": one | {"shape": [2**63, 2**63]}}, bytes(8))), r"model.safetensors: damaged"),
    (weights(header({"a": one | {"shape": [-2]}}, bytes(8))), r"model.safetensors: damaged"),
    (weights(header({"a": one | {"dtype": "X9"}}, bytes(8))), r"model.safetensors: damaged"),
    (weights(header({"a": one}, bytes(8))), r"model.safetensors: (no tensor 'classif|1 tensors; expected num)"),
    (weights(header([])), r"model.safetensors: damaged"),
    (tensors_with(word_embeddings__weight=torch.tensor(1.0)), r"word_embeddings.weight' has shape \(\), expected"),
    (tensors_with(word_embeddings__weight=torch.zeros(2, 3, 4)), r"word_embeddings.weight' has shape \(2, 3, 4\)"),
    (tensors_with(**{layer: torch.tensor(1.0)}), r"1.attention.self.query.weight' has shape \(\)"),
    (tensors_with(**{layer: torch.zeros(4, 8, 32)}), r"1.attention.self.query.weight' has shape \(4, 8, 32\)"),
    (tensors_with(**{layer: torch.zeros(32, 31)}), r"1.attention.self.query.weight' has shape \(32, 31\)"),
    (tensors_with(**{layer: torch.zeros(32, 32, dtype=torch.int64)}), r"query.weight' .*int64.*floating"),
    (tensors_with(**{layer: None}), r"no tensor 'bert.encoder.layer.1.attention.self.query.weight'"),
    (tensors_with(classifier__weight=torch.tensor(1.0)), r"a scalar 'classifier.weight'|'classifier.weight' has"),
    (tensors_with(classifier__weight=torch.zeros(2, 3, 4)), r"classifier.weight' has shape \(2, 3, 4\)"),
    (tensors_with(classifier__weight=torch.zeros(0, 32)), r"classifier.bias' has shape \(2,\), expected \(0,\)"),
    (tensors_with(pooler__dense__weight=torch.tensor(1.0)), r"pooler.dense.weight' has shape"),
    (settings(hidden_size=10**9, num_attention_heads=1), r"hidden_size: Input should be less"),
    (settings(hidden_size=10**30, num_attention_heads=1), r"hidden_size: Input should be less"),
    (settings(hidden_size=60_000, num_attention_heads=1), r"has shape \(33, 32\), expected \(33, 60000\) by config"),
    (settings(num_hidden_layers=10**9), r"num_hidden_layers: Input should be less"),
    (settings(vocab_size=10**9), r"config.json: vocab_size: Input should be less"),
    (settings(intermediate_size=10**12), r"config.json: intermediate_size: Input should be less"),
    (settings(max_position_embeddings=10**12), r"config.json: max_position_embeddings: Input should be less"),
    (settings(type_vocab_size=10**12), r"config.json: type_vocab_size: Input should be less"),
    (settings(hidden_size=[1], intermediate_size=0), r"config.json: .*hidden_size"),
    (settings(hidden_size="x", intermediate_size=0), r"config.json: .*hidden_size"),
    (settings(hidden_size=-32), r"config.json: .*hidden_size"),
    (settings(hidden_size=float("inf"), intermediate_size=0), r"config.json: .*Infinity|config.json: .*hidden_size"),
    (settings(layer_norm_eps=float("nan")), r"config.json: .*NaN|config.json: .*layer_norm_eps"),
    (settings(model_type=["bert"]), r"config.json: model_type"),
    (text_of("config.json", "[]"), r"config.json: expected an object"),
    (text_of("config.json", nested), r"config.json: .*nested too deeply"),
    (text_of("config.json", '{"hidden_size": ' + DIGITS + "}"), r"config.json: .*thousands of digits"),
    (text_of("config.json", b"\xff"), r"config.json: not"),
    (settings(id2label=[1]), r"config.json: id2label"),
    (settings(id2label={"0": "a", "2": "b"}), r"config.json: id2label"),
    (text_of("tokenizer.json", "{}"), r"tokenizer.json: no tokenizer.json"),
    (text_of("tokenizer.json", nested), r"tokenizer.json: no tokenizer.json"),
    (text_of("tokenizer.json", b"\0" * 99), r"tokenizer.json: no tokenizer.json"),
    (vocabulary(film=10**6), r"tokenizer has .*1,?000,?00\d|tokenizer"),
    (text_of("digests.json", '{"../../etc/passwd": "0"}'), r"digests.json: .*\.\./\.\./etc/passwd"),
    (text_of("digests.json", '{"/dev/zero": "0"}'), r"digests.json: .*/dev/zero"),
    (text_of("digests.json", nested), r"digests.json: .*nested too deeply"),
    (head_json(recipe=[]), r"head.json: recipe"),
    (head_json(recipe={"max_length": 10**12, "batch_size": 8}), r"head.json: .*max_length"),
    (head_json(row=[]), r"head.json: row"),
    (head_json(benchmark=["sst2"]), r"head.json: expected an object with 'benchmark'"),
    (head_json(labels=5), r"head.json: labels"),
    (head_json(labels=[[[1]], "b"]), r"head.json: labels"),
    (head_json(null_threshold=[1]), r"head.json: 'null_threshold': expected a number"),
    (head_json(null_threshold=float("nan")), r"head.json: .*NaN|'null_threshold': expected a number"),
    (text_of("head.json", nested), r"head.json: .*nested too deeply"),
    (pickled(Planted()), r"pytorch_model.bin: damaged or not only tensors"),
    (pickled(pickle.dumps(Planted()), raw=True), r"pytorch_model.bin: damaged or not only tensors"),
    (pickled({"a": {"b": torch.zeros(1)}}), r"pytorch_model.bin: expected only named tensors"),
    (pickled([1]), r"pytorch_model.bin: expected only named tensors"),
    (pickled(b"", raw=True), r"pytorch_model.bin: damaged"),
    (pickled(b"\x80\x02(lp0\n]q\x01.", raw=True), r"pytorch_model.bin: "),
    (pickled(b"\x80\x02\x85\x86\x87e.", raw=True), r"pytorch_model.bin: damaged"),
    (pickled(b"PK\x03\x04" + bytes(99), raw=True), r"pytorch_model.bin: damaged"),
    (pickled({"bert.a": torch.zeros(1).expand(10**12)}), r"pytorch_model.bin: 'bert.a' .*larger than the file"),
    (pickled({"bert.a": torch.zeros(2, 2).to_sparse()}), r"pytorch_model.bin: "),
    (pickled({"bert.a": torch.empty(2, device="meta")}), r"pytorch_model.bin: "),
    (pickled({1: torch.zeros(1)}), r"pytorch_model.bin: expected only named tensors"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), MODELS, ids=range(len(MODELS)))
def test_model_directories(models: Path, tmp_path: Path, change: Callable[[Path], None], expected: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models / "sst2", folder)
    change(folder)
    refused(["predict", "sst2", "--model", str(folder)], expected, b"film\n")
    assert "PLANTED_BY_A_PICKLE" not in os.environ
    if expected.startswith(("model.safetensors", "config.json: .*nested", "pytorch_model")):
        refused(["embed", "--encoder", str(folder)], expected, b"film\n")
        refused(["fill-mask", "--encoder", str(folder), "[MASK]"], expected)


def test_a_pickle_next_to_weights_is_not_read(models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models / "sst2", folder)
    torch.save(Planted(), folder / "pytorch_model.bin")
    (folder / "training_args.bin").write_bytes(pickle.dumps(Planted()))
    assert "prediction" in call(["predict", "sst2", "--model", str(folder)], b"film\n")
    assert "PLANTED_BY_A_PICKLE" not in os.environ


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (modules({"type": "a.Transformer", "path": "../../.."}), r"modules.json: .*'\.\./\.\./\.\.'"),
        (modules({"type": "a.Transformer", "path": "/etc"}), r"modules.json: .*'/etc'"),
        (modules({"type": "a.Transformer", "path": 5}), r"modules.json: path 5"),
        (modules({"type": "a.Transformer", "path": "a\0b"}), r"modules.json: "),
        (modules(5), r"modules.json: expected a list of modules"),
        (text_of("modules.json", nested), r"modules.json: .*nested too deeply"),
        (with_length("x"), r"sentence_bert_config.json: max_seq_length 'x'"),
        (with_length(-7), r"sentence_bert_config.json: max_seq_length -7"),
    ],
)  # fmt: skip
def test_sentence_encoders(models: Path, tmp_path: Path, change: Callable[[Path], None], expected: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models / "encoder", folder)
    change(folder)
    refused(["embed", "--encoder", str(folder)], expected, b"film\n")


@pytest.mark.parametrize(
    ("redirection", "expected"),
    [
        ("- < /dev/zero", r"standard input: line 1: longer than 16 MiB"),
        ("- <&-", r"standard input: closed"),
        ("rows.txt > /dev/full", r"No space left"),
        ("rows.txt >&-", r"standard output: closed"),
        ("/dev/zero", r"/dev/zero: not a regular file"),
        ("rows.txt --output pipe", r"pipe: not a regular file"),
    ],
)
def test_the_real_command(models: Path, tmp_path: Path, redirection: str, expected: str) -> None:
    (tmp_path / "rows.txt").write_text("film\n")
    os.mkfifo(tmp_path / "pipe")
    command = f"exec {program('cloze')} predict sst2 --model {models / 'sst2'} --device cpu --threads 1 {redirection}"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert re.search(expected, done.stderr), done.stderr
