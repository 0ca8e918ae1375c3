from __future__ import annotations

import pydantic
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


def test_every_mistake_has_a_line() -> None:
    with pytest.raises(UserError) as caught:
        Outer.parse({"inner": 3, "rowss": [], "rows": [{"learning_rate": "x"}]}, "p", lambda path: len(path))
    assert [line.partition(", got")[0] for line in str(caught.value).splitlines()] == [
        "p:1: unknown key 'rowss'; did you mean 'rows'?",
        "p:1: inner: expected keys and values",
        "p:3: rows.0.learning_rate: Input should be a valid number, unable to parse string as a number",
    ]


class Checked(Settings):
    number: int = 0
    inner: Inner

    @pydantic.model_validator(mode="after")
    def _is_even(self) -> Checked:
        if self.number % 2:
            raise UserError("number: expected an even number")
        return self


class Both(Settings):
    first: Checked
    second: Checked


def test_a_check_of_our_own_does_not_hide_other_mistakes() -> None:
    with pytest.raises(UserError) as caught:
        Both.parse({"first": {"number": 1, "inner": {}}, "second": {"innr": {}}}, "p")
    assert str(caught.value).splitlines() == [
        "p: unknown key 'second.innr'; did you mean 'inner'?",
        "p: number: expected an even number",
    ]
    with pytest.raises(UserError, match="^number: expected an even number$"):
        Checked(number=1, inner=Inner())
