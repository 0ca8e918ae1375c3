"""Reading and writing YAML files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from model.common.errors import UserError


class _Loader(yaml.SafeLoader):
    """A loader that notes the keys that a mapping has twice, of which YAML would silently take the last."""

    def __init__(self, path: Path) -> None:
        super().__init__(_text(path))
        self._path = path
        self.duplicates: list[str] = []

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.value in lines:
                where = f"{self._path}:{line}"
                self.duplicates.append(f"{where}: duplicate key '{key.value}', also on line {lines[key.value]}")
            lines[key.value] = line
        return node


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that contains a mapping.

    Raises:
        UserError: it is missing or malformed; the message names the line.
    """
    loader = _Loader(path)
    try:
        content = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{where}: {' '.join((error.problem or str(error)).split())}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
    finally:
        loader.dispose()
    if loader.duplicates:
        raise UserError("\n".join(loader.duplicates))
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping at the top level")
    return content


def line_of(path: Path, location: Sequence[int | str]) -> int | None:
    """Return the line of a value in a YAML file, or of the nearest part around it; None for the whole file.

    Args:
        location: keys and list indices that lead to the value.
    """
    node, line = yaml.compose(_text(path), yaml.SafeLoader), None
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


def write_yaml(path: Path, content: dict[str, Any]) -> None:
    """Write a mapping, keeping the order of its keys."""
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
