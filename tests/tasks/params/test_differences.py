"""The differences between two sets of parameters."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.params.differences import UNSET, differences


@pytest.mark.parametrize(
    ("before", "after", "texts"),
    [
        ({"seeds": [1]}, {"seeds": [1, 2]}, ["x.seeds: [1] → [1, 2]"]),
        ({"seed": 1}, {}, ["x.seed: 1 → (default)"]),
        (UNSET, 3, ["x: (default) → 3"]),
        ([{"name": "a", "n": 1}, {"name": "b"}], [{"name": "b"}, {"name": "a", "n": 2}], ["x.a.n: 1 → 2"]),
        ([{"length": 128, "steps": 9}], [{"length": 128, "steps": 8}], ["x.0.steps: 9 → 8"]),
        ([{"steps": 9}], [{"steps": 9}, {"steps": 1}], ['x.1: (default) → {"steps": 1}']),
        ("a" * 99, "b", [f"x: {'a' * 39}… → b"]),
        ({"a": 1}, {"a": 1}, []),
    ],
)
def test_what_differs_is_named(before: Any, after: Any, texts: list[str]) -> None:
    assert differences(before, after, "x") == texts
