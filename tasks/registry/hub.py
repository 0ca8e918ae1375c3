"""Upload a model's directory to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from model.common.errors import Paused, UserError


def check_repository(name: str) -> None:
    """Check the name of a repository: NAME or OWNER/NAME.

    Raises:
        UserError: the hub allows no such name.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise UserError(
            f"'{name}': expected a repository such as my-name/my-encoder: letters, digits, '-', '_' and '.'"
        ) from None


def require_token() -> str:
    """Return the hub's token.

    Raises:
        UserError: there is none.
    """
    from huggingface_hub import get_token

    token = get_token()
    if not token:
        raise UserError("no token for the hub; set HF_TOKEN to one that may write, or run `hf auth login`")
    return token


def upload(folder: Path, repository: str, token: str, private: bool, message: str) -> str:
    """Upload a directory as one commit, and return the commit's URL. Files of an earlier upload that are missing from
    the directory are removed.

    Args:
        private: create a private repository; an existing one is not changed.

    Raises:
        UserError: the hub refuses the token or the files.
        Paused: the hub cannot be reached; nothing is committed, and the next upload skips files that arrived.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    api = HfApi(token=token)
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        return str(
            api.upload_folder(
                repo_id=repository, folder_path=folder, commit_message=message, delete_patterns=["*"]
            ).commit_url
        )
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status >= 500 or status in (408, 429):
            raise Paused(f"{repository}: the hub returned {status}; nothing was committed") from None
        reason = "the token may not write there" if status in (401, 403) else error.server_message or "refused"
        raise UserError(f"{repository}: the hub returned {status}: {reason}") from None
    except Exception as error:
        # The library's HTTP client is httpx or its successor.
        if isinstance(error, OSError) or type(error).__module__.startswith(("httpx", "httpcore")):
            raise Paused(
                f"{repository}: the connection failed ({type(error).__name__}); nothing was committed"
            ) from None
        raise
