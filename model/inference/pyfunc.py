"""Registered models in MLflow: the loader that MLmodel names, so that `mlflow.pyfunc.load_model`, `mlflow models serve`
and batch scoring work on the same directory that `load_finetuned` and `load_embedder` read. There is no pickle.

import mlflow

sentiment = mlflow.pyfunc.load_model("models:/cloze-sst2@champion")
sentiment.predict(pandas.DataFrame({"sentence": ["a warm, funny film"]}))
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model.common.digests import check_digests
from model.inference.embedder import Embedder, load_embedder
from model.inference.predictor import Finetuned, load_finetuned

TEXT = "text"
"""Input column of an encoder."""


@dataclass(frozen=True)
class FinetunedPyfunc:
    """A fine-tuned model: a row of the input is a request, and the result has the keys of a response as columns."""

    finetuned: Finetuned

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> Any:
        """Predict a data frame with the columns of the signature; returns a data frame with a row for each.

        Raises:
            UserError: a row does not fit the benchmark.
        """
        rows = [{name: _plain(value) for name, value in row.items()} for row in data.to_dict("records")]
        responses = self.finetuned.predict(rows)
        names = dict.fromkeys(name for response in responses for name in response)
        columns = {name: [response.get(name) for response in responses] for name in names}
        return type(data)(columns, dtype=object)  # other types would turn a missing whole number into a float


@dataclass(frozen=True)
class EncoderPyfunc:
    """An encoder: the result is the sentence vectors that `cloze embed` writes by default."""

    embedder: Embedder

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> np.ndarray:
        """Embed the column `text` of a data frame; returns (rows, hidden) float32."""
        return self.embedder.embed([str(text) for text in data[TEXT]])


def _load_pyfunc(path: str, model_config: dict[str, Any] | None = None) -> FinetunedPyfunc | EncoderPyfunc:
    """Load the directory `path`; MLflow calls this function.

    Raises:
        UserError: a file is missing or damaged.
    """
    folder = Path(path)
    check_digests(folder)
    if (folder / "head.json").is_file():
        return FinetunedPyfunc(load_finetuned(folder))
    return EncoderPyfunc(load_embedder(folder))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
