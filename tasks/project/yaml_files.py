"""Reading and writing YAML files."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from model.common.errors import UserError
from model.common.yaml_text import parse_yaml, read_text


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that contains a mapping.

    Raises:
        UserError: it is missing, malformed or too large; the message names the line.
    """
    content = copy.deepcopy(_parsed(read_text(path), str(path)))
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping at the top level")
    return content


_parsed = functools.lru_cache(maxsize=16)(parse_yaml)  # a run reads dvc.yaml and dvc.lock dozens of times


def line_of(path: Path, location: Sequence[int | str]) -> int | None:
    """Return the line of a value in a valid YAML file, or of the nearest part around it; None for the whole file.

    Args:
        location: keys and list indices that lead to the value.
    """
    node, line = _composed(read_text(path)), None
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(part)]
            if not found:
                continue  # the tag of a union, or a missing key
            key, node = found[-1]
            line = key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line


@functools.lru_cache(maxsize=1)
def _composed(text: str) -> yaml.Node | None:
    """Return the nodes of a document, once for all mistakes in it."""
    node: yaml.Node | None = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return node


def write_yaml(path: Path, content: dict[str, Any]) -> None:
    """Write a mapping, keeping the order of its keys."""
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
