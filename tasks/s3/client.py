"""The S3 client of this project: endpoint, timeouts, retries, and errors as one line without a word of the credentials.

Credentials, region and endpoint come from the usual AWS variables and files (AWS_ENDPOINT_URL for other providers).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

PART_BYTES = 16 << 20
MISSING = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchBucket"})
CHANGED = frozenset({"412", "PreconditionFailed"})
_REFUSALS: Mapping[str, str] = {
    "403": "access is denied",
    "AccessDenied": "access is denied",
    "AllAccessDisabled": "access is denied",
    "InvalidAccessKeyId": "the access key is not known",
    "SignatureDoesNotMatch": "the secret key does not fit the access key",
    "ExpiredToken": "the session token has expired",
    "404": "not there",
    "NoSuchKey": "not there",
    "NotFound": "not there",
    "NoSuchBucket": "no such bucket",
    "InvalidBucketName": "no name for a bucket",
    "PermanentRedirect": "the bucket is in another region; set AWS_REGION",
    "412": "changed since it was listed",
    "PreconditionFailed": "changed since it was listed",
}


class S3Error(Exception):
    """An S3 call failed; the message is one line without credentials or signatures."""

    def __init__(self, location: str, reason: str, code: str = "", *, is_temporary: bool = False) -> None:
        super().__init__(f"{location}: {reason}" + (f" ({code})" if code else ""))
        self.location, self.reason, self.code, self.is_temporary = location, reason, code, is_temporary


class S3Refused(S3Error):
    """S3 refuses the request, and would refuse it again."""


class S3Unavailable(S3Error):
    """S3 failed, and may succeed the next time.

    `is_temporary` is False for errors that are neither a known refusal nor a broken connection or an overloaded server.
    """


class S3Object(NamedTuple):
    """An object as S3 lists it."""

    location: str
    """s3://bucket/key."""
    size: int
    etag: str
    """With its quotation marks, as S3 sends it."""


@dataclasses.dataclass(eq=False)
class S3Client:
    """Reads, writes, lists and deletes objects by their location, s3://bucket/key.

    Every method raises S3Refused or S3Unavailable.
    """

    endpoint_url: str | None = None
    """Address of a server that is not Amazon's; None takes AWS_ENDPOINT_URL, or Amazon's."""
    attempts: int = 5
    """How often a request is sent before it fails."""
    connect_timeout: float = 60
    """Seconds to wait for a connection."""
    read_timeout: float = 60
    """Seconds to wait for a response."""
    num_connections: int = 10
    """Connections that are kept open."""

    @functools.cached_property
    def boto(self) -> Any:
        """boto3's client, which several threads may use."""
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=self.connect_timeout,
            read_timeout=self.read_timeout,
            retries={"mode": "standard", "total_max_attempts": self.attempts},
            max_pool_connections=self.num_connections,
            # Providers other than Amazon do not all know the checksums that newer clients add to every request.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        session = boto3.Session(region_name=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"))
        if self.endpoint_url and not session.region_name:  # signatures need a region; other providers accept any
            session = boto3.Session(region_name="us-east-1")
        return session.client("s3", endpoint_url=self.endpoint_url, config=config)

    def list(self, prefix: str) -> list[S3Object]:
        """All objects whose location begins with `prefix`."""
        bucket, start = split(prefix)
        with _translated_errors(prefix.rstrip("/")):
            pages = self.boto.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=start)
            entries = [entry for page in pages for entry in page.get("Contents", [])]
        return [S3Object(f"s3://{bucket}/{entry['Key']}", entry["Size"], entry["ETag"]) for entry in entries]

    def head(self, location: str, **options: Any) -> dict[str, Any]:
        """Metadata of an object; `options` are those of boto3's head_object."""
        with _translated_errors(location):
            return dict(self.boto.head_object(**_address(location), **options))

    def open(self, location: str, span: tuple[int, int] | None = None, etag: str = "") -> Any:
        """The content as a stream of botocore, which the caller closes.

        Args:
            location: the object.
            span: first byte, and the byte after the last one; None reads all.
            etag: refuse another version of the object than this one (S3Refused with a code of CHANGED).
        """
        options = {"Range": f"bytes={span[0]}-{span[1] - 1}"} if span else {}
        if etag:
            options["IfMatch"] = etag
        with _translated_errors(location):
            return self.boto.get_object(**_address(location), **options)["Body"]

    def read(self, location: str, span: tuple[int, int] | None = None, etag: str = "") -> bytes:
        """The content, or a part of it; see `open`."""
        with _translated_errors(location):
            return bytes(self.open(location, span, etag).read())

    def write(self, location: str, content: bytes) -> None:
        """Create or replace an object."""
        with _translated_errors(location):
            self.boto.put_object(**_address(location), Body=content)

    def upload(self, stream: BinaryIO, location: str, *, use_threads: bool = True) -> None:
        """Write a stream, in parts if it is large; S3 shows the object when it is whole."""
        from boto3.s3.transfer import TransferConfig

        sizes = {"multipart_threshold": PART_BYTES, "multipart_chunksize": PART_BYTES}
        config = TransferConfig(use_threads=use_threads, **sizes)
        with _translated_errors(location):
            self.boto.upload_fileobj(stream, *split(location), Config=config)

    def download(self, location: str, path: Path) -> None:
        """Write an object to a file."""
        with _translated_errors(location):
            self.boto.download_file(*split(location), str(path))

    def delete(self, location: str) -> None:
        """Delete an object, if it exists."""
        with _translated_errors(location):
            self.boto.delete_object(**_address(location))


def split(location: str) -> tuple[str, str]:
    """Bucket and key of s3://bucket/key."""
    bucket, _, key = location.removeprefix("s3://").partition("/")
    return bucket, key


@contextlib.contextmanager
def _translated_errors(location: str) -> Iterator[None]:
    """Raise botocore's errors as S3Refused or S3Unavailable: their own messages can hold signed addresses."""
    from boto3.exceptions import Boto3Error
    from botocore import exceptions

    try:
        yield
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound):
        reason = "no credentials; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise S3Refused(location, reason) from None
    except (exceptions.ClientError, Boto3Error) as error:
        if isinstance(error, exceptions.ClientError):
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            is_temporary, reason = status in (408, 429) or status >= 500, f"S3 answers {code}"
        else:  # raised by uploads and downloads: the cause is only in the text
            code = next((code for code in _REFUSALS if not code.isdigit() and f"({code})" in str(error)), "")
            is_temporary, reason = True, f"the transfer failed ({type(error).__name__})"
        if code in _REFUSALS:
            raise S3Refused(location, _REFUSALS[code], code) from None
        raise S3Unavailable(location, reason, is_temporary=is_temporary) from None
    except exceptions.SSLError:
        raise S3Unavailable(location, "the server's certificate is not trusted") from None
    except exceptions.BotoCoreError as error:
        broken = (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError)
        is_temporary = isinstance(error, broken)
        reason = "the connection failed" if is_temporary else "the request failed"
        raise S3Unavailable(location, f"{reason} ({type(error).__name__})", is_temporary=is_temporary) from None


def _address(location: str) -> dict[str, str]:
    bucket, key = split(location)
    return {"Bucket": bucket, "Key": key}
