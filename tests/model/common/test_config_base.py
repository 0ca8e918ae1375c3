from __future__ import annotations

import pytest

from model.common.config_base import Settings
from model.common.errors import UserError


class Inner(Settings):
    learning_rate: float = 1e-4


class Outer(Settings):
    inner: Inner = Inner()
    rows: list[Inner] = []


def test_a_misspelt_key_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"params.yaml: unknown key 'inner.learnin_rate'; did you mean 'learning_rate'"):
        Outer.parse({"inner": {"learnin_rate": 1}}, "params.yaml")
    with pytest.raises(UserError, match=r"'rows.0.lerning_rate'; did you mean 'learning_rate'"):
        Outer.parse({"rows": [{"lerning_rate": 1}]}, "params.yaml")


def test_a_wrong_value_names_its_place_and_itself() -> None:
    with pytest.raises(UserError, match=r"^p: inner.learning_rate: .*number.*'fast'$"):
        Outer.parse({"inner": {"learning_rate": "fast"}}, "p")


def test_a_message_is_one_line() -> None:
    with pytest.raises(UserError) as caught:
        Outer.parse({"inner": 3, "outer": 4}, "p")
    assert "\n" not in str(caught.value)
