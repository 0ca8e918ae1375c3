"""The lock holds the files that a supported machine takes, and no others."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from types import ModuleType
from typing import Any

import pytest

from tests.infra.manifests import INFRA, ROOT


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    specification = importlib.util.spec_from_file_location("lock", INFRA / "lock.py")
    assert specification is not None and specification.loader is not None
    made = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(made)
    return made


def file(name: str, digest: str) -> dict[str, Any]:
    return {"url": f"https://files.example/{name}", "hashes": {"sha256": digest * 64}}


LINUX = [
    file(f"a-1-cp311-cp311-manylinux_2_28_{machine}.whl", digest)
    for machine, digest in zip(("x86_64", "aarch64"), "12")
]
MACS = [file("a-1-cp39-abi3-macosx_11_0_universal2.whl", "3")]
OTHERS = [
    file("a-1-cp312-cp312-manylinux_2_28_x86_64.whl", "4"),
    file("a-1-cp311-cp311-win_amd64.whl", "5"),
    file("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", "6"),
    file("a-1-cp311-cp311t-manylinux_2_28_x86_64.whl", "7"),
]
SOURCE = file("a-1.tar.gz", "8")


def test_only_what_a_supported_machine_takes_is_in_it(lock: ModuleType) -> None:
    package = {"name": "a", "version": "1", "wheels": [*LINUX, *MACS, *OTHERS], "sdist": SOURCE}
    text = lock.render({"packages": [package]})
    assert re.findall(r"sha256:(.)", text) == ["1", "2", "3"] and "example" not in text
    assert lock.digests({**package, "wheels": LINUX}) == ["1" * 64, "2" * 64, "8" * 64], "macOS builds it"
    assert lock.digests({**package, "wheels": LINUX, "marker": "sys_platform == 'linux'"}) == ["1" * 64, "2" * 64]
    assert lock.render({"packages": [{**package, "marker": "sys_platform == 'win32'"}]}) == lock.HEAD


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    named = {re.split(r"[^A-Za-z0-9_.-]", one)[0].lower().replace("_", "-") for one in wanted}
    locked = set(re.findall(r"^([a-z0-9.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert named <= locked
