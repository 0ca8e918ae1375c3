"""YAML files: duplicate keys, and the lines of settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from model.common.errors import UserError
from tasks.project.yaml_files import line_of, read_yaml

CONTENT = """\
a: &shared {x: 1}
b:
  - {name: one, <<: *shared, x: 2}
  - name: two
    y: 3
"""


def test_lines_of_settings(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(CONTENT)
    assert read_yaml(path)["b"][0] == {"name": "one", "x": 2}
    locations = {(): None, ("a", "x"): 1, ("b", 0, "x"): 3, ("b", 1, "tag", "y"): 5, ("b", 1, "missing"): 4}
    assert {location: line_of(path, location) for location in locations} == locations


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: 1\nb: {c: 1, c: 2}\na: 3\n", "2: duplicate key 'c', also on line 2\n3: duplicate key 'a', also on line 1"),
        ("a: [1\nb: 2\n", "2: expected ',' or ']', but got ':'"),
        ("a: 1\n\tb: 2\n", "2: found character '\\t' that cannot start any token"),
    ],
)
def test_mistakes_name_the_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        read_yaml(path)
    assert str(caught.value).replace(f"{path}:", "") == message


@pytest.mark.parametrize(("make", "message"), [(os.mkfifo, "not a regular file"), (os.mkdir, "found a directory")])
def test_what_might_never_end_is_not_read(make: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    make(tmp_path / "params.yaml")
    with pytest.raises(UserError, match=message):
        read_yaml(tmp_path / "params.yaml")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(b"a: \xff\n")
    with pytest.raises(UserError, match="not UTF-8 text"):
        read_yaml(path)
