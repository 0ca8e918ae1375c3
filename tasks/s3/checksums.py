"""Checksums of S3 objects: those that S3 keeps, and those of a downloaded file."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from tasks.project.parallel import check_stop
from tasks.s3.client import S3Client

_BLOCK_BYTES = 1 << 20


def verify_download(
    path: Path, client: S3Client, location: str, etag: str, expected_sha256: str = ""
) -> tuple[str, str]:
    """Compare a downloaded object with the strongest checksum available.

    Args:
        path: the downloaded file.
        client: asks S3 for its checksums.
        location: the object.
        etag: its ETag, without quotation marks.
        expected_sha256: takes precedence over what S3 keeps.

    Returns:
        The file's SHA-256, and the kind of checksum it was compared with: sha256, etag, crc32, or size if S3 has none.

    Raises:
        UserError: the file differs.
    """
    found = checksums_of(path)
    for kind, expected in _expected(path, client, location, etag, expected_sha256, found):
        if found[kind] != expected:
            raise UserError(f"{location}: its {kind} is {found[kind]}, expected {expected}; it was discarded")
        return found["sha256"], kind
    return found["sha256"], "size"


def _expected(
    path: Path, client: S3Client, location: str, etag: str, expected_sha256: str, found: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """(Kind, checksum), the strongest first; adds to `found` the ETag of an upload in parts."""
    if expected_sha256:
        yield "sha256", expected_sha256
    head = client.head(location, ChecksumMode="ENABLED")
    in_parts = "-" in etag
    if not in_parts and "-" not in head.get("ChecksumSHA256", "-"):
        yield "sha256", base64.b64decode(head["ChecksumSHA256"]).hex()
    # With encryption by a key of the user's, the ETag is not a digest.
    if "aws:kms" not in head.get("ServerSideEncryption", "") and "SSECustomerAlgorithm" not in head:
        if not in_parts and len(etag) == 32:
            yield "etag", etag
        if in_parts:
            first = client.head(location, PartNumber=1)
            part_bytes, count = first["ContentLength"], int(etag.rpartition("-")[2])
            if part_bytes and first.get("PartsCount") == count == -(-path.stat().st_size // part_bytes):
                found["etag"] = checksums_of(path, part_bytes)["etag"]
                yield "etag", etag
    if "-" not in head.get("ChecksumCRC32", "-") and (not in_parts or head.get("ChecksumType") == "FULL_OBJECT"):
        yield "crc32", base64.b64decode(head["ChecksumCRC32"]).hex()


def checksums_of(path: Path, part_bytes: int = 0) -> dict[str, str]:
    """sha256, crc32, and the ETag that S3 gives to an upload in parts of `part_bytes` (0: in one part)."""
    sha256, whole, crc = hashlib.sha256(), _md5(), 0
    digests: list[bytes] = []
    part, free = _md5(), part_bytes
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            check_stop("downloaded data is kept")
            sha256.update(block)
            whole.update(block)
            crc = zlib.crc32(block, crc)
            while part_bytes and block:
                part.update(block[:free])
                taken = min(free, len(block))
                block, free = block[taken:], free - taken
                if not free:
                    digests.append(part.digest())
                    part, free = _md5(), part_bytes
    if part_bytes and free < part_bytes:
        digests.append(part.digest())
    etag = f"{_md5(b''.join(digests)).hexdigest()}-{len(digests)}" if digests else whole.hexdigest()
    return {"sha256": sha256.hexdigest(), "crc32": f"{crc:08x}", "etag": etag}


def _md5(content: bytes = b"") -> Any:
    return hashlib.md5(content, usedforsecurity=False)
