"""What is known of servers by asking them."""

from __future__ import annotations

import json

import pytest

from tasks.servers.server_plan import ServerSettings, other_artifact_location
from tests.tasks.fetch.servers import Server, reply


@pytest.mark.parametrize(
    ("asked", "location", "elsewhere"),
    [
        ("s3://bucket/folder", "file:///there", "file:///there"),
        ("s3://bucket/folder", "mlflow-artifacts:/1", ""),
        ("s3://bucket/folder", None, ""),  # no experiment yet
        ("", "file:///there", ""),
    ],
)
def test_artifacts_that_stay_where_the_database_began(asked: str, location: str | None, elsewhere: str) -> None:
    body = json.dumps({"experiment": {"artifact_location": location}}).encode()
    server = Server(lambda request: reply(request, 200 if location else 404, body if location else b"{}"))
    settings = ServerSettings(mlflow_port=int(server.url.rpartition(":")[2]), artifacts=asked)
    assert other_artifact_location(settings) == elsewhere
    server.close()
