"""Secrets are in nothing that is shown, logged or raised to a server."""

from __future__ import annotations

import base64
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from model.common.redaction import is_secret, redacted, without_secrets
from tasks.project import log_redaction
from tasks.project.progress import echo

SECRET = "wJalrPLANTEDsecret/with+signs="


@pytest.fixture
def installed() -> Iterator[None]:
    before = logging.getLogRecordFactory(), sys.excepthook
    log_redaction.install()
    yield
    logging.setLogRecordFactory(before[0])
    sys.excepthook = before[1]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:pass@word@db:5432/x failed", "postgresql://***@db:5432/x failed"),
        ("postgresql+psycopg2://ann@db/x", "postgresql+psycopg2://***@db/x"),
        ("https://AKIA0123456789ABCDEF@host/path", "https://***@host/path"),
        ("GET https://h/o?X-Amz-Signature=abc123&X-Amz-Date=1", "GET https://h/o?X-Amz-Signature=***&X-Amz-Date=1"),
        ("https://h/o?versionId=3&X-Amz-Credential=AKIA%2F1", "https://h/o?versionId=3&X-Amz-Credential=***"),
        ("{'Authorization': 'Bearer abc.def'}", "{'Authorization': '***'}"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: ***"),
        ("key AKIA0123456789ABCDEF is known", "key *** is known"),
        ("write to a@b.org, see https://h/path@2", "write to a@b.org, see https://h/path@2"),
        ("tokens: 5, token_store, s3://bucket/key", "tokens: 5, token_store, s3://bucket/key"),
    ],
)
def test_what_is_taken_out(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_names_of_secrets() -> None:
    secret = (
        "AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN HF_TOKEN MLFLOW_TRACKING_PASSWORD PREFECT_API_KEY AWS_ACCESS_KEY_ID"
    )
    plain = "TOKENIZERS_PARALLELISM AWS_SHARED_CREDENTIALS_FILE AWS_WEB_IDENTITY_TOKEN_FILE PATH AWS_DEFAULT_REGION"
    assert all(map(is_secret, secret.split())) and not any(map(is_secret, plain.split()))
    assert without_secrets({"HF_TOKEN": "x", "PATH": "y"}) == {"PATH": "y"}
    urls = {"CLOZE_DATABASE": "postgresql://me:pw@db/x", "MLFLOW_TRACKING_URI": "http://mlflow:5000"}
    assert without_secrets(urls) == {"MLFLOW_TRACKING_URI": "http://mlflow:5000"}


def test_values_of_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://ann:correcthorse@host/mlflow")
    echo(f"the key is {SECRET}, the password correcthorse")
    assert capsys.readouterr().err == "the key is ***, the password ***\n"


def test_forms_in_which_secrets_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://ann:correct%2Fhorse@host/mlflow")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:battery-staple")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "bob")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "a=password?")
    basic = [
        base64.b64encode(pair).decode() for pair in (b"ann:correct/horse", b"admin:battery-staple", b"bob:a=password?")
    ]
    for form in (
        *basic,
        "correct/horse",
        "correct%2Fhorse",
        "battery-staple",
        "admin%3Abattery-staple",
        "a%3Dpassword%3F",
    ):
        assert redacted(f"with {form} in it") == "with *** in it"


def test_logs_and_their_tracebacks(
    installed: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    logger = logging.getLogger("somebody.else")
    with caplog.at_level(logging.INFO):
        logger.info("connecting with %s to %s", SECRET, "postgresql://a:b@host/db")
        try:
            raise ValueError(f"no answer from https://a:{SECRET}@host")
        except ValueError:
            logger.exception("it failed")
        logger.info("%s of %d", "nothing", 3)
        record = caplog.records[-1]
    assert SECRET not in caplog.text and "a:b@" not in caplog.text
    assert "no answer from" in caplog.text
    assert (record.msg, record.args) == ("%s of %d", ("nothing", 3))


def test_exceptions_on_their_way_to_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with pytest.raises(RuntimeError, match=r"^with \*\*\*$") as caught, log_redaction.clean_errors():
        try:
            raise OSError(5, f"inner {SECRET}")
        except OSError as error:
            raise RuntimeError(f"with {SECRET}") from error
    assert SECRET not in repr(caught.value.__cause__) and caught.value.__cause__.args[0] == 5  # type: ignore[union-attr]


def test_what_nobody_catches() -> None:
    program = (
        "import os, threading; from tasks.project import log_redaction; log_redaction.install()\n"
        "def fail(): raise ValueError('in a thread ' + os.environ['HF_TOKEN'])\n"
        "thread = threading.Thread(target=fail); thread.start(); thread.join()\n"
        "raise ValueError('here ' + os.environ['HF_TOKEN'])\n"
    )
    import os

    environment = {**os.environ, "HF_TOKEN": SECRET}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and SECRET not in done.stderr
    assert "ValueError: here ***" in done.stderr and "ValueError: in a thread ***" in done.stderr
