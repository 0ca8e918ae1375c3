"""The start page's server: it serves its pages, and nothing else."""

from __future__ import annotations

import http.client
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.common.files import write_json
from tasks.project.project import Project
from tasks.servers.server_plan import SETTINGS, ServerSettings, servers_folder
from tasks.servers.start_page import find_file, make_server
from tests.servers import free_port

RUN = "0123abcd"
REPORT = "/retrain/2026-11-23T030000.html"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with a page of each kind, and files that no page may show."""
    project = Project(tmp_path / "project", tmp_path / "project")
    pages = {
        "leaderboard/leaderboard.html": project.build / "leaderboard",
        f"board/{RUN}/leaderboard.html": project.leaderboards / RUN,
        "board/board.html": project.leaderboards,
        "corpus/report.html": project.build / "corpus",
        "retrain/2026-11-23T030000.html": project.runs / "retrain",
    }
    for url, folder in pages.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / url.rpartition("/")[2]).write_text(f"<body>page {url}")
    record = {"when": "2026-11-23T03:00:00+0000", "outcome": "refused", "reason": "<b>worse</b>"}
    write_json(project.runs / "retrain" / "2026-11-23T030000.json", record)
    (project.build / "corpus" / "part-0.parquet").write_text("secret")
    (project.build / "leaderboard" / ".hidden.html").write_text("secret")
    (tmp_path / "outside.html").write_text("secret")
    (project.build / "leaderboard" / "link.html").symlink_to(tmp_path / "outside.html")
    (project.root / "params.yaml").write_text("secret: 1")
    (project.leaderboards / "predictions").mkdir()
    (project.leaderboards / "predictions" / "a.json").write_text("secret")
    return project


@pytest.fixture
def port(project: Project) -> Iterator[int]:
    """The port of the server; Prefect and MLflow are not running."""
    settings = ServerSettings(prefect_port=free_port(), mlflow_port=free_port())
    write_json(servers_folder(project) / SETTINGS, settings.model_dump())
    server = make_server(project, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield int(server.server_address[1])
    server.shutdown()
    server.server_close()


def ask(port: int, path: str, host: str = "127.0.0.1", method: str = "GET") -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers={"Host": f"{host}:{port}"})
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, content, answer.headers


def test_the_start_page_links_to_every_page(port: int) -> None:
    status, page, headers = ask(port, "/")
    assert status == 200
    pages = ("/leaderboard/leaderboard.html", "/board/board.html", "/corpus/report.html", REPORT)
    for url in pages:
        assert f'href="{url}"' in page
        status, content, _ = ask(port, url)
        assert status == 200 and f"page {url[1:]}" in content
        for other in ("/", *pages):
            assert f'href="{other}"' in content, "each page links to all"
    assert ask(port, f"/board/{RUN}/leaderboard.html")[0] == 200
    assert "&lt;b&gt;worse&lt;/b&gt;" in page, "text is escaped"
    assert page.count(">dead<") == 4, "it says so when the servers are down"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    "path",
    [
        "/params.yaml",
        "/leaderboard",
        "/leaderboard/",
        "/leaderboard/../../params.yaml",
        "/leaderboard/..%2f..%2fparams.yaml",
        "/x/leaderboard/leaderboard.html",
        "/leaderboard/.hidden.html",
        "/leaderboard/link.html",
        "/corpus/part-0.parquet",
        "/board/predictions/a.json",
        f"/board/{RUN}/../board.html",
        f"/board/{RUN}",
        "/etc/passwd",
        "/%2e%2e/outside.html",
        "/leaderboard/leaderboard.html%00",
    ],
)
def test_nothing_else_is_served(project: Project, port: int, path: str) -> None:
    assert find_file(project, path) is None
    assert ask(port, path)[:2] == (404, "not found\n")


def test_only_local_names_and_reading(port: int) -> None:
    assert ask(port, "/", "localhost")[0] == 200
    for host in ("example.org", "127.0.0.1.example.org", "192.168.1.4"):
        assert ask(port, "/", host)[0] == 403, "a website could read the pages through a name of its own"
    assert ask(port, "/", method="HEAD")[:2] == (200, "")
    assert ask(port, "/", method="POST")[0] == 501
    assert ask(port, "/health")[0] == 200


def test_a_page_is_served_while_the_servers_stop(project: Project, port: int) -> None:
    (servers_folder(project) / SETTINGS).unlink()
    status, page, _ = ask(port, "/corpus/report.html")
    assert status == 200 and "page corpus/report.html" in page and 'href="/"' in page and "Prefect" not in page


def test_a_page_that_is_not_written_yet_names_its_command(project: Project, port: int) -> None:
    (project.build / "corpus" / "report.html").unlink()
    page = ask(port, "/")[1]
    assert 'href="/corpus/report.html"' not in page and "<code>cloze run</code>" in page


def test_the_board_is_written_again_after_a_run(root: Path, project: Project, port: int) -> None:
    assert ask(port, "/board/board.html")[0] == 200
    (project.leaderboards / RUN / "record.json").write_text("{")
    shutil.copyfile(root / "params.yaml", project.params_path)
    status, page, _ = ask(port, "/board/board.html")
    assert status == 500 and "no run is recorded" in page, "the only record is damaged"
