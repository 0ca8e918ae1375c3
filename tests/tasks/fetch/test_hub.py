"""The kinds dataset and model against a server that speaks the hub's protocol.

Its libraries read their address when they are imported, so each test's fetches run in a process of their own.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from model.common.files import read_json
from tests.hub import COMMIT, Hub

README = """---
configs:
- config_name: 20231101.en
  data_files: [{split: train, path: 20231101.en/*}]
- config_name: 20231101.de
  data_files: [{split: train, path: 20231101.de/*}]
---
"""
SECOND = "20231101.en/train-00001-of-00002.parquet"
PROGRAM = """
import json, sys, time
from pathlib import Path
from model.common.errors import Paused, UserError
from tasks.fetch import fetch_sources
from tasks.params.fetch import FetchSettings
from tasks.project.project import Project

time.sleep = lambda _: None  # the hub's library waits half a minute before it gives up
project = Project(Path.cwd(), Path.cwd())
for source in json.loads(sys.argv[1]):
    settings = FetchSettings.parse({"sources": [source], "wait_seconds": 0.01, "attempts": 2}, "params.yaml")
    try:
        stale = fetch_sources.stale(fetch_sources.open_record(project), list(settings.sources), False)
        said = fetch_sources.bring(project, settings, stale[0], lambda *_: None) if stale else {}
    except (Paused, UserError) as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps(said))
"""


def parquet(num_rows: int, first: int) -> bytes:
    numbers = range(first, first + num_rows)
    table = pyarrow.table(
        {"id": list(map(str, numbers)), "url": ["u"] * num_rows, "text": [f"text {n}" for n in numbers]}
    )
    out = io.BytesIO()
    pyarrow.parquet.write_table(table, out, row_group_size=500)
    return out.getvalue()


FILES = {
    "README.md": README.encode(),
    "20231101.en/train-00000-of-00002.parquet": parquet(3000, 0),
    "20231101.en/train-00001-of-00002.parquet": parquet(2000, 3000),
    "20231101.de/train-00000-of-00001.parquet": parquet(10, 0),
}


@pytest.fixture
def hub(closing: Callable[[Any], Any]) -> Hub:
    return closing(Hub("wikimedia/wikipedia", dict(FILES)))


def source(**more: Any) -> dict[str, Any]:
    settings = {
        "name": "s",
        "kind": "dataset",
        "repo": "wikimedia/wikipedia",
        "config": "20231101.en",
        "to": "wikipedia",
    }
    return settings | {"revision": COMMIT} | more


def start(hub: Hub, folder: Path, root: Path, *sources: dict[str, Any]) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    hf = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(sources)]
    environment = kept | hf | {"PYTHONPATH": str(root)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def results(process: subprocess.Popen[str]) -> list[Any]:
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    return [json.loads(line) for line in said.splitlines() if line[:1] in '{["']


def test_files_of_a_pinned_revision(hub: Hub, tmp_path: Path, root: Path) -> None:
    cut = sum(len(content) for path, content in FILES.items() if ".en/" in path)
    again, more = source(), source(config="20231101.fr")
    mistakes = [source(revision=""), source(revision="main"), more, source(split="test"), source(revision="f" * 40)]
    other = source(repo="no/such")
    first, second, *refused = results(start(hub, tmp_path, root, source(), again, *mistakes, other))
    assert (first, second) == ({"files": 2, "bytes": cut}, {})
    for name in ("train-00000-of-00002.parquet", "train-00001-of-00002.parquet"):
        assert (tmp_path / "data" / "wikipedia" / name).read_bytes() == FILES[f"20231101.en/{name}"]
    entry = read_json(tmp_path / "data" / "FETCHED.json")["sources"]["s"]
    assert (entry["revision"], entry["from"]) == (COMMIT, "hub:wikimedia/wikipedia/20231101.en:train")
    assert {row["checked"] for row in entry["files"].values()} == {"sha256"}
    assert not list((tmp_path / "build" / "runs" / "fetch").glob("s-*"))
    expected = [
        f"the revision is missing; pin the one that main is at now: `revision: {COMMIT}`",
        f"the revision 'main' is no commit; pin the one that main is at now: `revision: {COMMIT}`",
        "'20231101.fr' not found. Available: ['20231101.en', '20231101.de']",
        "no split 'test', only train",
        f"no revision {'f' * 40}",
        "hub:no/such/20231101.en:train: no such dataset",
    ]
    for said, part in zip(refused, expected, strict=True):
        assert said.startswith("UserError: ") and part in said and "\n" not in said


def test_a_model_of_a_pinned_revision(closing: Callable[[Any], Any], tmp_path: Path, root: Path) -> None:
    files = {name: name.encode() for name in ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt")}
    hub = closing(Hub("someone/mini", {**files, "README.md": b"", "pytorch_model.bin": b"pickle"}, "model"))
    model = {"name": "m", "kind": "model", "repo": "someone/mini", "to": "encoders/mini"}
    mistakes = [model, {**model, "revision": COMMIT, "files": ["*.onnx"]}, {**model, "repo": "no/such"}]
    came, *refused = results(start(hub, tmp_path, root, {**model, "revision": COMMIT}, *mistakes))
    assert came == {"files": 4, "bytes": sum(map(len, files.values()))}
    folder = tmp_path / "data" / "encoders" / "mini"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert f"pin the one that main is at now: `revision: {COMMIT}`" in refused[0]
    assert "no file matches *.onnx" in refused[1] and "from the model's page" in refused[2]


def test_chosen_columns_and_rows(hub: Hub, tmp_path: Path, root: Path) -> None:
    chosen = source(columns=["text", "id"], max_rows=3500)
    named = source(name="n", config=None, files=["20231101.de/*.parquet"], to="n")
    wrong = source(name="w", files=["*.csv"], to="w")
    came, again, refused, other, nothing = results(
        start(hub, tmp_path, root, chosen, chosen, source(columns=["txt"]), named, wrong)
    )
    assert (came["files"], again) == (2, {})
    assert other == {"files": 1, "bytes": len(FILES["20231101.de/train-00000-of-00001.parquet"])}
    assert nothing == "UserError: hub:wikimedia/wikipedia: no file matches *.csv"
    tables = [pyarrow.parquet.read_table(path) for path in sorted((tmp_path / "data" / "wikipedia").iterdir())]
    assert [(table.column_names, table.num_rows) for table in tables] == [(["text", "id"], 3000), (["text", "id"], 500)]
    assert tables[1]["id"][499].as_py() == "3499"
    assert refused == "UserError: hub:wikimedia/wikipedia/20231101.en:train: no column 'txt', only id, url, text"


def test_a_hub_that_breaks_off_and_one_that_vanishes(hub: Hub, tmp_path: Path, root: Path) -> None:
    large = "20231101.en/train-00000-of-00002.parquet"
    hub.repositories["dataset", "wikimedia/wikipedia"].files[large] = random.Random(0).randbytes(25_000_000)
    hub.cut_after = 15_000_000  # the library writes 10 MiB at a time
    [came] = results(start(hub, tmp_path, root, source()))
    assert came["files"] == 2
    ranges = [wanted for method, path, wanted in hub.requests if method == "GET" and "00000-of-00002" in path]
    assert ranges == ["", "bytes=10485760-"]
    hub.close()
    [said] = results(start(hub, tmp_path, root, source(config="20231101.de")))
    assert said.startswith("Gone: hub:wikimedia/wikipedia/20231101.de:train: the connection failed")
    assert (tmp_path / "data" / "wikipedia" / "train-00001-of-00002.parquet").exists()


def test_a_killed_download_keeps_its_complete_files(hub: Hub, tmp_path: Path, root: Path) -> None:
    hub.held = "20231101.en/train-00000-of-00002.parquet"
    process = start(hub, tmp_path, root, source())
    complete = f"build/runs/fetch/s-*/hub/.cache/huggingface/download/{SECOND}.metadata"
    deadline = time.monotonic() + 30
    while not (list(tmp_path.glob(complete)) and _requests(hub, "00000-of-00002")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate()
    hub.release.set()
    hub.held = ""
    assert list(tmp_path.rglob("*.incomplete"))
    hub.requests.clear()
    [came] = results(start(hub, tmp_path, root, source()))
    assert came["files"] == 2
    assert _requests(hub, "00000-of-00002") and not _requests(hub, "00001-of-00002")
    assert not list(tmp_path.rglob("*.incomplete"))


def test_a_mirror_with_other_content_is_refused(hub: Hub, tmp_path: Path, root: Path) -> None:
    hub.replaced[SECOND] = bytes(len(FILES[SECOND]))
    [said] = results(start(hub, tmp_path, root, source()))
    assert said.startswith(f"UserError: hub:wikimedia/wikipedia/20231101.en:train: {SECOND}: its digest is ")
    assert said.endswith("it was discarded, fetch again") and not (tmp_path / "data" / "wikipedia").exists()
    hub.replaced.clear()
    hub.requests.clear()
    [came] = results(start(hub, tmp_path, root, source()))
    assert came["files"] == 2
    assert not _requests(hub, "00000-of-00002"), "the other file is kept"


def _requests(hub: Hub, name: str) -> list[str]:
    return [path for method, path, _ in hub.requests if method == "GET" and name in path]
