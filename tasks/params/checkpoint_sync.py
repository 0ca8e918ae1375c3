"""The section `mirror` of params.yaml. No stage depends on it, so changing it does not cause retraining."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from model.common.config_base import Settings
from model.common.errors import UserError


class CheckpointSyncSettings(Settings):
    """S3 copies of pre-training checkpoints. Credentials come only from the AWS environment variables and files."""

    url: str = Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]+(/[A-Za-z0-9_=+-][A-Za-z0-9._=+-]*)*/?$")
    """s3://bucket or s3://bucket/prefix. Each job uses its own prefix below it, named by the job's digest."""
    endpoint_url: str | None = None
    """Endpoint of an S3-compatible service; AWS_ENDPOINT_URL has the same effect."""
    num_kept: int = Field(default=2, ge=1)
    """Number of checkpoints to keep per job, newest first."""
    patience_seconds: float = Field(default=120.0, ge=0)
    """How long to wait for S3 at the start of a job without a local checkpoint. After that the job exits with 75 rather
    than restart from scratch and risk discarding days of work."""
    drain_seconds: float = Field(default=300.0, ge=0)
    """How long to wait for the last upload when training has finished."""
    stop_seconds: float = Field(default=8.0, ge=0)
    """How long to wait for the last upload when the run was interrupted."""

    @field_validator("endpoint_url")
    @classmethod
    def _is_url(cls, address: str | None) -> str | None:
        parts = urlsplit(address or "")
        if address is not None and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise UserError("params.yaml: mirror.endpoint_url: expected a URL that starts with https:// or http://")
        if parts.username is not None or parts.password is not None or parts.query:
            raise UserError(
                "params.yaml: mirror.endpoint_url: user, password and query are not allowed; set AWS_PROFILE, or"
                " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        return address
