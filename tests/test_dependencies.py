"""pyproject.toml declares every distribution whose code is imported, and no other; inference needs only a few."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from cloze import load_embedder
from tests.model.conftest import write_small_encoder

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cloze", "flows", "tasks", "model")
# Declared for their versions, or used through another library or as a command
NOT_IMPORTED = {"fastapi", "llvmlite", "pytorch-lightning", "sqlalchemy"}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    return {normalized(re.split(r"[\\[<>=!~; ]", line, maxsplit=1)[0]) for line in lines}


def imported() -> Iterator[tuple[str, str]]:
    """Top-level modules that the packages import, with the file."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
                for name in {name.partition(".")[0] for name in names}:
                    if name not in (*PACKAGES, *sys.stdlib_module_names):
                        yield name, path.relative_to(ROOT).as_posix()


def test_every_import_is_declared_and_every_dependency_imported() -> None:
    known = packages_distributions()
    everything = declared("pipeline", "export", "cluster") - {"cloze"}
    used = set()
    for module, path in imported():
        owners = {normalized(name) for name in known.get(module, [module])}
        assert owners & everything, f"{path} imports {module}, of {owners}: declare it in pyproject.toml"
        used |= owners
    assert declared("pipeline") - used == NOT_IMPORTED


def needed(names: set[str]) -> set[str]:
    """These distributions and all that they require, without those that torch brings for GPUs."""
    found: set[str] = set()
    while names:
        name = names.pop()
        if name in found or name.startswith(("nvidia", "cuda", "triton")):
            continue
        found.add(name)
        requirements = map(Requirement, requires(name) or [])
        names |= {normalized(one.name) for one in requirements if one.marker is None or one.marker.evaluate()}
    return found


def test_inference_needs_few_packages() -> None:
    assert 15 < len(needed(declared())) + 1 <= 40  # with Cloze itself


INFERENCE = """
import json, sys

class Present:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else self.finder.find_spec(name, path, target)

absent = set(json.loads(sys.argv[1]))
sys.meta_path = [Present(finder) for finder in sys.meta_path]
import cloze
for name in set(cloze.__all__) - {"load_board"}:
    getattr(cloze, name)
from flows.cli.main import main
sys.argv = ["cloze", *sys.argv[2:]]
main()
"""


def without_pipeline(*words: str) -> tuple[int, str]:
    """Exit code and output of a command of `cloze` where only the base installation is there."""
    present = needed(declared()) | {"cloze"}
    owners = packages_distributions().items()
    absent = [module for module, names in owners if not {normalized(name) for name in names} & present]
    command = [sys.executable, "-P", "-c", INFERENCE, json.dumps(absent), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_base_installation_is_enough_for_inference(tmp_path: Path) -> None:
    write_small_encoder(tmp_path / "encoder")
    (tmp_path / "texts.txt").write_text("a text\nanother one\n")
    vectors = tmp_path / "vectors.npy"
    embed = ["embed", str(tmp_path / "texts.txt"), "--encoder", str(tmp_path / "encoder"), "--output", str(vectors)]
    code, said = without_pipeline(*embed)
    assert code == 0, said
    expected = load_embedder(tmp_path / "encoder").embed(["a text", "another one"])
    np.testing.assert_array_equal(np.load(vectors), expected)


@pytest.mark.parametrize("command", [["run"], ["board"], ["up"], ["doctor"]])
def test_a_missing_extra_is_named(command: list[str]) -> None:
    code, said = without_pipeline(*command)
    remedy = r"run `pip install 'cloze\[pipeline\]'`"
    assert code == 2 and re.fullmatch(rf"cloze: `cloze {command[0]}` needs the package \w+; {remedy}\n", said)
