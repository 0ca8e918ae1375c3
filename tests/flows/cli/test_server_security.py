"""The servers of `cloze up` against websites and other users of the machine: requests, file modes, process list."""

from __future__ import annotations

import base64
import http.client
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tasks.leaderboard.board import compose
from tasks.leaderboard.inputs import read_inputs
from tasks.leaderboard.page import render_page
from tasks.project.pages import script_source
from tasks.project.template import create
from tests.browser import CHROMIUM, Tab, chromium
from tests.flows.cli.test_server_commands import Up
from tests.flows.clone import CLOZE, Clone
from tests.servers import mlflow_alone
from tests.tasks.leaderboard.conftest import BENCHMARKS, ENCODERS, make_metrics

pytestmark = [pytest.mark.slow, pytest.mark.disruption, pytest.mark.timeout(900)]

PASSWORD = "prefectPLANTEDpassword"
HOOK = "hookPLANTEDsecret"
NAMES = ("prefect", "mlflow", "pages")
DATA = {
    "prefect": "/api/admin/version",
    "mlflow": "/ajax-api/2.0/mlflow/experiments/search?max_results=5",
    "pages": "/",
}
CHANGES = {
    "prefect": [("/api/variables/", {"name": "planted", "value": "x"})],
    "mlflow": [
        ("/ajax-api/2.0/mlflow/experiments/create", {"name": "planted"}),
        ("/gateway/mlflow/v1/chat/completions", {"model": "x"}),  # MLflow's own check leaves these two out
        ("/graphql", {"query": "query Q { __typename }", "operationName": "Q"}),
    ],
    "pages": [],  # it is read-only
}
IMAGE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
FRAME = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
LINK = FRAME | {"Sec-Fetch-Dest": "document"}
FORGED = (
    {"Host": "attacker.example"},
    {"Host": "127.0.0.1.attacker.example"},
    {"Origin": "http://attacker.example"},
    {"Origin": "null"},
    IMAGE,
    FRAME,
)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The servers of a new project, with a password and a webhook, started by a user without a umask."""
    folder = tmp_path_factory.mktemp("secure") / "project"
    create(folder)
    made = Up(Clone(folder))
    made.clone.prefix = ("sh", "-c", 'umask 000; exec "$@"', "sh")
    made.clone.environment["PREFECT_SERVER_API_AUTH_STRING"] = f"admin:{PASSWORD}"
    made.clone.environment["CLOZE_NOTIFY_URL"] = f"https://hooks.example/{HOOK}"
    try:
        made.up(cron="never")
        yield made
    finally:
        made.clone.run("cloze", "down")


def request(port: int, path: str, headers: dict[str, str], body: Any = None) -> tuple[int, str]:
    """GET, or POST of a body, as a browser sends it; Prefect's password is that of the person whose browser it is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    password = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
    whole = {"Authorization": f"Basic {password}", "Content-Type": "application/json"} | headers
    content = None if body is None else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, content, whole)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("forged", FORGED, ids=lambda headers: "-".join(headers.values()))
def test_a_website_is_refused(servers: Up, name: str, forged: dict[str, str]) -> None:
    port = servers.ports[NAMES.index(name)]
    asked = forged if "Host" not in forged else {"Host": f"{forged['Host']}:{port}"}
    assert request(port, DATA[name], asked)[0] == 403
    for path, body in CHANGES[name]:
        for kind in ("application/json", "text/plain"):  # the latter needs no permission of the server
            assert request(port, path, asked | {"Content-Type": kind}, body)[0] == 403
    assert "planted" not in request(port, DATA[name], {})[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_person_and_programs_are_served(servers: Up, name: str) -> None:
    port = servers.ports[NAMES.index(name)]
    others = [one for one in servers.ports if one != port]
    for headers in (
        {},
        LINK,
        {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}", "Sec-Fetch-Site": "same-origin"},
        {"Origin": f"http://localhost:{port}", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"},
        *({"Origin": f"http://127.0.0.1:{other}", "Sec-Fetch-Site": "same-site"} for other in others),
    ):
        assert request(port, DATA[name], headers)[0] == 200, headers
    page = {"Origin": f"http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"}
    for path, body in CHANGES[name][:1]:
        assert request(port, path, page, {**body, "name": "wanted"})[0] in (200, 201)


def test_websockets_of_a_website_are_refused(servers: Up) -> None:
    for path in ("/api/events/in", "/api/events/out", "/api/logs/out"):
        url = f"ws://127.0.0.1:{servers.ports[0]}{path}"
        connect(url, subprotocols=["prefect"]).close()  # type: ignore[list-item]
        with pytest.raises(InvalidStatus, match="403"):
            connect(url, subprotocols=["prefect"], origin="http://attacker.example")  # type: ignore[list-item, arg-type]


def test_files_with_secrets_are_private(servers: Up) -> None:
    state = servers.clone.root / ".cloze"
    files = {path: path.stat().st_mode & 0o777 for path in state.rglob("*") if path.is_file()}
    private = {
        path for path in files if path.is_relative_to(state / "prefect") or path.is_relative_to(state / "servers")
    }
    assert {"prefect.db", "settings.json", "prefect.log", "worker.log"} <= {path.name for path in private}
    for folder in ("prefect", "servers"):
        assert (state / folder).stat().st_mode & 0o777 == 0o700
    for secret in (PASSWORD, HOOK):
        holders = {path for path in files if secret.encode() in path.read_bytes()}
        assert not holders, "Prefect encrypts them"
    assert not [path for path in private if path.suffix in (".db", ".log") and files[path] & 0o077]
    assert files[state / "mlflow" / "mlflow.db"] & 0o077 == 0


def test_no_secret_is_in_the_process_list(servers: Up) -> None:
    listed = subprocess.run(["ps", "-eo", "args", "-ww"], capture_output=True, text=True, check=True).stdout
    assert "uvicorn" in listed and "prefect worker" in listed
    assert PASSWORD not in listed and HOOK not in listed


def test_no_other_port_is_open_to_websites(servers: Up) -> None:
    opened = {}
    for name in (*NAMES, "worker"):
        process = psutil.Process(servers.pid(name))
        for one in (process, *process.children(recursive=True)):
            listening = [found.laddr for found in one.net_connections() if found.status == psutil.CONN_LISTEN]
            assert {address.ip for address in listening} <= {"127.0.0.1"}
            opened |= {address.port: name for address in listening}
    assert set(servers.ports) <= set(opened)
    for port in set(opened) - set(servers.ports):
        assert opened[port] == "worker"  # Prefect's channel to the processes of runs, which expects a token
        with pytest.raises(http.client.RemoteDisconnected):
            request(port, "/", {})


def test_secrets_where_others_could_read_them_are_refused(servers: Up, tmp_path: Path) -> None:
    said = servers.clone.run("cloze", "up", "--database", "postgresql://ann:planted@db.example/cloze", code=2)
    assert said == "cloze: --database: all users of this machine can read the password; set CLOZE_DATABASE instead\n"
    said = servers.clone.run("cloze", "up", "--artifacts", "s3://key:planted@bucket", code=2)
    assert "--artifacts: user and password are not allowed" in said and "planted" not in said
    ini = tmp_path / "auth.ini"
    ini.write_text("[mlflow]\n")
    ini.chmod(0o644)
    said = servers.clone.run("env", f"MLFLOW_AUTH_CONFIG_PATH={ini}", *CLOZE, "up", code=2)
    assert re.fullmatch(rf"cloze: MLFLOW_AUTH_CONFIG_PATH: others can read {ini}; run `chmod 600 {ini}`\n", said)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as tab:
        yield tab


def test_only_scripts_that_a_page_declares_run(servers: Up, browser: Tab, tmp_path: Path) -> None:
    metrics = make_metrics(tmp_path, ENCODERS)
    inputs = read_inputs(metrics.finetune, metrics.pretrain, ENCODERS, list(BENCHMARKS))
    page = render_page(compose(inputs, ENCODERS, BENCHMARKS))
    [policy] = re.findall("<meta http-equiv=.Content-Sec[^>]*>", page)
    attack = "<script>window.planted = 1</script><b onclick='window.planted = 1'>text</b>"
    hash_of_attack = policy.replace("script-src ", f"script-src {script_source('window.planted = 1')} ")
    folder = servers.clone.root / "build" / "leaderboard"
    folder.mkdir(parents=True, exist_ok=True)
    pages = {
        "leaderboard": page.replace("<main", f"{attack}<main", 1),
        "declared-later": page.replace(policy, "").replace("<body>", f"<body>{hash_of_attack}{attack}", 1),
        "old": page.replace(policy, "").replace("<main", f"{attack}<main", 1),
    }
    for name, content in pages.items():
        (folder / f"{name}.html").write_text(content)
        browser.open(f"{servers.pages}/leaderboard/{name}.html")
        browser.js("""document.querySelector("b[onclick]").click()""")
        browser.js("""document.querySelector('[data-none="task"]').click()""")
        shown = browser.js("document.querySelector('#average small').textContent")
        assert (shown == "0 shown") == (name == "leaderboard"), name
        assert browser.js("window.planted ?? 0") == 0, name
        assert browser.js("document.querySelector('table.scores').checkVisibility()"), "it stays readable"
    browser.open((folder / "old.html").as_uri())
    assert browser.js("window.planted") == 1, "the attack works without the server's policy"


@pytest.mark.parametrize(("name", "path"), [("prefect", "/runs"), ("mlflow", "/#/experiments")])
def test_the_pages_of_prefect_and_mlflow_run_their_scripts(servers: Up, browser: Tab, name: str, path: str) -> None:
    browser.open(f"http://127.0.0.1:{servers.ports[NAMES.index(name)]}{path}")
    browser.wait("(document.querySelector('#app, #root')?.innerText ?? '').trim().length > 20", 60)


def test_mlflow_with_accounts_is_behind_the_same_check(tmp_path: Path) -> None:
    pytest.importorskip("flask_wtf", reason="Flask-WTF is not installed (pip install -e '.[dev]')")
    ini = tmp_path / "auth.ini"
    ini.write_text(
        f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{tmp_path}/auth.db\nadmin_username = admin\n"
        f"admin_password = {PASSWORD}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    (tmp_path / ".cloze" / "mlflow").mkdir(parents=True)
    accounts = {"MLFLOW_AUTH_CONFIG_PATH": str(ini), "MLFLOW_FLASK_SERVER_SECRET_KEY": "k" * 32}
    server, _ = mlflow_alone(tmp_path, accounts)
    server.start()
    try:
        assert request(server.port, DATA["mlflow"], {})[0] == 200
        assert request(server.port, DATA["mlflow"], {"Authorization": "Basic eDp5"})[0] == 401
        for forged in FORGED:
            assert request(server.port, DATA["mlflow"], forged)[0] == 403
    finally:
        server.end()


@pytest.mark.parametrize(
    "url", ["ftp://hooks.example/planted", "file:///planted", "hooks.example/planted", "http:///x"]
)
def test_a_webhook_is_an_http_address(servers: Up, url: str) -> None:
    said = servers.clone.run("env", f"CLOZE_NOTIFY_URL={url}", *CLOZE, "up", code=2)
    assert said == "cloze: CLOZE_NOTIFY_URL: expected the http:// or https:// URL of a webhook\n"


def test_a_webhook_cannot_redirect_to_another_address() -> None:
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(307)
            self.send_header("Location", "/internal")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    block = CustomWebhookNotificationBlock(
        name="cloze", url=f"http://127.0.0.1:{server.server_port}/hook", json_data={}
    )
    with pytest.raises(Exception, match="307"):
        block.notify("text", "subject")
    server.shutdown()
    server.server_close()
    assert asked == ["/hook"]
