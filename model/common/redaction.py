"""Removes secrets from text before it is shown or stored: passwords in URLs, signatures, environment variables."""

from __future__ import annotations

import base64
import os
import re
from urllib.parse import quote, unquote

STARS = "***"
# Names of variables with secret values; variables with file paths are not secret.
_SECRET_NAME = re.compile(
    r"(^|_)(SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_KEY|ACCESS_KEY|PRIVATE_KEY|AUTH_STRING)(_|$)", re.I
)
_NAMES_A_FILE = re.compile(r"(_FILE|_PATH|_DIR|_URI)$", re.I)
_SHORTEST = 8  # shorter values would match ordinary words
# The length of a scheme is limited so that the time is linear in that of the text.
_USER_INFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)[^/\s'\"<>]*@")
_PASSWORD_IN_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://([^/\s:]*):?([^/\s]*)@")
_IN_QUERY = re.compile(
    r"([?&;](?:X-Amz-(?:Signature|Credential|Security-Token)|Signature|AWSAccessKeyId|sig|token|access_token"
    r"|auth|password|passwd|secret|api_?key)=)[^&\s'\"<>]+",
    re.I,
)
_IN_HEADER = re.compile(r"((?:Authorization|X-Amz-Security-Token)['\"]?\s*[:=]\s*['\"]?)[^'\"\r\n]+", re.I)
_KEY_ID = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")


def is_secret(name: str) -> bool:
    """Check whether an environment variable of this name contains a secret."""
    return bool(_SECRET_NAME.search(name)) and not _NAMES_A_FILE.search(name)


def redacted(text: str) -> str:
    """Remove secrets from `text`.

    Removes users and passwords in URLs, signatures and tokens in their queries, authorization headers, AWS key ids, and
    the values of secret environment variables.
    """
    for secret in _secrets():
        text = text.replace(secret, STARS)
    text = _USER_INFO.sub(rf"\1{STARS}@", text)
    text = _IN_QUERY.sub(rf"\1{STARS}", text)
    text = _IN_HEADER.sub(rf"\1{STARS}", text)
    return _KEY_ID.sub(STARS, text)


def without_secrets(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment without secret variables and URLs with a user, for processes such as training."""
    return {name: value for name, value in environment.items() if not is_secret(name) and not _USER_INFO.search(value)}


def own_environment() -> dict[str, str]:
    """Copy this process's environment, which another thread may change meanwhile, as MLflow's does."""
    return {name: value for name in list(os.environ) if (value := os.environ.get(name)) is not None}


def _secrets() -> list[str]:
    """Collect the secret values of this process's environment and their encoded forms, longest first."""
    environment = own_environment()
    found = {value for name, value in environment.items() if is_secret(name)}
    pairs = {tuple(value.split(":", 1)) for value in found if ":" in value}  # user:password
    for name, value in environment.items():
        if "@" in value and "://" in value:  # a URL's password may also occur alone
            pairs |= {(unquote(match[1]), unquote(match[2])) for match in _PASSWORD_IN_ADDRESS.finditer(value)}
            found |= {match[2] for match in _PASSWORD_IN_ADDRESS.finditer(value)}
        if name.endswith("_PASSWORD"):
            pairs.add((environment.get(f"{name.removesuffix('_PASSWORD')}_USERNAME", ""), value))
    for user, password in pairs:
        if len(password) >= _SHORTEST:
            found |= {password, base64.b64encode(f"{user}:{password}".encode()).decode()}
    found |= {quote(value, safe="") for value in found}
    return sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)
