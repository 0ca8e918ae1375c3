"""A file from a web server: resumed by Range, tried again when the server fails, held against its digest."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import requests
import urllib3

from model.errors import UserError
from model.files import read_json, write_json
from tasks.fetch.archives import unpack
from tasks.fetch.settings import LOOPBACK, FetchSettings, HttpsSource
from tasks.fetch.transfer import (
    BLOCK_BYTES,
    Attempts,
    Fetched,
    Report,
    Room,
    Row,
    check_stop,
    hashes,
    one_line,
    raise_own_fault,
)
from tasks.workspace import require_space

_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_BROKEN = (requests.ConnectionError, requests.Timeout, urllib3.exceptions.HTTPError, OSError)


def fetch(source: HttpsSource, settings: FetchSettings, room: Room, report: Report) -> Fetched:
    """Bring the file (or what is in it) into `room`.

    Raises:
        UserError: the server does not have it, or it has another digest.
        Gone: the server failed too often.
    """
    name = PurePosixPath(source.to).name
    if name not in room.rows or source.unpack:
        part = room.part(name)
        row = _download_checked(source, settings, part, report)
        if source.unpack:
            unpack(part, room, settings.max_unpacked_bytes, source.shown, report)
        else:
            room.keep(name, part, row)
            _note_of(part).unlink(missing_ok=True)
    return Fetched(room.rows, is_file=not source.unpack)


def _download_checked(source: HttpsSource, settings: FetchSettings, part: Path, report: Report) -> Row:
    for is_last in (False, True):
        resumed = _download(source, settings, part, report)
        found = hashes(part, "sha1", report=report)
        if all(found[kind] == digest for kind, digest in _stated(source).items()):
            break
        part.unlink()
        _note_of(part).unlink(missing_ok=True)
        if is_last or not resumed:  # halves of two versions are worth one more attempt, from the start
            kind, digest = next(iter(_stated(source).items()))
            raise UserError(
                f"{source.shown}: its {kind} is {found[kind]}, expected {digest}; nothing of it is kept: "
                "the file was changed, or the digest is another file's"
            )
    return Row(part.stat().st_size, found["sha256"], source.shown, next(iter(_stated(source))))


def _stated(source: HttpsSource) -> dict[str, str]:
    return {kind: digest for kind, digest in (("sha256", source.sha256), ("sha1", source.sha1)) if digest}


def _note_of(part: Path) -> Path:
    """Beside a part: which version of the file it is of."""
    return part.with_suffix(".version")


def _download(source: HttpsSource, settings: FetchSettings, part: Path, report: Report) -> bool:
    """Bring `part` to its full length; whether some of it was there before."""
    attempts = Attempts(source.shown, settings.attempts, settings.wait_seconds)
    resumed = False
    with requests.Session() as session:
        while True:
            check_stop()
            begin = part.stat().st_size if part.exists() else 0
            resumed |= begin > 0
            wait = 0.0
            try:
                with _ask(session, source, settings, part, begin) as answer:
                    if answer.status_code in _TRY_AGAIN:
                        reason, wait = f"the server answers {answer.status_code}", _asked_wait(answer)
                    elif _is_complete(answer, begin):
                        return resumed
                    else:
                        _require_success(answer, source)
                        _append(answer, part, begin, attempts, report)
                        return resumed
            except requests.exceptions.SSLError as error:
                raise UserError(f"{source.shown}: no trustworthy connection ({one_line(error)[:200]})") from None
            except (requests.exceptions.InvalidURL, requests.TooManyRedirects) as error:
                raise UserError(f"{source.shown}: {type(error).__name__}; look at the address") from None
            except _BROKEN as error:
                raise_own_fault(error)
                reason = f"the connection failed ({type(error).__name__})"
            attempts.failed(reason, wait)


def _ask(
    session: requests.Session, source: HttpsSource, settings: FetchSettings, part: Path, begin: int
) -> requests.Response:
    headers = {"Accept-Encoding": "identity", "User-Agent": "cloze"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
        version = read_json(_note_of(part)).get("version", "") if _note_of(part).exists() else ""
        if version:
            headers["If-Range"] = version
    answer = session.get(source.url, headers=headers, stream=True, timeout=settings.timeout_seconds)
    host = urlsplit(answer.url)
    if host.scheme != "https" and host.hostname not in LOOPBACK:
        answer.close()
        raise UserError(f"{source.shown}: the server leads to an address without encryption ({host.hostname})")
    return answer


def _is_complete(answer: requests.Response, begin: int) -> bool:
    """Whether the server says that there is nothing after what we have."""
    return answer.status_code == 416 and answer.headers.get("Content-Range", f"bytes */{begin}") == f"bytes */{begin}"


def _require_success(answer: requests.Response, source: HttpsSource) -> None:
    if answer.status_code not in (200, 206, 416):
        raise UserError(f"{source.shown}: the server answers {answer.status_code} {answer.reason}; look at the address")


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
    write_json(_note_of(part), {"version": version})
    length = int(answer.headers.get("Content-Length") or 0)
    if length:
        require_space(part.parent, length, "the download")
    done = begin
    with part.open("ab" if begin else "wb") as file:
        while block := answer.raw.read(BLOCK_BYTES):
            file.write(block)
            done += len(block)
            attempts.progress()
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
