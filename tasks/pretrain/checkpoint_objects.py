"""A job's checkpoints on S3: listed, sent, fetched and removed, whole ones only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model.common.checkpoint_files import CONTENT, DIGESTS, Damaged, check_files
from tasks.params.checkpoint_sync import CheckpointSyncSettings
from tasks.s3.s3_errors import NO_CREDENTIALS, REFUSALS

_STEP = re.compile(r"(step-\d{8,})/([^/]+)")
_PART_BYTES = 16 << 20


class Refused(Exception):
    """S3 says no, and would say so again; the message is a line without a word of the credentials."""


class Silent(Exception):
    """S3 failed, and may not fail next time; the message is a line without a word of the credentials."""


class Vanished(Exception):
    """A checkpoint on this machine was removed before it was opened: a newer one is there."""


class MirroredJob:
    """The checkpoints of one job, below settings.url/`name`. One thread at a time; each call asks S3."""

    def __init__(self, settings: CheckpointSyncSettings, name: str) -> None:
        self.place = f"{settings.url.rstrip('/')}/{name}"
        self._bucket, _, prefix = self.place.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/"
        self._endpoint_url = settings.endpoint_url
        self._made: Any = None

    def steps(self) -> dict[str, bool]:
        """Folder name → whether the checkpoint is whole, newest first."""
        with _faults(self.place):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
            keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        found: dict[str, set[str]] = {}
        for key in keys:
            if match := _STEP.fullmatch(key.removeprefix(self._prefix)):
                found.setdefault(match[1], set()).add(match[2])
        return {step: {DIGESTS, *CONTENT} <= found[step] for step in sorted(found, reverse=True)}

    def has(self, path: Path) -> bool:
        """Whether just this checkpoint is there."""
        try:
            with _faults(self.place):
                there = self._client.get_object(Bucket=self._bucket, Key=self._key(path.name, DIGESTS))["Body"].read()
            return bool(json.loads(there) == json.loads((path / DIGESTS).read_bytes()))
        except (Refused, ValueError, FileNotFoundError):  # no such object, or none that can be believed
            return False

    def send(self, path: Path) -> None:
        """Upload a checkpoint; what it overwrites was not whole, or is no longer when the first file comes.

        Raises:
            Vanished: training has removed it.
        """
        from boto3.s3.transfer import TransferConfig

        # In this thread alone: it has a low priority, which threads of boto's would not have.
        plain = TransferConfig(use_threads=False, multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES)
        with contextlib.ExitStack() as opened:
            try:  # open files outlive their names: training may remove the checkpoint meanwhile
                streams = {name: opened.enter_context((path / name).open("rb")) for name in (*CONTENT, DIGESTS)}
            except FileNotFoundError:
                raise Vanished(path.name) from None
            with _faults(self.place):
                self._client.delete_object(Bucket=self._bucket, Key=self._key(path.name, DIGESTS))
                for name, stream in streams.items():  # DIGESTS is the last
                    self._client.upload_fileobj(stream, self._bucket, self._key(path.name, name), Config=plain)

    def keep(self, num_kept: int) -> None:
        """Remove all but the newest whole checkpoints, and halves that are older than those."""
        steps = self.steps()
        whole = [step for step in steps if steps[step]][:num_kept]
        for step in steps:
            if whole and step not in whole and step < whole[0]:
                with _faults(self.place):
                    for name in (DIGESTS, *CONTENT):  # in this order a kill leaves no folder that looks whole
                        self._client.delete_object(Bucket=self._bucket, Key=self._key(step, name))

    def fetch(self, step: str, directory: Path) -> None:
        """Put a checkpoint into `directory`, whole or not at all.

        Raises:
            Damaged: it is not what was sent.
        """
        partial = directory / f".{step}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        target = directory / step
        try:
            with _faults(self.place):
                for name in (*CONTENT, DIGESTS):
                    self._client.download_file(self._bucket, self._key(step, name), str(partial / name))
            try:
                check_files(partial)
            except Damaged as fault:
                raise Damaged(str(fault).replace(partial.name, step)) from None
            shutil.rmtree(target, ignore_errors=True)  # a damaged one: what is whole here is not fetched
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _key(self, step: str, name: str) -> str:
        return f"{self._prefix}{step}/{name}"

    @property
    def _client(self) -> Any:
        if self._made is None:
            import boto3
            from botocore.config import Config

            config = Config(
                connect_timeout=5,
                read_timeout=30,
                retries={"mode": "standard", "total_max_attempts": 2},  # the sender has patience of its own
                # Makers other than Amazon do not all know the checksums that newer clients add to every request.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            )
            region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            session = boto3.Session(region_name=region)
            if self._endpoint_url and not session.region_name:  # servers that are not Amazon's take any
                session = boto3.Session(region_name="us-east-1")
            self._made = session.client("s3", endpoint_url=self._endpoint_url, config=config)
        return self._made


@contextlib.contextmanager
def _faults(place: str) -> Iterator[None]:
    """What boto says, as Refused or Silent: its own messages can hold addresses with signatures."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        PartialCredentialsError,
        ProfileNotFound,
    )

    try:
        yield
    except (NoCredentialsError, PartialCredentialsError, ProfileNotFound):
        raise Refused(f"{place}: {NO_CREDENTIALS}") from None
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in REFUSALS:
            raise Refused(f"{place}: {REFUSALS[code]} ({code})") from None
        raise Silent(f"{place}: S3 answers {code}") from None
    except Boto3Error as error:  # how uploads fail: the cause is in the text alone
        code = next((code for code in REFUSALS if not code.isdigit() and f"({code})" in str(error)), "")
        if code:
            raise Refused(f"{place}: {REFUSALS[code]} ({code})") from None
        raise Silent(f"{place}: {type(error).__name__}") from None
    except BotoCoreError as error:
        raise Silent(f"{place}: {type(error).__name__}") from None
