"""A file from a web server, held against the digest that it must have."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from model.common.errors import UserError
from tasks.fetch.download import Address, download, version_of
from tasks.fetch.transfer import Fetched, FetchedFile, Report, StagingArea, hashes
from tasks.fetch.unpack import unpack
from tasks.params.fetch import FetchSettings, HttpsSource


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
