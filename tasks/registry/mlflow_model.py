"""MLmodel: what makes a directory of safetensors an MLflow model, with signature and input example."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from model.benchmarks.head_specs import HEAD_SPECS
from model.benchmarks.head_specs.base import FieldType
from model.benchmarks.table import Benchmark, trained_for
from model.common.digests import write_digests
from model.common.files import read_json, write_bytes, write_json
from tasks.registry.artifacts import copy_published

EXAMPLE = "input_example.json"
SERVING_EXAMPLE = "serving_input_example.json"
_LOADER = "model.inference.pyfunc"
_TEXT = "text"  # as in the loader, which imports torch
_PYTHON = platform.python_version()
_SENTENCES = ("A warm, funny film.", "The film is warm and funny.", "It rains.", "Nobody laughs.", "The end.")
_LIBRARIES = ("torch", "tokenizers", "safetensors", "numpy")


def write_model(source: Path, folder: Path, path: str, link: Callable[[Path, Path], object]) -> None:
    """Write the MLflow model of a published encoder or fine-tuned model into `folder`.

    Args:
        path: directory in the artifacts of an MLflow run, whose id is not known yet.
        link: links or copies a file.
    """
    copy_published(source, folder, link)
    write_digests(folder)
    write_mlmodel(folder, None, path)


def write_mlmodel(folder: Path, run_id: str | None, path: str) -> None:
    """Write the files that MLflow reads next to an encoder, or to a fine-tuned model, which has head.json.

    Args:
        run_id: MLflow run whose artifact `path` the directory will be.
    """
    from mlflow.models import Model
    from mlflow.models.signature import ModelSignature
    from mlflow.types.schema import Schema, TensorSpec

    head = folder / "head.json"
    if head.is_file():
        row = trained_for(read_json(head), str(head))
        spec = HEAD_SPECS[row.head]
        types = spec.request_types(row)
        outputs, example = _schema(spec.response_types(), ["prediction"]), _example(row, types)
    else:
        types, example = {_TEXT: "string"}, {_TEXT: _SENTENCES[0]}
        width = read_json(folder / "config.json")["hidden_size"]
        outputs = Schema([TensorSpec(np.dtype(np.float32), (-1, width))])
    split = {"columns": list(example), "data": [list(example.values())]}
    write_json(folder / EXAMPLE, split)
    write_json(folder / SERVING_EXAMPLE, {"dataframe_split": split})
    libraries = "".join(f"{name}=={version(name).partition('+')[0]}\n" for name in _LIBRARIES)
    write_bytes(folder / "requirements.txt", f"cloze=={version('cloze')}\n{libraries}".encode())
    environment = {"python": _PYTHON, "dependencies": ["-r requirements.txt"]}
    write_bytes(folder / "python_env.yaml", json.dumps(environment).encode())  # JSON is YAML
    model = Model(
        artifact_path=path,
        run_id=run_id,
        signature=ModelSignature(_schema(types, types), outputs),
        saved_input_example_info={
            "artifact_path": EXAMPLE,
            "type": "dataframe",
            "pandas_orient": "split",
            "serving_input_path": SERVING_EXAMPLE,
        },
        model_size_bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    )
    model.add_flavor(
        "python_function", loader_module=_LOADER, python_version=_PYTHON, env={"virtualenv": "python_env.yaml"}
    )
    model.save(str(folder / "MLmodel"))


def _schema(types: Mapping[str, FieldType], required: Collection[str]) -> Any:
    from mlflow.types.schema import AnyType, Array, ColSpec, DataType, Map, Schema

    known: dict[str, Any] = {
        "string": DataType.string,
        "strings": Array(DataType.string),
        "number": DataType.double,
        "numbers": Map(DataType.double),
        "any": AnyType(),
    }
    return Schema([ColSpec(known[kind], name, required=name in required) for name, kind in types.items()])


def _example(row: Benchmark, types: Mapping[str, FieldType]) -> dict[str, Any]:
    """Return a request that the model accepts."""
    texts = [_SENTENCES[place % len(_SENTENCES)] for place in range(max(len(types), len(row.labels)))]
    return {
        name: texts[: len(row.labels)] if kind == "strings" else texts[place]
        for place, (name, kind) in enumerate(types.items())
    }
