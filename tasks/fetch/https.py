"""A file from a web server, held against the digest that it must have."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import requests
import urllib3

from model.common.errors import UserError
from model.common.files import read_json, write_json
from tasks.fetch.transfer import (
    BLOCK_BYTES,
    Attempts,
    Fetched,
    FetchedFile,
    Report,
    StagingArea,
    check_stop,
    hashes,
    raise_disk_error,
)
from tasks.fetch.unpack import unpack
from tasks.params.fetch import LOOPBACK, FetchSettings, HttpsSource
from tasks.project.workspace import require_space


def fetch(source: HttpsSource, settings: FetchSettings, staging: StagingArea, report: Report) -> Fetched:
    """Bring the file (or what is in it) into `staging`.

    Raises:
        UserError: the server does not have it, or it has another digest.
        Gone: the server failed too often.
    """
    name = PurePosixPath(source.to).name
    if name not in staging.files or source.unpack:
        part = staging.part(name)
        row = _download_checked(source, settings, part, report)
        if source.unpack:
            unpack(part, staging, settings.max_unpacked_bytes, source.shown, report)
        else:
            staging.keep(name, part, row)
            version_of(part).unlink(missing_ok=True)
    return Fetched(staging.files, is_file=not source.unpack)


def _download_checked(source: HttpsSource, settings: FetchSettings, part: Path, report: Report) -> FetchedFile:
    for is_last in (False, True):
        resumed = download(Address(source.url, source.shown), settings, part, report)
        found = hashes(part, "sha1", report=report)
        if all(found[kind] == digest for kind, digest in _stated(source).items()):
            break
        part.unlink()
        version_of(part).unlink(missing_ok=True)
        if is_last or not resumed:  # halves of two versions are worth one more attempt, from the start
            kind, digest = next(iter(_stated(source).items()))
            raise UserError(
                f"{source.shown}: its {kind} is {found[kind]}, expected {digest}; nothing of it is kept: "
                "the file was changed, or the digest is another file's"
            )
    return FetchedFile(part.stat().st_size, found["sha256"], source.shown, next(iter(_stated(source))))


def _stated(source: HttpsSource) -> dict[str, str]:
    return {kind: digest for kind, digest in (("sha256", source.sha256), ("sha1", source.sha1)) if digest}


_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_BROKEN = (requests.ConnectionError, requests.Timeout, urllib3.exceptions.HTTPError, OSError)


@dataclass(frozen=True)
class Address:
    """Where a file is."""

    url: str
    shown: str
    """As messages name it: without what may be secret."""
    headers: Mapping[str, str] = field(default_factory=dict)


def version_of(part: Path) -> Path:
    """Beside a part: which version of the file it is of."""
    return part.with_suffix(".version")


def download(address: Address, settings: FetchSettings, part: Path, report: Report) -> bool:
    """Bring `part` to its full length; whether some of it was there before, so that it may be of two versions.

    Raises:
        UserError: the server does not have it.
        Gone: the server failed too often.
    """
    attempts = Attempts(address.shown, settings.attempts, settings.wait_seconds)
    resumed = False
    with requests.Session() as session:
        while True:
            check_stop()
            begin = part.stat().st_size if part.exists() else 0
            resumed |= begin > 0
            wait = 0.0
            try:
                with _ask(session, address, settings, part, begin) as answer:
                    if answer.status_code in _TRY_AGAIN:
                        reason, wait = f"the server answers {answer.status_code}", _asked_wait(answer)
                    elif _is_complete(answer, begin):
                        return resumed
                    else:
                        _require_success(answer, address)
                        _append(answer, part, begin, attempts, report)
                        return resumed
            except requests.exceptions.SSLError as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):  # which also names the whole address
                    raise UserError(f"{address.shown}: the server's certificate is not to be trusted") from None
                reason = "the encrypted connection failed"
            except (requests.exceptions.InvalidURL, requests.TooManyRedirects) as error:
                raise UserError(f"{address.shown}: {type(error).__name__}; look at the address") from None
            except _BROKEN as error:
                raise_disk_error(error)
                reason = f"the connection failed ({type(error).__name__})"
            attempts.failed(reason, wait)


def _ask(
    session: requests.Session, address: Address, settings: FetchSettings, part: Path, begin: int
) -> requests.Response:
    headers = {"Accept-Encoding": "identity", "User-Agent": "cloze", **address.headers}
    if begin:
        headers["Range"] = f"bytes={begin}-"
        version = read_json(version_of(part)).get("version", "") if version_of(part).exists() else ""
        if version:
            headers["If-Range"] = version
    answer = session.get(address.url, headers=headers, stream=True, timeout=settings.timeout_seconds)
    host = urlsplit(answer.url)
    if host.scheme != "https" and host.hostname not in LOOPBACK and address.url.startswith("https"):
        answer.close()
        raise UserError(f"{address.shown}: the server leads to an address without encryption ({host.hostname})")
    return answer


def _is_complete(answer: requests.Response, begin: int) -> bool:
    """Whether the server says that there is nothing after what we have."""
    return answer.status_code == 416 and answer.headers.get("Content-Range", f"bytes */{begin}") == f"bytes */{begin}"


def _require_success(answer: requests.Response, address: Address) -> None:
    if answer.status_code not in (200, 206, 416):
        raise UserError(
            f"{address.shown}: the server answers {answer.status_code} {answer.reason}; look at the address"
        )


def _append(answer: requests.Response, part: Path, begin: int, attempts: Attempts, report: Report) -> None:
    """Write what comes after the first `begin` bytes; a server that sends the file from its start, or another version
    of it, starts the part anew."""
    if answer.status_code == 416:
        part.unlink()
        raise requests.ConnectionError("the file is shorter than what came of it")
    if answer.status_code == 200 or not answer.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
        begin = 0
        if answer.status_code == 206:
            part.unlink(missing_ok=True)
            raise requests.ConnectionError("another range than asked for")
    version = answer.headers.get("ETag", "")
    if not version or version.startswith("W/"):
        version = answer.headers.get("Last-Modified", "")
    write_json(version_of(part), {"version": version})
    length = int(answer.headers.get("Content-Length") or 0)
    if length:
        require_space(part.parent, length, "the download")
    done = begin
    with part.open("ab" if begin else "wb") as file:
        while block := answer.raw.read(BLOCK_BYTES):
            file.write(block)
            done += len(block)
            attempts.progress(done)
            report(done, begin + length if length else 0, f"{done / 1e6:,.0f} MB")
            check_stop()
    if length and done < begin + length:
        raise requests.ConnectionError("the answer was cut off")


def _asked_wait(answer: requests.Response) -> float:
    """The seconds that Retry-After names; 0 without it."""
    value = answer.headers.get("Retry-After", "")
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0
