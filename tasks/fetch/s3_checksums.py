"""What S3 says of an object's bytes, and what they are."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model.common.errors import UserError
from tasks.fetch.transfer import blocks


def check(path: Path, client: Any, bucket: str, key: str, etag: str, stated_sha256: str) -> tuple[str, str]:
    """The sha256 of an object that lies in `path`, and what it was held against: the strongest that there is.

    Raises:
        UserError: its bytes are not what S3, or the settings, say.
    """
    found = sums(path)
    for kind, stated in _stated(path, client, bucket, key, etag, stated_sha256, found):
        if found[kind] != stated:
            raise UserError(
                f"s3://{bucket}/{key}: its {kind} is {found[kind]}, expected {stated}; nothing of it is kept"
            )
        return found["sha256"], kind
    return found["sha256"], "size"


def _stated(
    path: Path, client: Any, bucket: str, key: str, etag: str, stated_sha256: str, found: dict[str, str]
) -> Iterator[tuple[str, str]]:
    if stated_sha256:
        yield "sha256", stated_sha256
    head = client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    in_parts = "-" in etag
    if not in_parts and "-" not in head.get("ChecksumSHA256", "-"):
        yield "sha256", base64.b64decode(head["ChecksumSHA256"]).hex()
    # Encrypted by a key of the user's, the ETag is no digest.
    if "aws:kms" not in head.get("ServerSideEncryption", "") and "SSECustomerAlgorithm" not in head:
        if not in_parts and len(etag) == 32:
            yield "etag", etag
        if in_parts:
            first = client.head_object(Bucket=bucket, Key=key, PartNumber=1)
            part_bytes, count = first["ContentLength"], int(etag.rpartition("-")[2])
            if part_bytes and first.get("PartsCount") == count == -(-path.stat().st_size // part_bytes):
                found["etag"] = sums(path, part_bytes)["etag"]
                yield "etag", etag
    if "-" not in head.get("ChecksumCRC32", "-") and (not in_parts or head.get("ChecksumType") == "FULL_OBJECT"):
        yield "crc32", base64.b64decode(head["ChecksumCRC32"]).hex()


def sums(path: Path, part_bytes: int = 0) -> dict[str, str]:
    """sha256, crc32, and the ETag that S3 gives to an upload in parts of `part_bytes` (0: in one)."""
    sha256, whole, crc = hashlib.sha256(), _md5(), 0
    digests: list[bytes] = []
    part, free = _md5(), part_bytes
    for block in blocks(path):
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
