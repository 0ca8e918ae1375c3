"""The model that a recipe asks for: made, made ready, evaluated and finished, whatever the way to adapt it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from model.benchmarks.table import Benchmark
from model.config.finetuning import FeatureAdaptation, FinetuneRecipe, FullAdaptation
from model.encoder.encoder import Encoder
from model.finetune.frozen_features import FeatureModel
from model.finetune.layer_decay import draw_pooler, rate_factors, shape_layers
from model.finetune.lora import add_lora
from model.heads.features import Features
from model.heads.task_model import HEADS, TaskModel


def make_model(encoder: Encoder, benchmark: Benchmark, recipe: FinetuneRecipe, seed: int) -> TaskModel:
    """A model to be trained: its head drawn, frozen what the recipe freezes, additions added.

    A pooler of zeros, which `load_encoder` gives an encoder that was saved without one, is drawn anew where the head
    reads it, and trained in any case: nothing could be learnt through it.

    Raises:
        UserError: the recipe asks for more layers than the encoder has.
    """
    adapt = recipe.adapt
    model = untrained_model(encoder, benchmark, recipe, seed)
    if isinstance(adapt, FeatureAdaptation):
        return model
    is_pooled = not HEADS[benchmark.head].reads_tokens
    is_new = is_pooled and not encoder.pooler.weight.any()
    if is_new:
        draw_pooler(encoder, seed)
    if isinstance(adapt, FullAdaptation):
        shape_layers(encoder, adapt, seed)
    else:
        add_lora(model, adapt, seed)
        encoder.pooler.requires_grad_(is_pooled and (is_new or adapt.pooler))
    return model


def untrained_model(encoder: Encoder, benchmark: Benchmark, recipe: FinetuneRecipe, seed: int = 0) -> TaskModel:
    """A model of the shape that a fine-tuned folder holds: LoRA's additions are merged there."""
    if isinstance(recipe.adapt, FeatureAdaptation):
        return FeatureModel(encoder, benchmark, recipe.dropout, recipe.adapt, seed)
    return TaskModel(encoder, benchmark, recipe.dropout, seed)


def make_ready(model: TaskModel, parts: Iterable[Features], pad_id: int, bf16: bool) -> None:
    """What is done once, on the model's device, before training: frozen features are computed.

    Args:
        parts: all rows that the job reads.
    """
    if isinstance(model, FeatureModel):
        model.compute_features(parts, pad_id, bf16)


def factors_of(model: TaskModel, recipe: FinetuneRecipe) -> dict[str, float] | None:
    """The rate factors that the recipe gives the model's parameters, for `make_optimizer`; None where all are 1."""
    adapt = recipe.adapt
    if not isinstance(adapt, FullAdaptation) or adapt.layer_decay == 1.0:
        return None
    return rate_factors(model, model.encoder.config.num_hidden_layers, adapt.layer_decay)


def count_parameters(model: TaskModel, vocab_size: int) -> dict[str, int]:
    """{"trained", "all"}: numbers that training changes, and that the model has with a whole vocabulary (additions,
    which become part of matrices, left out). A job's encoder may hold only the rows that its texts use."""
    embedding = model.encoder.embeddings.token.weight

    def size(parameter: Tensor) -> int:
        return vocab_size * embedding.shape[1] if parameter is embedding else parameter.numel()

    named = list(model.named_parameters())
    return {
        "trained": sum(size(parameter) for _, parameter in named if parameter.requires_grad),
        "all": sum(size(parameter) for name, parameter in named if ".addition." not in name),
    }
