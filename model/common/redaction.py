"""Secrets taken out of text that is shown or kept: passwords in addresses, signatures, keys of the environment."""

from __future__ import annotations

import base64
import os
import re
from urllib.parse import quote, unquote

STARS = "***"
# Variables whose value is a secret by their name; those that name a file hold none.
_SECRET_NAME = re.compile(
    r"(^|_)(SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_KEY|ACCESS_KEY|PRIVATE_KEY|AUTH_STRING)(_|$)", re.I
)
_NAMES_A_FILE = re.compile(r"(_FILE|_PATH|_DIR|_URI)$", re.I)
_SHORTEST = 8  # a shorter value would be found in innocent words
_USER_INFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s'\"<>]*@")
_PASSWORD_IN_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/\s:]*):?([^/\s]*)@")
_IN_QUERY = re.compile(
    r"([?&;](?:X-Amz-(?:Signature|Credential|Security-Token)|Signature|AWSAccessKeyId|sig|token|access_token"
    r"|auth|password|passwd|secret|api_?key)=)[^&\s'\"<>]+",
    re.I,
)
_IN_HEADER = re.compile(r"((?:Authorization|X-Amz-Security-Token)['\"]?\s*[:=]\s*['\"]?)[^'\"\r\n]+", re.I)
_KEY_ID = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")


def is_secret(name: str) -> bool:
    """Whether an environment variable of this name holds a secret."""
    return bool(_SECRET_NAME.search(name)) and not _NAMES_A_FILE.search(name)


def redacted(text: str) -> str:
    """`text` without what must not be shown.

    Gone are users and passwords in addresses, signatures and tokens in their queries, authorization headers, AWS key
    ids, and every value that a secret variable of the environment has.
    """
    for secret in _secrets():
        text = text.replace(secret, STARS)
    text = _USER_INFO.sub(rf"\1{STARS}@", text)
    text = _IN_QUERY.sub(rf"\1{STARS}", text)
    text = _IN_HEADER.sub(rf"\1{STARS}", text)
    return _KEY_ID.sub(STARS, text)


def without_secrets(environment: dict[str, str]) -> dict[str, str]:
    """An environment for a process that needs none of them, as training."""
    return {name: value for name, value in environment.items() if not is_secret(name)}


def _secrets() -> list[str]:
    """Values of this process's environment that are secret, and the forms in which they travel, the longest first."""
    found = {value for name, value in os.environ.items() if is_secret(name)}
    pairs = {tuple(value.split(":", 1)) for value in found if ":" in value}  # user:password
    for name, value in os.environ.items():
        if "@" in value and "://" in value:  # the password of an address may be shown without it
            pairs |= {(unquote(match[1]), unquote(match[2])) for match in _PASSWORD_IN_ADDRESS.finditer(value)}
            found |= {match[2] for match in _PASSWORD_IN_ADDRESS.finditer(value)}
        if name.endswith("_PASSWORD"):
            pairs.add((os.environ.get(f"{name.removesuffix('_PASSWORD')}_USERNAME", ""), value))
    for user, password in pairs:
        if len(password) >= _SHORTEST:
            found |= {password, base64.b64encode(f"{user}:{password}".encode()).decode()}
    found |= {quote(value, safe="") for value in found}
    return sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)
