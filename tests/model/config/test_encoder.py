"""The encoder's shape: presets, defaults, and refusals."""

from __future__ import annotations

import pytest

from model.common.errors import UserError
from model.config.encoder import EncoderConfig, EncoderShape


def test_feed_forward_is_four_times_the_width_unless_given() -> None:
    shape = EncoderShape(preset="tiny", hidden_size=64)
    assert shape.build(100).intermediate_size == 256
    assert EncoderShape(preset="tiny", intermediate_size=100).build(100).intermediate_size == 100


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'small'"):
        EncoderShape(preset="smal").build(100)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(UserError, match="num_attention_heads 3"):
        EncoderConfig.parse(
            {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 3}, "config"
        )


def test_sizes_are_needed_without_a_preset() -> None:
    with pytest.raises(UserError, match="encoder shape"):
        EncoderShape(hidden_size=32).build(100)
