"""Mistakes in the section `fetch` are one line that says what to write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from model.common.errors import UserError
from tasks.params.corpus import CorpusSettings
from tasks.params.fetch import FetchSettings

HTTPS = {"name": "w", "door": "https", "url": "https://example.org/w.bz2", "sha256": "0" * 64, "to": "wikipedia/w.bz2"}
S3 = {"name": "b", "door": "s3", "url": "s3://bucket/books/", "to": "books/s3"}


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([{**HTTPS, "door": "ftp"}], "sources.0.door: unknown 'ftp'; expected one of hub, s3, https, local"),
        ([{**HTTPS, "sha256": ""}], "fetch source 'w': sha256 is missing"),
        ([{**HTTPS, "sha256": "abc"}], "sha256"),
        (
            [{**HTTPS, "url": "http://example.org/w.bz2?token=1"}],
            r"starts with https://, got 'http://example.org/w.bz2'$",
        ),
        (
            [{**HTTPS, "url": "https://me:word@example.org/w.bz2"}],
            "fetch source 'w': an address must not contain a user",
        ),
        ([{**HTTPS, "to": "../w.bz2"}], "expected a path below data/ such as wikipedia/en, got '../w.bz2'"),
        ([{**HTTPS, "to": "/w.bz2"}], "expected a path below data/"),
        ([{**HTTPS, "to": "."}], "expected a path below data/"),
        ([{**HTTPS, "sha265": ""}], "unknown key 'sources.0.sha265'; did you mean 'sha256'"),
        ([{**S3, "url": "https://bucket/x"}], "url"),
        ([{**S3, "sha256": "0" * 64}], "sha256 applies to one object"),
        ([{**S3, "endpoint_url": "http://me:word@127.0.0.1:9000"}], "must not contain a user or password"),
        ([S3, S3], "two fetch sources are named 'b'"),
        ([S3, {**HTTPS, "to": "books"}], "'b' and 'w' have the same target"),
        ([{"name": "h", "door": "hub", "to": "wikipedia"}], "give either dataset or model"),
    ],
)
def test_mistakes(sources: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        FetchSettings.parse({"sources": sources}, "params.yaml")
    said = str(caught.value)
    assert said.startswith("params.yaml: ") and "\n" not in said and "word" not in said.replace("password", "")


def test_http_is_for_this_machine() -> None:
    FetchSettings.parse({"sources": [{**HTTPS, "url": "http://127.0.0.1:80/w"}]}, "params.yaml")


def test_the_examples_of_the_page_are_parameters(root: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (root / "docs" / "fetch.md").read_text(encoding="utf-8"), re.DOTALL)
    doors = set()
    for block in map(yaml.safe_load, blocks):
        if "fetch" in block:
            doors |= {source.door for source in FetchSettings.parse(block["fetch"], "docs").sources}
        else:
            CorpusSettings.parse(block["corpus"], "docs")
    assert doors == {"hub", "https", "s3", "local"}
