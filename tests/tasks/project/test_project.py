"""Where a project can be: each dependency handles its path, or the path is refused in one line."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import make_url

from model.common.errors import UserError
from tasks.project import template
from tasks.project.project import HOME_VARIABLE, MAX_PATH_BYTES, Project

USABLE = (
    "with space",
    " spaces around ",
    "..dots..",
    "é世e\u0301🙂",
    "a#b",
    "a%20b",
    "a:b::c",
    "it's",
    'a"b',
    "[x]*",
    "-dash",
    "a&;|b",
    "(1)<2>!`^",
    "back\\slash",
    "~",
    "a=b@c,d+e",
)
LONG = "/".join(["long" * 25] * 5)
REFUSED = {
    "a?b": "question mark",
    "a\nb": "line breaks",
    "a$HOME": "dollar sign",
    "a{b}": "braces",
    "a\udcffb": "not UTF-8",
    LONG: f"at most {MAX_PATH_BYTES} bytes",
}


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("dvc.yaml", "params.yaml"):
        (folder / name).touch()
    return folder


@pytest.mark.parametrize("name", USABLE)
def test_the_urls_of_a_path_lead_back_to_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (HOME_VARIABLE, "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    project = Project.find(made(tmp_path / name))
    assert make_url(project.tracking_uri).database == str(tmp_path / name / ".cloze" / "mlflow" / "mlflow.db")
    artifacts = project.mlflow_home / "artifacts"
    parts = urlsplit(artifacts.as_uri())
    assert urllib.request.url2pathname(parts.path) == str(artifacts) and not parts.query and not parts.fragment


@pytest.mark.parametrize("name", REFUSED)
def test_a_path_that_a_dependency_cannot_handle_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    folder = tmp_path / name
    with pytest.raises(UserError) as refused:
        template.create(folder)
    assert not folder.exists(), "before anything is written"
    with pytest.raises(UserError) as found:
        Project.find(made(folder))
    said = str(found.value)
    assert said == str(refused.value) and len(said.splitlines()) == 1 and said.isprintable()
    assert repr(str(folder)) in said and REFUSED[name] in said
    assert re.search(r"; use another directory$", said)
