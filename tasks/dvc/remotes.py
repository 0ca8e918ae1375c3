"""DVC remotes and their unsafe settings: missing verification, and credentials in files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from model.common.errors import UserError
from model.common.redaction import redacted
from tasks.project.project import Project
from tasks.project.workspace import dvc_config

_KEYS = ("access_key_id", "secret_access_key", "session_token", "password", "connection_string", "sas_token")


@dataclass(frozen=True)
class Remote:
    """A remote, as configured in .dvc/config and .dvc/config.local."""

    name: str
    url: str
    """URL without credentials."""
    is_default: bool
    faults: tuple[str, ...]
    """Unsafe settings, each with its fix."""


def remotes(project: Project) -> Iterator[Remote]:
    """Yield all remotes of the project.

    Raises:
        UserError: DVC cannot read its configuration.
    """
    settings: dict[str, Any] = dvc_config(project.root)
    default = settings.get("core", {}).get("remote", "")
    for name, remote in settings.get("remote", {}).items():
        yield Remote(name, redacted(str(remote.get("url", ""))), name == default, tuple(_faults(name, remote)))


def refuse_unsafe(project: Project) -> None:
    """Check that no remote has unsafe settings.

    Raises:
        UserError: a remote is unsafe; the message contains the command that fixes it.
    """
    for remote in remotes(project):
        for fault in remote.faults:
            raise UserError(f"DVC's remote '{remote.name}' ({remote.url}): {fault}")


def _faults(name: str, remote: dict[str, Any]) -> Iterator[str]:
    if not remote.get("verify"):
        yield f"downloads are not verified: run `dvc remote modify {name} verify true`"
    for key in _KEYS:
        if remote.get(key):
            yield (
                f"{key} is in DVC's configuration: run `dvc remote modify --unset {name} {key}` (also with --local),"
                " and set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
    url = str(remote.get("url", ""))
    if redacted(url) != url:
        yield f"its URL contains a password: run `dvc remote modify {name} url` with a URL without one"
