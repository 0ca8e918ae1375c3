"""pyproject.toml declares every distribution whose code is imported, and no other."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("flows", "tasks", "model")
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
    everything = declared("export", "cluster")
    used = set()
    for module, path in imported():
        owners = {normalized(name) for name in known.get(module, [module])}
        assert owners & everything, f"{path} imports {module}, of {owners}: declare it in pyproject.toml"
        used |= owners
    assert declared() - used == NOT_IMPORTED
