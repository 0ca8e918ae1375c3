"""The model that a recipe asks for, ready for training: head, re-initialized and frozen layers, adapters, rates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from model.benchmarks.table import Benchmark
from model.common.errors import UserError
from model.common.rng import Domain, Key
from model.config.finetuning import FeatureAdaptation, FinetuneRecipe, FullAdaptation
from model.encoder.encoder import Encoder
from model.encoder.init import initialize
from model.finetune.frozen_features import FeatureModel
from model.finetune.lora import add_lora
from model.formats.hf_folder import fill, load_tensors, weights_path
from model.heads.task_model import HEADS, TaskModel


def make_model(encoder: Encoder, benchmark: Benchmark, recipe: FinetuneRecipe, seed: int) -> TaskModel:
    """Make a model to train.

    A pooler of zeros, which `load_encoder` gives an encoder that was saved without one, is initialized where the head
    reads it, and trained in any case: nothing could be learned through it.

    Raises:
        UserError: the recipe asks for more layers than the encoder has.
    """
    adapt = recipe.adapt
    model = untrained_model(encoder, benchmark, recipe, seed)
    if isinstance(adapt, FeatureAdaptation):
        return model
    is_pooled = not HEADS[benchmark.head].reads_tokens
    is_new = is_pooled and not encoder.has_pooler
    if is_new:
        _initialize_pooler(encoder, seed)
    if isinstance(adapt, FullAdaptation):
        _shape_layers(encoder, adapt, seed)
    else:
        add_lora(model, adapt, seed)
        encoder.pooler.requires_grad_(is_pooled and (is_new or adapt.pooler))
    return model


def untrained_model(encoder: Encoder, benchmark: Benchmark, recipe: FinetuneRecipe, seed: int = 0) -> TaskModel:
    """Make a model of the shape that a published directory holds, where adapters are merged."""
    if isinstance(recipe.adapt, FeatureAdaptation):
        return FeatureModel(encoder, benchmark, recipe.dropout, recipe.adapt, seed)
    return TaskModel(encoder, benchmark, recipe.dropout, seed)


def load_head(model: TaskModel, directory: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
    """Load the head of the fine-tuned model in `directory`.

    Raises:
        UserError: there is none of the same kind and size.
    """
    if isinstance(model, FeatureModel):
        return model.load_head(directory)
    if tensors is None:
        tensors = load_tensors(directory, model.encoder.config.vocab_size)
    names = {name: [f"bert.{model.head.layer_name}.{name}"] for name, _ in model.classifier.named_parameters()}
    fill(model.classifier, names, tensors, weights_path(directory))


def _shape_layers(encoder: Encoder, settings: FullAdaptation, seed: int) -> None:
    num_layers = encoder.config.num_hidden_layers
    if settings.reinitialized_layers + settings.frozen_layers > num_layers:
        raise UserError(
            f"adapt: reinitialized_layers {settings.reinitialized_layers} and frozen_layers {settings.frozen_layers} "
            f"are more than the encoder's {num_layers} layers; lower one of them"
        )
    for number in range(num_layers - settings.reinitialized_layers, num_layers):
        initialize(encoder.layers[number], Key(seed).for_(Domain.LAYER, number), encoder.config.initializer_range)
    if settings.reinitialized_pooler:
        _initialize_pooler(encoder, seed)
    for layer in encoder.layers[: settings.frozen_layers]:
        layer.requires_grad_(False)
    if settings.frozen_embeddings or settings.frozen_layers:
        encoder.embeddings.requires_grad_(False)


def _initialize_pooler(encoder: Encoder, seed: int) -> None:
    initialize(encoder.pooler, Key(seed).for_(Domain.POOLER), encoder.config.initializer_range)


def factors_of(model: TaskModel, recipe: FinetuneRecipe) -> dict[str, float] | None:
    """Factors of the learning rate by parameter name, for `make_optimizer`; None where all are 1.

    The top layer's is `layer_decay`, that of each layer below it lower by the same factor, that of the embeddings
    lowest (ELECTRA, Clark et al. 2020, section 3.1; Zhang et al. 2021, section 6). Head and pooler have 1.
    """
    adapt, num_layers = recipe.adapt, model.encoder.config.num_hidden_layers
    if not isinstance(adapt, FullAdaptation) or adapt.layer_decay == 1.0:
        return None
    factors = {}
    for name, _ in model.named_parameters():
        match name.split("."):
            case ["encoder", "embeddings", *_]:
                factors[name] = adapt.layer_decay ** (num_layers + 1)
            case ["encoder", "layers", number, *_]:
                factors[name] = adapt.layer_decay ** (num_layers - int(number))
            case _:
                factors[name] = 1.0
    return factors


def count_parameters(model: TaskModel, vocab_size: int) -> dict[str, int]:
    """{"trained", "all"}: number of parameters that training changes, and that the model has with a whole vocabulary.

    The encoder of a job may hold only the embeddings that its texts use. Adapters count as trained only, since they are
    merged into matrices.
    """
    embedding = model.encoder.embeddings.token.weight
    absent = (vocab_size - len(embedding)) * embedding.shape[1]
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    every = sum(p.numel() for name, p in model.named_parameters() if ".addition." not in name)
    return {"trained": trained + (absent if embedding.requires_grad else 0), "all": every + absent}
