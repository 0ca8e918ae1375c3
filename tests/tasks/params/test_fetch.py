"""Mistakes in the section `fetch` are one line that says what to write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from model.common.errors import UserError
from tasks.fetch.fetch_sources import asked
from tasks.params.corpus import CorpusSettings
from tasks.params.fetch import FetchSettings

HTTPS = {"name": "w", "kind": "https", "url": "https://example.org/w.bz2", "sha256": "0" * 64, "to": "wikipedia/w.bz2"}
S3 = {"name": "b", "kind": "s3", "url": "s3://bucket/books/", "to": "books/s3"}


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([{**HTTPS, "kind": "ftp"}], "sources.0.kind: unknown 'ftp'; expected one of dataset, model, s3, https, local"),
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
        ([{"name": "h", "kind": "dataset", "to": "wikipedia"}], "'sources.0.repo' is missing"),
        ([{"name": "h", "kind": "model", "repo": "a/b", "config": "c", "to": "encoders/b"}], "only dataset has it"),
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
    kinds = set()
    for block in map(yaml.safe_load, blocks):
        if "fetch" in block:
            kinds |= {source.kind for source in FetchSettings.parse(block["fetch"], "docs").sources}
        else:
            CorpusSettings.parse(block["corpus"], "docs")
    assert kinds == {"dataset", "https", "s3", "local"}


def test_the_keys_of_earlier_releases_mean_the_same_files() -> None:
    """Their digest is that of the earlier release, so nothing is downloaded again."""
    former = [
        {"name": "d", "door": "hub", "dataset": "a/b", "revision": "0" * 40, "to": "wikipedia/d"},
        {"name": "m", "door": "hub", "model": "a/b", "revision": "0" * 40, "to": "encoders/m"},
        {"name": "l", "door": "local", "path": "x", "to": "books/l"},
    ]
    now = [
        {"name": "d", "kind": "dataset", "repo": "a/b", "revision": "0" * 40, "to": "wikipedia/d"},
        {"name": "m", "kind": "model", "repo": "a/b", "revision": "0" * 40, "to": "encoders/m"},
        {"name": "l", "kind": "local", "path": "x", "to": "books/l"},
    ]
    settings = FetchSettings.parse({"sources": former}, "params.yaml")
    assert settings == FetchSettings.parse({"sources": now}, "params.yaml")
    assert settings.models == {"a/b": "encoders/m"}
    recorded = ["62a8901234df398d", "119dea3724a69a0a", "dd1993186a726a66"]
    assert [asked(source) for source in settings.sources] == recorded
