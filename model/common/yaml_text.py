"""Reading YAML that a user wrote, with limits on its size, and without tags, which could make any object."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from model.common.errors import UserError
from model.common.files import open_file

MOST_BYTES = 500_000
MOST_VALUES = 20_000
"""Values of a document, where an alias counts as all that it repeats; PyYAML reads so many in about half a second."""
MOST_LEVELS = 40
_MOST_KEY, _MOST_NUMBER = 200, 80  # characters
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """A loader with limits, which notes the keys that a mapping has twice (YAML would silently take the last)."""

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self._source = source
        self._path: list[str] = []
        self._num_values = 0
        self._sizes: dict[yaml.Node, int] = {}
        self.duplicates: list[str] = []

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        self._path.append(str(index.value if isinstance(index, yaml.ScalarNode) else index))
        if len(self._path) > MOST_LEVELS:
            self._refuse(event, f"more than {MOST_LEVELS} levels of nesting")
        before = self._num_values
        node: Any = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent):
            if node not in self._sizes:
                self._refuse(event, f"'{event.anchor}' contains itself")
            self._num_values += self._sizes[node]
        else:
            if event.tag is not None:
                self._refuse(event, f"remove the tag {event.tag}")
            if isinstance(node, yaml.ScalarNode) and _NOT_TEXT.search(node.value):
                self._refuse(event, "contains a NUL or a surrogate, which text cannot have")
            self._num_values += 1
            self._sizes[node] = self._num_values - before
        if self._num_values > MOST_VALUES:
            self._refuse(event, f"more than {MOST_VALUES:,} values, with what aliases repeat")
        self._path.pop()
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or len(key.value) > _MOST_KEY or not key.value.isprintable():
                self._refuse(key, f"a key must be a text of one line and at most {_MOST_KEY} characters")
            line = key.start_mark.line + 1
            if key.value in lines:
                where = f"{self._source}:{line}"
                self.duplicates.append(f"{where}: duplicate key '{key.value}', also on line {lines[key.value]}")
            lines[key.value] = line
        return node

    def _refuse(self, found: Any, problem: str) -> NoReturn:
        path = ".".join(part for part in self._path if part != "None")[:_MOST_KEY]
        raise yaml.MarkedYAMLError(problem=f"{path}: {problem}" if path else problem, problem_mark=found.start_mark)


def _or_text(convert: Callable[[yaml.SafeLoader, Any], Any]) -> Callable[[yaml.SafeLoader, Any], Any]:
    """Take a scalar that cannot be converted, or not to a number of a reasonable length, as text.

    The check of the setting then names the setting.
    """

    def construct(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
        with contextlib.suppress(ValueError, OverflowError):  # such as 2024-02-31
            if len(node.value) <= _MOST_NUMBER:
                return convert(loader, node)
        return node.value

    return construct


for _kind in ("int", "float", "timestamp"):
    _tag = f"tag:yaml.org,2002:{_kind}"
    _Loader.add_constructor(_tag, _or_text(yaml.SafeLoader.yaml_constructors[_tag]))


def parse_yaml(text: str, source: str) -> Any:
    """Parse a YAML document.

    Args:
        source: name of the file, for messages.

    Raises:
        UserError: it is malformed, has a duplicate key, or exceeds a limit; the message names the line.
    """
    loader = None
    try:
        loader = _Loader(text, source)
        content = loader.get_single_data()
    except yaml.reader.ReaderError as error:
        raise UserError(f"{source}:{text.count(chr(10), 0, error.position) + 1}: {error.reason}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{source}{where}: {' '.join((error.problem or str(error)).split())}") from None
    except (ValueError, OverflowError) as error:  # PyYAML does not check the code of an escaped character
        raise UserError(f"{source}:{loader.line + 1 if loader else 1}: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()
    if loader.duplicates:
        raise UserError("\n".join(loader.duplicates))
    return content


def read_text(path: Path) -> str:
    """Read the text of a YAML file.

    Raises:
        UserError: it is not a file that can be read, is too large, or is not UTF-8.
    """
    try:
        with open_file(path) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{path}: larger than {MOST_BYTES:,} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
