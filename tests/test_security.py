"""No pickle, no unpacking without filters, no shell, and names from users that stay names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from model.common.errors import UserError
from tasks.params.root import Params

PACKAGES = ("flows", "tasks", "model", "bench")
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}


def sources(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield path.relative_to(root).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def name_of(call: ast.Call) -> str:
    return ast.unparse(call.func)


def calls(root: Path) -> Iterator[tuple[str, ast.Call]]:
    for file, tree in sources(root):
        yield from ((file, node) for node in ast.walk(tree) if isinstance(node, ast.Call))


def keyword(call: ast.Call, name: str) -> object:
    for given in call.keywords:
        if given.arg == name:
            return getattr(given.value, "value", given.value)
    return None


def test_no_pickle_is_imported(root: Path) -> None:
    broken = []
    for file, tree in sources(root):
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            is_pickle = any(name.split(".")[0] in PICKLES for name in names)
            if isinstance(node, (ast.Import, ast.ImportFrom)) and is_pickle:
                broken.append(f"{file}:{node.lineno}")
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in PICKLES:
                broken.append(f"{file}:{node.lineno}: {ast.unparse(node)}")
    assert not broken


def test_nothing_reads_a_pickle(root: Path) -> None:
    broken = []
    for file, call in calls(root):
        name = name_of(call)
        if name == "torch.load" and keyword(call, "weights_only") is not True:
            broken.append(f"{file}:{call.lineno}: torch.load without weights_only=True")
        if name in ("np.load", "numpy.load", "np.savez") and keyword(call, "allow_pickle") is not False:
            broken.append(f"{file}:{call.lineno}: {name} without allow_pickle=False")
        if name in ("torch.save", "pd.read_pickle") or keyword(call, "trust_remote_code") is True:
            broken.append(f"{file}:{call.lineno}: {name}")
    assert not broken


def test_archives_are_unpacked_member_by_member(root: Path) -> None:
    """tasks/fetch/transfer.py checks each name; `extractall` and `unpack_archive` do not."""
    broken = [
        f"{file}:{call.lineno}"
        for file, call in calls(root)
        if name_of(call).rpartition(".")[2] in ("extractall", "unpack_archive") and keyword(call, "filter") != "data"
    ]
    assert not broken


def test_no_text_becomes_code(root: Path) -> None:
    broken = []
    for file, call in calls(root):
        name = name_of(call)
        if name in ("eval", "exec", "os.system", "os.popen", "yaml.unsafe_load", "yaml.full_load"):
            broken.append(f"{file}:{call.lineno}: {name}")
        if name == "yaml.load" and not any("Safe" in ast.unparse(part) for part in (*call.args, *call.keywords)):
            broken.append(f"{file}:{call.lineno}: yaml.load without a safe loader")
        if keyword(call, "shell") is True:
            broken.append(f"{file}:{call.lineno}: shell=True")
    assert not broken


EVIL = ["../x", "/etc/x", "a/b", "..", ".hidden", "a\\b", "a\0b", "x;rm", "$(x)", "a b", "", "-x"]


@pytest.mark.parametrize("name", EVIL)
@pytest.mark.parametrize(
    "place", ["pretrain.encoders.0.name", "finetune.encoders", "corpus.sources.0.name", "fetch.sources"]
)
def test_names_are_names(root: Path, place: str, name: str) -> None:
    content = yaml.safe_load((root / "params.yaml").read_text())
    if place == "finetune.encoders":
        content["finetune"]["encoders"] = [{"name": name, "path": "encoders/x"}]
    elif place == "fetch.sources":
        content["fetch"] = {"sources": [{"name": name, "kind": "local", "path": "x", "to": "books/x"}]}
    else:
        section, key, _, field = place.split(".")
        content[section][key][0][field] = name
    with pytest.raises(UserError):
        Params.parse(content, "params.yaml")


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x"])
def test_paths_stay_in_data(root: Path, path: str) -> None:
    for change in (
        {"corpus": {"sources": [{"name": "books", "kind": "books", "path": path}]}},
        {"fetch": {"sources": [{"name": "s", "kind": "local", "path": "x", "to": path}]}},
        {"finetune": {"encoders": [{"name": "e", "path": path}]}},
    ):
        content = yaml.safe_load((root / "params.yaml").read_text())
        for section, values in change.items():
            content[section] = {**(content.get(section) or {}), **values}
        with pytest.raises(UserError):
            Params.parse(content, "params.yaml")


def test_names_of_benchmarks_are_those_of_the_table_or_of_files(root: Path) -> None:
    for name in EVIL:
        content = yaml.safe_load((root / "params.yaml").read_text())
        content["finetune"]["benchmarks"] = {name: None}
        with pytest.raises(UserError):
            Params.parse(content, "params.yaml")


def test_pins_are_exact(root: Path) -> None:
    lines = (root / "constraints.txt").read_text().split()
    assert len(lines) > 200 and all(re.fullmatch(r"[A-Za-z0-9._-]+==[^=\s]+", line) for line in lines)


def test_the_lock_has_the_same_pins_each_with_digests(root: Path) -> None:
    text = (root / "requirements.lock").read_text()
    assert "://" not in text and "file:" not in text  # no host is named
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if not entry.startswith("#")]
    found = {}
    for entry in entries:
        first, *digests = entry.split(" \\\n")
        name, _, version = first.partition(" ;")[0].strip().partition("==")
        found[name.lower().replace("_", "-").replace(".", "-")] = version
        assert version and digests, entry[:80]
        assert all(re.fullmatch(r"\s+--hash=sha256:[0-9a-f]{64}\s*", digest) for digest in digests), entry[:80]
    for line in (root / "constraints.txt").read_text().split():
        name, _, version = line.partition("==")
        there = found.get(name.lower().replace("_", "-").replace(".", "-"), version)
        assert there == version, f"requirements.lock has {name} {there}: make it again, as its first lines say"
