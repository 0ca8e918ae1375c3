"""Readers of files that may be damaged, foreign or hostile: whatever is in them, one clear line or a value.

Hypothesis damages files that are valid; tests/flows/test_damage.py damages those of whole runs.
"""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import io
import json
import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.benchmarks.custom_task import load_custom
from model.benchmarks.readers.parquet import read_parquet
from model.benchmarks.scoring.score_files import read_gold, read_numbers, read_predictions
from model.benchmarks.splits import read_dev, read_train
from model.benchmarks.table import find
from model.common.digests import check_digests, write_digests
from model.common.errors import UserError, printable
from model.common.files import parse_json
from model.common.metrics_log import MetricsLog, read_metrics
from model.common.state_files import read_state, write_state
from model.formats.hf_folder import load_encoder
from model.tokenizer.wordpiece import load_tokenizer, read_vocabulary
from tasks.corpus.sources.file_chunks import Dropped, FileChunk
from tasks.corpus.sources.source_registry import SOURCE_TYPES
from tasks.params.root import load_params
from tests.conftest import ROOT
from tests.model.benchmarks.custom_files import ROWS, put, task
from tests.model.conftest import write_small_data, write_small_encoder
from tests.tasks.corpus.conftest import article, corpus_settings, dump_xml, page_xml

EXAMPLES = int(os.environ.get("EXAMPLES", "0"))
"""Files per test that are damaged at random (`make faults`: 1000). Without it, always the same few."""
DAMAGED = settings(
    max_examples=EXAMPLES or 20,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
TOKENS = b'\0 \xff \xef\xbb\xbf \r \n \t \x1b " , : & NaN -1 1e999 null \\ud800 ../x *a'.split(b" ")
TOKENS += [b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, "\u2028\u202e".encode()]

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


@st.composite
def damaged_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Cut, overwrite or extend some places of a content."""
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(content)))
        end = min(len(content), begin + draw(st.sampled_from([0, 0, 1, 1, 8, len(content)])))
        content = content[:begin] + draw(st.just(b"") | st.binary(max_size=8) | st.sampled_from(TOKENS)) + content[end:]
    return content


@st.composite
def damaged_json(draw: st.DrawFn, content: bytes) -> bytes:
    """Replace, remove or rename a value anywhere in a JSON document, which stays JSON."""
    document = {"": json.loads(content)}
    places: list[tuple[Any, Any]] = []
    waiting: list[Any] = [document]
    while waiting:
        inner = waiting.pop()
        keys = list(inner) if isinstance(inner, dict) else range(len(inner))
        places += [(inner, key) for key in keys]
        waiting += [inner[key] for key in keys if isinstance(inner[key], dict | list)]
    inner, key = draw(st.sampled_from(places))
    if inner is not document and draw(st.booleans()):
        del inner[key]
    else:
        inner[key] = draw(VALUES)
    return json.dumps(document[""]).encode()


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    with contextlib.suppress(ValueError):
        json.loads(content)
        return damaged_bytes(content) | damaged_json(content)
    return damaged_bytes(content)


def check_message(error: UserError, names: list[str]) -> None:
    """One line that names the file, or one that belongs to it; of settings, a line per mistake."""
    lines = [printable(line) for line in str(error).split("\n")]
    assert len(lines) == 1 or names[0] in SETTINGS, lines
    for line in lines:
        assert any(name in line for name in names) and len(line) <= 2000 and line.isprintable(), line


def zipped(name: str, text: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), text)
    return content.getvalue()


def read_source(kind: str, path: Path) -> None:
    """Read and parse all items of a corpus source with one file."""
    [source] = corpus_settings(sources=[{"name": "a", "kind": kind, "path": path.name}]).sources
    for item in SOURCE_TYPES[kind].read(source, FileChunk.whole(path, path.name), Counter()):
        with contextlib.suppress(Dropped):
            SOURCE_TYPES[kind].parse(source, item)


def read_task(path: Path) -> None:
    row = load_custom("tasks/mine.yaml", path.parents[1]).row
    read_train(row, path.parents[1])
    read_dev(row, path.parents[1])


GOLD = {
    "sst2": "glue/SST-2/dev.tsv",
    "stsb": "glue/STS-B/dev.tsv",
    "ner": "conll2003/valid.txt",
    "swag": "swag/val.csv",
    "squad1": "squad/dev-v1.1.json",
    "squad2": "squad/dev-v2.0.json",
}
BOOK = f"CHAPTER I\n\n{article(1)}\n\nCHAPTER II\n\n{article(2)}"
ARTICLE = '<doc id="{0}" url="u" title="T{0}">\nT{0}\n\nA b. C d.\n</doc>\n'
SOURCES: dict[str, tuple[str, bytes]] = {
    "a.xml": ("mediawiki", dump_xml(*(page_xml(f"T{number}", article(number)) for number in range(3)))),
    "a.xml.bz2": ("mediawiki", bz2.compress(dump_xml(page_xml("T", article(1))))),
    "b.txt": ("books", BOOK.encode()),
    "b.zip": ("books", zipped("b.txt", BOOK)),
    "c.txt": ("text", f"{article(1)}\n\n{article(2)}".encode()),
    "d.jsonl": ("jsonl", b'{"text": "A b.", "id": 1}\n{"text": "C d.", "id": 2}\n'),
    "d.jsonl.gz": ("jsonl", gzip.compress(b'{"text": "A b.", "id": 1}\n' * 3, mtime=0)),
    "e.csv": ("csv", b'id,title,text\n1,T,"A ""b""."\n2,U,C d.\n'),
    "wiki_00": ("wikiextractor", (ARTICLE.format(1) + ARTICLE.format(2)).encode()),
}
PREDICTIONS = {
    "predictions.jsonl": "".join(f'{{"id": "{row}", "prediction": "1"}}\n' for row in range(60)),
    "predictions.tsv": "index\tprediction\n" + "".join(f"{row}\t1\n" for row in range(60)),
    "predictions.json": json.dumps({str(row): "1" for row in range(60)}),
}
ENCODER = ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "digests.json"]
TASK = ["mine.yaml", "train.parquet", "dev.jsonl"]
SETTINGS = ["config.json", "mine.yaml", "params.yaml", "bert-base.yaml"]
NAMES = [*ENCODER, *GOLD, *TASK, *PREDICTIONS, "odds.json", *SOURCES, "f.parquet", "params.yaml", "bert-base.yaml"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Callable[[Path], Any]]]:
    """A valid file of each name, and what reads it."""
    folder = tmp_path_factory.mktemp("files")
    found: dict[str, tuple[Path, Callable[[Path], Any]]] = {}

    def add(path: Path, read: Callable[[Path], Any], content: bytes | None = None, name: str = "") -> None:
        if content is not None:
            path.write_bytes(content)
        found[name or path.name] = (path, read)

    encoder = folder / "encoder"
    write_small_encoder(encoder)
    for name in ("config.json", "model.safetensors"):
        add(encoder / name, lambda path: load_encoder(path.parent))
    add(encoder / "tokenizer.json", load_tokenizer)
    add(encoder / "vocab.txt", read_vocabulary)
    shutil.copytree(encoder, folder / "listed")
    write_digests(folder / "listed")
    add(folder / "listed" / "digests.json", lambda path: check_digests(path.parent))

    data = folder / "data"
    write_small_data(data)
    for name, file in GOLD.items():
        add(data / file, functools.partial(read_gold, find(name)), name=name)
    put(data, "train.parquet", ROWS)
    put(data, "dev.jsonl", ROWS)
    task(data, train="train.parquet", dev="dev.jsonl")
    for name in TASK:
        add(data / "tasks" / name, read_task)

    gold = read_gold(find("sst2"), data / GOLD["sst2"])
    for name, text in PREDICTIONS.items():
        add(folder / name, lambda path: read_predictions(find("sst2"), path, gold), text.encode())
    odds = json.dumps({str(row): 0.5 for row in range(60)})
    add(folder / "odds.json", lambda path: read_numbers(path, gold), odds.encode())

    for name, (kind, content) in SOURCES.items():
        add(folder / name, functools.partial(read_source, kind), content)
    pyarrow.parquet.write_table(
        pyarrow.table({name: ["A b.", "C d."] * 20 for name in ("id", "title", "text")}), folder / "f.parquet"
    )
    add(folder / "f.parquet", functools.partial(read_source, "parquet"))
    for name in ("params.yaml", "params/bert-base.yaml"):
        add(folder / Path(name).name, load_params, (ROOT / name).read_bytes())
    return found


@pytest.mark.parametrize("name", NAMES)
@DAMAGED
@given(data=st.data())
def test_files_that_people_bring(name: str, files: Any, data: st.DataObject) -> None:
    """A reader returns what is in a file, or refuses it by name."""
    path, read = files[name]
    valid = path.read_bytes()
    try:
        path.write_bytes(data.draw(damaged(valid)))
        read(path)
    except UserError as error:
        check_message(error, TASK if name in TASK else [path.name])
    finally:
        path.write_bytes(valid)


def test_those_files_are_valid(files: Any) -> None:
    assert set(files) == set(NAMES)
    for path, read in files.values():
        read(path)


@DAMAGED
@given(description=damaged(b'{"info": {"features": {"label": {"_type": "ClassLabel", "names": ["bad", "good"]}}}}'))
def test_the_description_in_a_parquet_file(tmp_path: Path, description: bytes) -> None:
    """`datasets` writes the names of classes into the file's metadata."""
    path = tmp_path / "dev.parquet"
    table = pyarrow.table({"sentence": ["a", "b"], "label": [0, 1]})
    pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": description}), path)
    try:
        read_parquet(path, ["sentence", "label"])
    except UserError as error:
        check_message(error, [path.name])


STATE = {"name": "a", "scores": {"accuracy": 90.5}, "files": ["x"], "number": 3}


@DAMAGED
@given(data=st.data())
def test_a_state_file_is_whole_or_absent(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "state.json"
    (tmp_path / "rows.txt").write_text("rows")
    write_state(path, STATE, [tmp_path / "rows.txt"])
    valid = path.read_bytes()
    path.write_bytes(data.draw(damaged(valid)))
    found = read_state(path, with_files=True)
    assert found in (STATE, {}) or b"checksums" not in path.read_bytes()  # state files of earlier versions have none
    assert read_state(path, with_files=True) == found
    for left in tmp_path.iterdir():
        left.unlink()


@DAMAGED
@given(data=st.data())
def test_a_metrics_log_loses_only_damaged_lines(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "journal.jsonl"
    log = MetricsLog(path)
    for step in range(5):
        log.log(step, {"loss": step / 2})
    log.close()
    lines = path.read_bytes().splitlines(keepends=True)
    number = data.draw(st.integers(0, 4))
    damage = data.draw(damaged_bytes(lines[number]))
    path.write_bytes(b"".join([*lines[:number], damage, *lines[number + 1 :]]))
    log = MetricsLog(path)
    log.log(10**9, {"loss": 0.0})
    log.close()
    found = [line for line, _ in read_metrics(path)]
    # a damage at the end of a line takes the next one along
    kept = [json.loads(line) for at, line in enumerate(lines) if at not in (number, number + 1)]
    assert [line for line in found if line in kept] == kept
    path.unlink()


@DAMAGED
@given(text=st.text() | VALUES.map(json.dumps) | st.binary().map(lambda content: content.decode("latin-1")))
def test_json_from_outside(text: str) -> None:
    """A value that any code may walk and write again, or ValueError."""
    with contextlib.suppress(ValueError):
        json.dumps(parse_json(text), allow_nan=False)
