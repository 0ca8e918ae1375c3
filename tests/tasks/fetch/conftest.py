"""What the tests of the doors share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.fetch import fetch_sources
from tasks.params.fetch import FetchSettings
from tasks.project import signals
from tasks.project.project import Project
from tests.tasks.fetch.servers import Files, Server

Fetch = Callable[..., dict[str, Any]]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "project"
    root.mkdir()
    return Project(root, root)


@pytest.fixture
def closing() -> Iterator[Callable[[Any], Any]]:
    """Closes servers when the test ends."""
    servers: list[Server] = []

    def add(server: Any) -> Any:
        servers.append(server)
        return server

    yield add
    for server in servers:
        server.close()


@pytest.fixture
def files(closing: Callable[[Any], Any]) -> Files:
    return closing(Files({}))


@pytest.fixture
def fetch(project: Project) -> Iterator[Fetch]:
    """Fetch one source, as `cloze fetch` does without its flow; {} where nothing was to be done."""

    def fetch(source: dict[str, Any], refresh: bool = False, **settings: Any) -> dict[str, Any]:
        settings = {"wait_seconds": 0.01, "timeout_seconds": 5, "attempts": 3} | settings
        parsed = FetchSettings.parse({"sources": [{"name": "s", **source}], **settings}, "params.yaml")
        if not fetch_sources.stale(fetch_sources.open_record(project), fetch_sources.chosen(parsed, ()), refresh):
            return {}
        return fetch_sources.bring(project, parsed, parsed.sources[0], lambda *_: None)

    signals.requested.clear()
    yield fetch
    signals.requested.clear()
