"""What full fine-tuning does to an encoder by depth: rates that fall, layers drawn anew, layers frozen."""

from __future__ import annotations

from torch import nn

from model.common.errors import UserError
from model.common.rng import Domain, Key
from model.config.finetuning import FullAdaptation
from model.encoder.encoder import Encoder
from model.encoder.init import initialize

_LIKE_THE_EMBEDDINGS = -1


def rate_factors(model: nn.Module, num_layers: int, layer_decay: float) -> dict[str, float]:
    """What each parameter's rate is multiplied by, by name.

    The top layer's is `layer_decay`, each one's below it as much lower, the embeddings' lowest (ELECTRA, Clark et al.
    2020, section 3.1; Zhang et al. 2021, section 6). All that is not inside the encoder's layers has 1.

    Args:
        model: with an `Encoder` as `encoder`.
        num_layers: of the encoder.
    """
    return {name: layer_decay ** _distance(name, num_layers) for name, _ in model.named_parameters()}


def _distance(name: str, num_layers: int) -> int:
    """How far below the head a parameter lies, from 0; the top layer is 1, the embeddings one more than the lowest."""
    part, *rest = name.removeprefix("encoder.").split(".")
    if not name.startswith("encoder.") or part == "pooler":
        return 0
    return num_layers - (int(rest[0]) if part == "layers" else _LIKE_THE_EMBEDDINGS)


def shape_layers(encoder: Encoder, settings: FullAdaptation, seed: int) -> None:
    """Draw anew and freeze what `settings` say, before training.

    Raises:
        UserError: the encoder has fewer layers than that.
    """
    num_layers = encoder.config.num_hidden_layers
    if settings.reinitialised_layers + settings.frozen_layers > num_layers:
        raise UserError(
            f"adapt: reinitialised_layers {settings.reinitialised_layers} and frozen_layers {settings.frozen_layers} "
            f"are more than the encoder's {num_layers} layers; lower one of them"
        )
    for number in range(num_layers - settings.reinitialised_layers, num_layers):
        initialize(encoder.layers[number], Key(seed).for_(Domain.LAYER, number), encoder.config.initializer_range)
    if settings.reinitialised_pooler:
        draw_pooler(encoder, seed)
    for layer in encoder.layers[: settings.frozen_layers]:
        layer.requires_grad_(False)
    if settings.frozen_embeddings or settings.frozen_layers:
        encoder.embeddings.requires_grad_(False)


def draw_pooler(encoder: Encoder, seed: int) -> None:
    """Give the encoder a pooler of first weights, keyed by the seed."""
    initialize(encoder.pooler, Key(seed).for_(Domain.POOLER), encoder.config.initializer_range)
