"""Parquet files of hub datasets: selected columns as rows, label numbers as class names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from model.common.errors import UserError, first_line
from model.common.files import open_file

_NO_LABEL = -1  # a withheld label in files of `datasets`


def read_parquet(path: Path, wanted: Sequence[str]) -> tuple[list[str], list[str], Iterator[tuple[int, list[Any]]]]:
    """Read the columns `wanted` that exist in the file.

    Returns:
        The names of these columns, the names of all columns, and the rows with their numbers from 1.

    If the file has class names for a column, as `datasets` writes them, numbers become class names and -1 (a withheld
    label) becomes None. Single-precision numbers (STS-B's scores) become the shortest decimal number that they
    represent: 4.6, as in the original file, rather than 4.599999904632568.

    Raises:
        UserError: the file is missing or not Parquet.
    """
    open_file(path, "; fetch the benchmark into the data folder or leave it out").close()
    try:
        file = pyarrow.parquet.ParquetFile(path)
        schema = file.schema_arrow
        header = [name for name in schema.names if name in set(wanted)]
        table = file.read(columns=header)
        texts = [table.column(name).to_pylist() for name in header]
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a Parquet file, or damaged ({first_line(error)}); fetch it again") from None
    try:
        names = _stated_classes(schema)
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise UserError(f"{path}: the description of its columns is damaged; fetch it again") from None
    columns = []
    for name, values in zip(header, texts):
        if name in names:
            values = [_named(value, names[name]) for value in values]
        elif pyarrow.types.is_float32(schema.field(name).type):
            values = [None if value is None else float(str(np.float32(value))) for value in values]
        columns.append(values)
    rows = ((number, list(fields)) for number, fields in enumerate(zip(*columns), 1))
    return header, list(schema.names), rows


def _stated_classes(schema: pyarrow.Schema) -> dict[str, tuple[str, ...]]:
    """Return the class names that `datasets` wrote into the file, by column."""
    features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    return {name: names for name, feature in features.items() if (names := _names_in(feature))}


def _names_in(feature: Any) -> tuple[str, ...]:
    if isinstance(feature, list):
        return _names_in(feature[0]) if feature else ()
    if not isinstance(feature, dict):
        return ()
    if feature.get("_type") == "ClassLabel":
        return tuple(feature.get("names") or ())
    return _names_in(feature.get("feature"))


def _named(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_named(one, names) for one in value]
    if value == _NO_LABEL:
        return None
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value
