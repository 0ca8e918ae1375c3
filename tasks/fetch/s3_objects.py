"""Objects of S3: read in ranges, several at a time, resumed range by range, held against S3's own checksums."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from model.common.errors import UserError
from tasks.fetch.s3_checksums import check
from tasks.fetch.s3_ranges import Object, Transfer
from tasks.fetch.transfer import Attempts, Fetched, Gone, Report, Room, Row, one_line, safe_name
from tasks.params.fetch import FetchSettings, S3Source
from tasks.project.workspace import folder_bytes, require_space
from tasks.s3.s3_errors import NO_CREDENTIALS, REFUSALS


def fetch(source: S3Source, settings: FetchSettings, room: Room, report: Report) -> Fetched:
    """Bring the object, or all objects below the prefix, into `room`.

    Raises:
        UserError: there are none, access is denied, or an object differs from its checksum.
        Gone: the server failed too often.
    """
    bucket = urlsplit(source.url).netloc
    with _faults(source):
        client = _client(source, settings)
        objects = _listed(source, client, bucket, room)
        here = [thing for thing in objects if _is_here(thing, room)]
        room.forget_all_but(thing.name for thing in here)
        total = sum(thing.size for thing in objects)
        require_space(room.folder, total - folder_bytes(room.folder), source.url)

        def attempts(name: str) -> Attempts:
            return Attempts(f"{source.url}: {name}", settings.attempts, settings.wait_seconds)

        def finish(thing: Object) -> None:
            try:
                sha256, checked = check(thing.part, client, bucket, thing.key, thing.etag, source.sha256)
            except UserError:
                thing.remove()
                raise
            row = Row(thing.size, sha256, f"s3://{bucket}/{thing.key}", checked, thing.etag)
            room.keep(thing.name, thing.part, row)
            thing.remove()

        todo = [thing for thing in objects if thing.name not in room.rows]
        transfer = Transfer(client, bucket, source.num_connections, attempts, report)
        transfer.run(todo, finish, sum(thing.size for thing in here), total)
    return Fetched(room.rows, is_file=not source.is_prefix)


def _client(source: S3Source, settings: FetchSettings) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=settings.timeout_seconds,
        read_timeout=settings.timeout_seconds,
        retries={"mode": "standard", "total_max_attempts": settings.attempts},
        max_pool_connections=source.num_connections,
    )
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    session = boto3.Session(region_name=region)
    if source.endpoint_url and not session.region_name:
        session = boto3.Session(
            region_name="us-east-1"
        )  # a name for signatures; servers that are not Amazon's take any
    return session.client("s3", endpoint_url=source.endpoint_url, config=config)


def _listed(source: S3Source, client: Any, bucket: str, room: Room) -> list[Object]:
    prefix = source.url.split("/", 3)[3]
    found = []
    if not source.is_prefix:
        head = client.head_object(Bucket=bucket, Key=prefix)
        found.append((prefix, PurePosixPath(source.to).name, head["ContentLength"], head["ETag"]))
    else:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for entry in page.get("Contents", []):
                name = entry["Key"][len(prefix) :]
                if name and not name.endswith("/") and fnmatchcase(name, source.include):
                    found.append((entry["Key"], safe_name(name, source.url), entry["Size"], entry["ETag"]))
    if not found:
        raise UserError(f"{source.url}: no object below this prefix matches include '{source.include}'")
    return [
        Object(key, name, size, etag.strip('"'), room.part(name), source.part_bytes) for key, name, size, etag in found
    ]


def _is_here(thing: Object, room: Room) -> bool:
    row = room.rows.get(thing.name)
    return row is not None and (row.bytes, row.etag) == (thing.size, thing.etag)


@contextlib.contextmanager
def _faults(source: S3Source) -> Iterator[None]:
    """What boto says, in one line without a word of the credentials."""
    from botocore import exceptions

    try:
        yield
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError):
        raise UserError(f"{source.url}: {NO_CREDENTIALS}") from None
    except exceptions.ClientError as error:
        code = _code(error)
        if code in REFUSALS:
            hint = "; end a prefix with a slash" if REFUSALS[code] == "not there" and not source.is_prefix else ""
            raise UserError(f"{source.url}: {REFUSALS[code]} ({code}){hint}") from None
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) in (429, *range(500, 600)):
            raise Gone(f"{source.url}: the server answers {code}, again and again; what has come is kept") from None
        raise UserError(f"{source.url}: the server refuses ({code})") from None
    except exceptions.SSLError:
        raise UserError(f"{source.url}: the server's certificate is not to be trusted") from None
    except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
        raise Gone(f"{source.url}: the connection failed ({type(error).__name__}); what has come is kept") from None
    except exceptions.BotoCoreError as error:
        raise UserError(f"{source.url}: {one_line(error)}") from None


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
