"""A client of an S3 server on 127.0.0.1 with keys that are to be seen nowhere, and moto's server in this process."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

KEY, SECRET = "AKIAPLANTEDKEYFORTESTS", "wJalrPLANTEDsecretFORtestsONLY"


class Client:
    """One bucket of the server at `url`."""

    def __init__(self, url: str, bucket: str) -> None:
        import boto3

        self.url, self.bucket = url, bucket
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        self.client: Any = boto3.client("s3", endpoint_url=url, **keys)

    def environment(self, folder: Path, url: str = "") -> dict[str, str]:
        """What a client needs: the usual variables, and no files of this machine's user."""
        return {
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_SHARED_CREDENTIALS_FILE": str(folder / "none"),
            "AWS_CONFIG_FILE": str(folder / "none"),
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def names(self, pattern: str = ".*") -> list[str]:
        """The names of its objects that match, in order."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        names = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        return sorted(name for name in names if re.fullmatch(pattern, name))

    def flip(self, key: str) -> None:
        """Change one bit of an object."""
        content = bytearray(self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read())
        content[len(content) // 2] ^= 1
        self.client.put_object(Bucket=self.bucket, Key=key, Body=bytes(content))


class S3(Client):
    """moto's server with one bucket. Servers of one process share their objects: name the bucket apart."""

    def __init__(self, bucket: str) -> None:
        server = pytest.importorskip("moto.server", reason="moto is not installed (pip install -e '.[dev]')")
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self.host, self.port = self._server.get_host_and_port()
        super().__init__(f"http://{self.host}:{self.port}", bucket)
        self.client.create_bucket(Bucket=bucket)

    def close(self) -> None:
        """End it."""
        self._server.stop()
