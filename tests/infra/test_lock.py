"""requirements.lock."""

from __future__ import annotations

import re
import tomllib

from tests.infra.manifests import ROOT


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    named = {re.split(r"[^A-Za-z0-9_.-]", one)[0].lower().replace("_", "-") for one in wanted} - {"cloze"}
    locked = set(re.findall(r"^([a-z0-9.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert named <= locked
