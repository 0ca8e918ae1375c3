"""BERT models in the layout of `transformers`: config.json and the names of all tensors.

Query, key and value are one matrix in `model.encoder` and three in `transformers`. In both, the output matrix of the
masked language modeling head is the token embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model.config.encoder import EncoderConfig
from model.encoder.encoder import Encoder

PROJECTIONS = ("query", "key", "value")

_LAYER_NAMES = {
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
    "output_norm": "output.LayerNorm",
}
_ENCODER_NAMES = {
    "embeddings.token": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.segment": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
}
_FIXED = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}


class BertFormat:
    """BertModel, BertForMaskedLM and BertForPreTraining."""

    token_embedding = "bert.embeddings.word_embeddings.weight"
    pooler = "bert.pooler.dense"  # optional in files
    masked = {
        "transform.weight": "cls.predictions.transform.dense.weight",
        "transform.bias": "cls.predictions.transform.dense.bias",
        "norm.weight": "cls.predictions.transform.LayerNorm.weight",
        "norm.bias": "cls.predictions.transform.LayerNorm.bias",
        "bias": "cls.predictions.bias",
    }
    next_sentence = {"output.weight": "cls.seq_relationship.weight", "output.bias": "cls.seq_relationship.bias"}
    sentence_labels = {
        "next_sentence": {"0": "is_next", "1": "not_next"},
        "sentence_order": {"0": "in_order", "1": "swapped"},
    }
    """Meaning of the classes of cls.seq_relationship by the objective that trained it, as config.json states them."""
    # The output matrix and its bias; some files contain both names, whose tensors must be equal.
    tied = {"cls.predictions.decoder.weight": token_embedding, "cls.predictions.decoder.bias": "cls.predictions.bias"}

    def to_hf(self, config: EncoderConfig, architecture: str) -> dict[str, Any]:
        """Build the content of config.json for the `transformers` class `architecture`."""
        return {
            **config.model_dump(),
            "architectures": [architecture],
            **_FIXED,
            "tie_word_embeddings": True,
            "dtype": "float32",
        }

    def from_hf(self, values: Mapping[str, Any], source: str) -> EncoderConfig:
        """Convert the content of config.json to an encoder configuration.

        Raises:
            UserError: an option is out of range.
            ValueError: the file does not describe a BERT encoder; the message names the option.
        """
        for name, value in _FIXED.items():
            if values.get(name, value) != value:
                raise ValueError(f"{name} is {values[name]!r}, expected {value!r}; only BERT encoders are supported")
        known = {name: values[name] for name in EncoderConfig.model_fields if values.get(name) is not None}
        return EncoderConfig.parse(known, source)

    def names(self, encoder: Encoder) -> dict[str, list[str]]:
        """Map each parameter of the encoder to the tensors in a file that form it, concatenated by rows."""
        names: dict[str, list[str]] = {}
        for name, _ in encoder.named_parameters():
            module, kind = name.rsplit(".", 1)
            if not module.startswith("layers."):
                names[name] = [f"bert.{_ENCODER_NAMES[module]}.{kind}"]
                continue
            _, layer, rest = module.split(".", 2)
            is_joint = rest == "attention.query_key_value"
            parts = [f"attention.self.{part}" for part in PROJECTIONS] if is_joint else [_LAYER_NAMES[rest]]
            names[name] = [f"bert.encoder.layer.{layer}.{part}.{kind}" for part in parts]
        return names

    def canonical(self, name: str) -> str:
        """Normalize a tensor's name: add the `bert.` prefix and replace the old names gamma and beta."""
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        return name if name.startswith(("bert.", "cls.")) else f"bert.{name}"
