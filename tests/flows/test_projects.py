"""Projects apart from the package: one installation of a built wheel, two projects, and an upgrade of the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.flows.clone import Clone, cut_down

pytestmark = [pytest.mark.slow, pytest.mark.disruption]
SOURCES = (
    "cloze",
    "flows",
    "tasks",
    "model",
    "params",
    "params.yaml",
    ".dvc/config",
    ".dvc/.gitignore",
    ".dvcignore",
    ".gitignore",
)
FILES = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "constraints.txt",
    "data.dvc",
    "dvc.yaml",
    "params.yaml",
    "prefect.yaml",
)


def installed(root: Path, folder: Path) -> Path:
    """Build a wheel of `root` and install it, without its dependencies, into a directory of its own."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder / "dist"), str(root)]
    subprocess.run([*pip, *build], check=True)
    [wheel] = (folder / "dist").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


def next_release(root: Path, folder: Path) -> Path:
    """Copy the sources of a release in which fine-tuning works differently."""
    for name in (*SOURCES, *FILES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (root / name).is_dir() else shutil.copyfile
        copy(root / name, folder / name)
    for name, pattern in (("pyproject.toml", r'^version = "(.+)"$'), ("tasks/versions.py", r"^leaderboard = (\d+)$")):
        path = folder / name
        text, number = re.subn(pattern, lambda found: found[0].replace(found[1], "99"), path.read_text(), flags=re.M)
        assert number == 1
        path.write_text(text)
    return folder


def project(folder: Path, site: Path) -> Clone:
    """A project that `cloze init` of the installation in `site` has made."""
    folder.mkdir()
    made = Clone(folder)
    use(made, site)
    made.run("cloze", "init")
    made.params(cut_down)
    made.run("cloze", "sample", "--small")
    return made


def use(made: Clone, site: Path) -> None:
    made.environment["PYTHONPATH"] = str(site)


def test_two_projects_share_an_installation_and_are_upgraded_one_by_one(root: Path, tmp_path: Path) -> None:
    first = installed(root, tmp_path / "first")
    [wheel] = (tmp_path / "first" / "dist").glob("*.whl")
    assert {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()} == {
        *("cloze", "flows", "model", "tasks"),
        f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info",
    }
    a, b = project(tmp_path / "a", first), project(tmp_path / "b", first)
    where = a.run(sys.executable, "-P", "-c", "import cloze, tasks; print(cloze.__file__, tasks.__file__)")
    assert where.split() == [str(first / "cloze" / "__init__.py"), str(first / "tasks" / "__init__.py")]
    b.params(lambda content: content["pretrain"].update(seed=2))
    for one in (a, b):
        one.run("cloze", "run", "--accept-data")
    assert a.board()["systems"] != b.board()["systems"]
    load = "import cloze; print(*(system.name for system in cloze.load_board().systems))"
    assert {"pretrained", "scratch"} <= set(a.run(sys.executable, "-P", "-c", load).split())

    second = installed(next_release(root, tmp_path / "source"), tmp_path / "second")
    for one in (a, b):
        use(one, second)
        said = one.run("cloze", "run", code=2)
        assert "of leaderboard, but the installed Cloze 99 has version 99; run `cloze upgrade`, or install" in said
    said = a.run("cloze", "upgrade")
    assert "→ 99" in said and "leaderboard will run again" in said and "finetune" not in said
    said = a.run("cloze", "run")
    assert next(line for line in said.splitlines() if ": done in" in line).startswith("[6/6] leaderboard")
    assert said.count(": done in") == 1 and "Everything is up to date" in a.run("cloze", "run")
    use(b, first)
    assert "Everything is up to date" in b.run("cloze", "run")
