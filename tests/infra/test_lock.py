"""Files that `make lock` writes."""

from __future__ import annotations

import re
import tomllib

from tests.infra.manifests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = (ROOT / "constraints.txt").read_text().splitlines()
LOCKED = re.findall(r"^([A-Za-z0-9_.-]+)==([^ ;]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)


def test_every_dependency_is_locked() -> None:
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    assert {_normal(re.split(r"[^A-Za-z0-9_.-]", one)[0]) for one in wanted} - {"cloze"} <= {name for name, _ in LOCKED}


def test_one_version_of_each_package() -> None:
    pins = {_normal(one.split("==")[0]): one.split("==")[1] for one in PINS}
    assert [one for one in LOCKED if pins.get(one[0], one[1]) != one[1]] == []
    assert PROJECT["tool"]["uv"]["constraint-dependencies"] == PINS


def _normal(name: str) -> str:
    """Return the name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
