"""Reading and writing YAML files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from model.common.errors import UserError


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that contains a mapping.

    Raises:
        UserError: it is missing or malformed.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping at the top level")
    return content


def write_yaml(path: Path, content: dict[str, Any]) -> None:
    """Write a mapping, keeping the order of its keys."""
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
