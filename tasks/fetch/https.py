"""The fetch source type https: one file from a web server, resumed by Range, and verified by its digest."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import requests
import urllib3

from model.common.errors import UserError
from model.common.state_files import read_state, write_state
from tasks.fetch.transfer import (
    BLOCK_BYTES,
    Attempts,
    FetchedFile,
    Report,
    StagingArea,
    check_stop,
    hashes,
    raise_disk_error,
    unpack,
)
from tasks.params.fetch import LOOPBACK, FetchSettings, HttpsSource
from tasks.project.workspace import require_space


def fetch(source: HttpsSource, settings: FetchSettings, staging: StagingArea, report: Report) -> None:
    """Download the file, or unpack the archive, into `staging`.

    Raises:
        UserError: the server does not have the file, or its digest differs.
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
    staging.is_file = not source.unpack


def _download_checked(source: HttpsSource, settings: FetchSettings, part: Path, report: Report) -> FetchedFile:
    expected = {kind: digest for kind, digest in (("sha256", source.sha256), ("sha1", source.sha1)) if digest}
    kind = next(iter(expected))
    for is_last in (False, True):
        resumed = download(source, settings, part, report)
        found = hashes(part, "sha1", report=report)
        if expected.items() <= found.items():
            break
        discard(part)
        if is_last or not resumed:  # parts of two versions: try once more from the start
            raise UserError(
                f"{source.shown}: its {kind} is {found[kind]}, expected {expected[kind]}; it was discarded: "
                "the file changed, or the digest belongs to another file"
            )
    return FetchedFile(part.stat().st_size, found["sha256"], source.shown, kind)


_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_BROKEN = (requests.ConnectionError, requests.Timeout, urllib3.exceptions.HTTPError, OSError)


def version_of(part: Path) -> Path:
    """The file next to a partial download that holds its version."""
    return part.with_suffix(".version")


def discard(part: Path) -> None:
    """Remove a partial download and its version."""
    part.unlink()
    version_of(part).unlink(missing_ok=True)


def download(source: HttpsSource, settings: FetchSettings, part: Path, report: Report) -> bool:
    """Complete `part`; returns True if it was resumed, so that it may consist of two versions.

    Raises:
        UserError: the server does not have the file.
        Gone: the server failed too often.
    """
    attempts = Attempts(source.shown, settings.attempts, settings.wait_seconds)
    resumed = False
    with requests.Session() as session:
        while True:
            check_stop()
            begin = part.stat().st_size if part.exists() else 0
            resumed |= begin > 0
            wait = 0.0
            try:
                with _request(session, source, settings, part, begin) as response:
                    if response.status_code in _TRY_AGAIN:
                        reason, wait = f"the server returned {response.status_code}", _retry_after(response)
                    else:
                        _append(response, source, part, begin, attempts, report)
                        return resumed
            except requests.exceptions.SSLError as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):  # its text contains the full address
                    raise UserError(f"{source.shown}: the server's certificate is not trusted") from None
                reason = "the encrypted connection failed"
            except (requests.exceptions.InvalidURL, requests.TooManyRedirects) as error:
                raise UserError(f"{source.shown}: {type(error).__name__}; check the address") from None
            except _BROKEN as error:
                raise_disk_error(error)
                reason = f"the connection failed ({type(error).__name__})"
            attempts.failed(reason, wait)


def _request(
    session: requests.Session, source: HttpsSource, settings: FetchSettings, part: Path, begin: int
) -> requests.Response:
    headers = {"Accept-Encoding": "identity", "User-Agent": "cloze"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
        version = read_state(version_of(part)).get("version", "")
        if version:
            headers["If-Range"] = version
    response = session.get(source.url, headers=headers, stream=True, timeout=settings.timeout_seconds)
    host = urlsplit(response.url)
    if host.scheme != "https" and host.hostname not in LOOPBACK and source.url.startswith("https"):
        response.close()
        raise UserError(f"{source.shown}: the server redirects to an unencrypted address ({host.hostname})")
    return response


def _append(
    response: requests.Response, source: HttpsSource, part: Path, begin: int, attempts: Attempts, report: Report
) -> None:
    """Append the response after the first `begin` bytes; if the server sends the whole file or another version, start
    over."""
    if response.status_code not in (200, 206, 416):
        raise UserError(
            f"{source.shown}: the server returned {response.status_code} {response.reason}; check the address"
        )
    if response.status_code == 416:
        if response.headers.get("Content-Range", f"bytes */{begin}") == f"bytes */{begin}":
            return  # nothing follows
        part.unlink()
        raise requests.ConnectionError("the file is shorter than the partial download")
    if response.status_code == 200:
        begin = 0
    elif not response.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
        part.unlink(missing_ok=True)
        raise requests.ConnectionError("the server sent another range")
    version = response.headers.get("ETag", "")
    if not version or version.startswith("W/"):
        version = response.headers.get("Last-Modified", "")
    write_state(version_of(part), {"version": version})
    length = int(response.headers.get("Content-Length") or 0)
    if length:
        require_space(part.parent, length, "the download")
    done = begin
    with part.open("ab" if begin else "wb") as file:
        while block := response.raw.read(BLOCK_BYTES):
            file.write(block)
            done += len(block)
            attempts.progress(done)
            report(done, begin + length if length else 0, f"{done / 1e6:,.0f} MB")
            check_stop()
    if length and done < begin + length:
        raise requests.ConnectionError("the response was cut off")


def _retry_after(response: requests.Response) -> float:
    """Seconds requested by Retry-After, or 0."""
    try:
        return urllib3.util.Retry().parse_retry_after(response.headers.get("Retry-After", ""))
    except (urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
        return 0.0
