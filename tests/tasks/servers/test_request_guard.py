"""Which requests are refused, by their headers alone; tests/flows/cli/test_server_security.py sends them to servers."""

from __future__ import annotations

import pytest

from tasks.servers.request_guard import refusal

LOCAL = {"host": "127.0.0.1:4200"}
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


@pytest.mark.parametrize(
    "headers",
    [
        {},  # a program
        {"host": "localhost"},
        {"host": "LocalHost:4200"},
        {"host": "[::1]:4200"},
        {"host": "cloze.example:443"},
        {"host": "10.0.0.7:4200"},
        {"origin": "http://127.0.0.1:4200"},
        {"origin": "http://localhost:4201"},  # links between the pages
        {"origin": "https://cloze.example"},
        {"origin": "http://localhost:4200", "sec-fetch-site": "cross-site"},  # Prefect's page, opened at localhost
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
        LINK,
    ],
)
def test_programs_and_the_servers_pages_are_served(headers: dict[str, str]) -> None:
    assert refusal({**LOCAL, **headers}.get, ["cloze.example", "10.0.0.7"]) == ""


@pytest.mark.parametrize(
    "headers",
    [
        {"host": ""},
        {"host": "attacker.example:4200"},
        {"host": "127.0.0.1.attacker.example"},
        {"host": "localhost.attacker.example"},
        {"host": "cloze.example.attacker.example"},
        {"host": "192.168.1.4:4200"},
        {"host": "127.0.0.1@attacker.example"},
        {"host": "attacker.example@127.0.0.1"},
        {"host": "[::1"},
        {"host": "127.0.0.1, attacker.example"},
        {"origin": ""},
        {"origin": "null"},
        {"origin": "http://attacker.example"},
        {"origin": "http://localhost.attacker.example:4200"},
        {"origin": "file://"},
        {"origin": "chrome-extension://localhost"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
        {**LINK, "sec-fetch-dest": "iframe"},
    ],
)
def test_websites_are_refused(headers: dict[str, str]) -> None:
    assert refusal({**LOCAL, **headers}.get, ["cloze.example"])
    assert refusal({**LOCAL, **headers}.get, [""]), "no further name is set"
