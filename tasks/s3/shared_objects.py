"""S3 objects that several workers read and write: every call is retried, and every failure is a UserError."""

from __future__ import annotations

import functools
import io
import time
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

from model.common.errors import UserError
from tasks.s3.client import CHANGED, MISSING, S3Client, S3Error

Result = TypeVar("Result")
READ_BYTES = 4 << 20
WAIT_SECONDS = 0.1  # before the second attempt; doubled after each attempt
_ATTEMPTS = 6


@functools.lru_cache(maxsize=1)
def shared_client() -> S3Client:
    """The client of this process, configured by the environment alone."""
    return S3Client()


def retry(name: str, call: Callable[[S3Client], Result]) -> Result:
    """Call with the shared client until the call succeeds, up to six times with growing waits.

    Raises:
        UserError: the object is missing or was changed, or S3 keeps failing.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            return call(shared_client())
        except (S3Error, OSError) as error:
            code = error.code if isinstance(error, S3Error) else ""
            if code in MISSING:
                raise UserError(f"{name}: missing, or no longer there; put it back and run again") from None
            if code in CHANGED:
                raise UserError(f"{name}: was changed after it was listed; run again when it is complete") from None
            is_final = isinstance(error, S3Error) and not error.is_temporary
            if is_final or attempt == _ATTEMPTS:
                reason = error.reason if isinstance(error, S3Error) else " ".join(str(error).split())
                raise UserError(f"{name}: S3 failed {attempt} times ({reason}); check endpoint and keys") from None
            time.sleep(WAIT_SECONDS * 2 ** (attempt - 1))


def open_object(location: str, size: int, etag: str) -> BinaryIO:
    """An object as a seekable file, read a few megabytes at a time."""
    return io.BufferedReader(_ObjectReader(location, size, etag), READ_BYTES)  # type: ignore[return-value]


class _ObjectReader(io.RawIOBase):
    def __init__(self, location: str, size: int, etag: str) -> None:
        self._location, self._size, self._etag = location, size, etag
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        span = self._position, min(self._position + len(buffer), self._size)
        if span[1] <= span[0]:
            return 0

        def read(client: S3Client) -> bytes:
            content = client.read(self._location, span, self._etag)
            if len(content) != span[1] - span[0]:
                raise OSError(f"received {len(content):,} of {span[1] - span[0]:,} bytes")
            return content

        content = retry(self._location, read)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)
