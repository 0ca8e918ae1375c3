"""How large the sample world is."""

from __future__ import annotations

import pydantic

from model.common.config_base import Settings


class SampleSettings(Settings):
    """The sizes of the sample world; equal settings give equal bytes on every machine."""

    seed: int = pydantic.Field(default=2018, ge=0)
    """Another seed gives another world: other names, other texts, other rows."""
    num_articles: int = pydantic.Field(default=1600, ge=20, le=20_000)
    """Encyclopedia articles in the dump (redirects, talk and template pages come on top)."""
    num_books: int = pydantic.Field(default=24, ge=1, le=1000)
    """Plain-text books of twelve chapters each."""
    num_train_rows: int = pydantic.Field(default=600, ge=16, le=100_000)
    """Training rows of a benchmark of ordinary size; `sizes.ROWS` scales it for each benchmark."""
    num_dev_rows: int = pydantic.Field(default=400, ge=16, le=100_000)
    """Rows of each development set (MNLI has two of half the size)."""
    num_test_rows: int = pydantic.Field(default=60, ge=4, le=100_000)
    """Rows of each test set, without labels where the original has none."""
