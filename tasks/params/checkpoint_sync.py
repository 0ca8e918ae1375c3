"""The section `mirror` of params.yaml. No stage depends on it: turning it on or off makes nothing stale."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from model.common.config_base import Settings
from model.common.errors import UserError


class MirrorSettings(Settings):
    """Where checkpoints of pre-training are mirrored to. Credentials come from AWS's own variables and files alone."""

    url: str = Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]+(/[A-Za-z0-9_=+-][A-Za-z0-9._=+-]*)*/?$")
    """s3://bucket or s3://bucket/prefix; every job gets a folder of its own below it, named by its digest."""
    endpoint_url: str | None = None
    """Address of an S3 that is not Amazon's; AWS_ENDPOINT_URL does the same."""
    num_kept: int = Field(default=2, ge=1)
    """Newest checkpoints of a job that stay there."""
    patience_seconds: float = Field(default=120.0, ge=0)
    """Ask a silent S3 so long at the start of a job that has no checkpoint of its own, then stop to be continued: what
    lies there may be days of work."""
    drain_seconds: float = Field(default=300.0, ge=0)
    """Wait so long for the last checkpoint to arrive when training has ended."""
    stop_seconds: float = Field(default=8.0, ge=0)
    """The same when the run was asked to stop."""

    @field_validator("endpoint_url")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        parts = urlsplit(address or "")
        if address is not None and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise UserError(
                "params.yaml: mirror.endpoint_url: expected an address that starts with https:// or http://"
            )
        if parts.username is not None or parts.password is not None or parts.query:
            raise UserError(
                "params.yaml: mirror.endpoint_url: no user, password or query belongs into it; set AWS_PROFILE, or"
                " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        return address
