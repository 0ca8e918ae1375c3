"""The remotes of DVC, and what is wrong with them: no verification, keys in a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from model.common.errors import UserError
from model.common.redaction import redacted
from tasks.project.project import Project

_KEYS = ("access_key_id", "secret_access_key", "session_token", "password", "connection_string", "sas_token")


@dataclass(frozen=True)
class Remote:
    """A remote as .dvc/config and .dvc/config.local describe it together."""

    name: str
    url: str
    """Without users and passwords."""
    is_default: bool
    faults: tuple[str, ...]
    """What is wrong, each with what to do."""


def remotes(project: Project) -> Iterator[Remote]:
    """All remotes of the project.

    Raises:
        UserError: DVC cannot read its configuration.
    """
    from dvc.config import Config, ConfigError

    try:
        settings: dict[str, Any] = Config(dvc_dir=str(project.root / ".dvc"))
    except ConfigError as error:
        raise UserError(f".dvc/config: {redacted(' '.join(str(error).split()))}") from None
    default = settings.get("core", {}).get("remote", "")
    for name, remote in settings.get("remote", {}).items():
        yield Remote(name, redacted(str(remote.get("url", ""))), name == default, tuple(_faults(name, remote)))


def refuse_unsafe(project: Project) -> None:
    """Refuse to push to, or pull from, a remote that has a fault.

    Raises:
        UserError: naming the remote, and the command that mends it.
    """
    for remote in remotes(project):
        for fault in remote.faults:
            raise UserError(f"DVC's remote '{remote.name}' ({remote.url}): {fault}")


def _faults(name: str, remote: dict[str, Any]) -> Iterator[str]:
    if not remote.get("verify"):
        yield f"a damaged object would be taken without a word: `dvc remote modify {name} verify true`"
    for key in _KEYS:
        if remote.get(key):
            yield (
                f"{key} lies in DVC's configuration: `dvc remote modify --unset {name} {key}` (also with --local), and"
                " set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
    url = str(remote.get("url", ""))
    if redacted(url) != url:
        yield f"its address holds a password: `dvc remote modify {name} url` with one that holds none"
