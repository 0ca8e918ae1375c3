"""The start page of `cloze up`, and the project's pages that it links to: `python -m tasks.servers.start_page PORT`.

The server is read-only and listens on 127.0.0.1. It serves the files in `_FOLDERS` whose names match, and nothing else:
it lists no directory, and leaves none through a link. Above each page, it puts links to the others; the files have
none, because they can be opened anywhere. It refuses requests of websites (`tasks.servers.request_guard`).
"""

from __future__ import annotations

import http
import re
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from model.common.errors import UserError
from model.common.redaction import redacted
from model.common.state_files import read_state
from tasks.params.root import load_params
from tasks.project.environment import configure
from tasks.project.pages import declared_scripts, templates
from tasks.project.project import Project
from tasks.project.workspace import run_id
from tasks.servers.request_guard import refusal
from tasks.servers.server_plan import (
    PREFECT_UI,
    ServerSettings,
    get,
    mlflow_experiment,
    recorded_settings,
    server_states,
)
from tasks.tracking.tracking import pipeline_key, runs_page, systems_page

HOST = "127.0.0.1"
BOARD = "/board/board.html"
_ASSETS = Path(__file__).parent / "assets"
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_FOLDERS: dict[str, tuple[Callable[[Project], Path], re.Pattern[str]]] = {
    "leaderboard": (lambda project: project.build / "leaderboard", re.compile(rf"{_NAME}\.(html|csv|json)")),
    "board": (lambda project: project.leaderboards, re.compile(rf"([0-9a-f]+/)?{_NAME}\.(html|csv|json)")),
    "corpus": (lambda project: project.build / "corpus", re.compile(r"report\.(html|json)")),
    "retrain": (lambda project: project.runs / "retrain", re.compile(rf"{_NAME}\.(html|json)")),
}
"""First part of the URL → directory, and the names of files in it."""
_TYPES = {".html": "text/html", ".csv": "text/csv", ".json": "application/json"}
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src {scripts}; img-src data:; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
NUM_RUNS, NUM_REPORTS = 5, 5
_WRITING = threading.Lock()


def find_file(project: Project, path: str) -> Path | None:
    """Return the file of a URL path such as /leaderboard/leaderboard.html; None if it is missing or not public."""
    section, _, name = unquote(path).removeprefix("/").partition("/")
    folder_of, pattern = _FOLDERS.get(section, (None, None))
    if folder_of is None or pattern is None or not pattern.fullmatch(name):
        return None
    folder = folder_of(project).resolve()
    found = (folder / name).resolve()
    return found if found.is_relative_to(folder) and found.is_file() else None


def render(project: Project, settings: ServerSettings) -> str:
    """Render the start page."""
    view = {
        "project": project.root.name,
        "place": str(project.root),
        "now": time.time(),
        "time_zone": time.strftime("%Z"),
        "servers": server_states(project, settings),
        "pages": _pages(project),
        "reports": _reports(project),
        "running": _flow_runs(settings, ["RUNNING", "PENDING", "CANCELLING"], 50),
        "ended": _flow_runs(settings, ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"], NUM_RUNS, "END_TIME_DESC"),
        "scheduled": _flow_runs(settings, ["SCHEDULED"], NUM_RUNS, "EXPECTED_START_TIME_ASC"),
        "schedule_off": settings.cron == "never",
        "mlflow": settings.mlflow_url,
        "champion": _champion(project, settings),
        **_user_interfaces(settings),
    }
    environment = templates(_ASSETS)
    environment.filters["when"] = _when
    return redacted(environment.get_template("start.html.j2").render(view))


def with_links(project: Project, page: str) -> str:
    """Insert links to the other pages of the project, and to Prefect and MLflow, at the top of a page."""
    settings = recorded_settings(project)
    view = {
        "pages": [one for one in _pages(project) if one["url"]],
        "report": next((report["url"] for report in _reports(project)), ""),
        **(_user_interfaces(settings) if settings else {}),
    }
    links = templates(_ASSETS).get_template("site.html.j2").render(view)
    return page.replace("<body>", f"<body>\n{redacted(links)}", 1)


def _user_interfaces(settings: ServerSettings) -> dict[str, str]:
    """URLs of Prefect's pages and of the project's runs in MLflow."""
    experiment = mlflow_experiment(settings).get("experiment_id", "")
    return {
        "prefect": settings.prefect_api.removesuffix("/api") + PREFECT_UI,
        "mlflow_runs": runs_page(settings.mlflow_url, experiment) or settings.mlflow_url,
        "mlflow_systems": systems_page(settings.mlflow_url, experiment),
    }


def _champion(project: Project, settings: ServerSettings) -> dict[str, str]:
    """Ask MLflow for the registered champion: title and URL; empty without one, or if MLflow does not respond."""
    try:
        model = f"{load_params(project.params_path).promotion.model}-encoder"
    except (UserError, OSError):  # params.yaml is being edited
        return {}
    query = urlencode({"name": model, "alias": "champion"})
    found = get(f"{settings.mlflow_url}/api/2.0/mlflow/registered-models/alias?{query}")
    if not isinstance(found, dict):
        return {}
    version = found["model_version"]
    tags = {tag["key"]: tag["value"] for tag in version.get("tags", [])}
    encoder = "@".join(filter(None, (tags.get("cloze.encoder"), run_id(tags.get("cloze.run", "")))))
    url = f"{settings.mlflow_url}/#/models/{quote(model)}/versions/{version['version']}"
    return {"title": f"{encoder} (version {version['version']} of {model})", "url": url}


def _when(time_: str | float | None) -> str:
    """Format a time (ISO 8601, or seconds since the epoch) in the time zone of this machine; empty if there is none."""
    if not time_:
        return ""
    moment = datetime.fromisoformat(time_) if isinstance(time_, str) else datetime.fromtimestamp(time_, UTC)
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")


def _pages(project: Project) -> list[dict[str, Any]]:
    """The leaderboard, the board and the corpus card: title, URL (empty if the page does not exist yet) and time."""
    num_runs = sum(1 for _ in project.leaderboards.glob("*/record.json"))
    pages = [
        ("Leaderboard", _leaderboard(project), "The last run: scores, comparisons, errors"),
        ("Board", BOARD, f"All recorded runs on one page ({num_runs})"),
        ("Corpus card", "/corpus/report.html", "Sources, filters, duplicates, contamination"),
    ]
    found = []
    for title, url, text in pages:
        path = find_file(project, url)
        exists = path is not None or (url == BOARD and num_runs > 0)
        when = path.stat().st_mtime if path else None
        found.append({"title": title, "url": url if exists else "", "text": text, "when": when})
    return found


def recorded_page(project: Project, key: str) -> str:
    """Return the URL path of the recorded leaderboard page of a pipeline run; empty if it is not recorded."""
    for path in project.leaderboards.glob("*/record.json") if key else ():
        record = read_state(path, may_move=False)
        if key in {one.get("pipeline") for one in (record, *record.get("repeats", ()))}:
            return f"board/{path.parent.name}/leaderboard.html"
    return ""


def _leaderboard(project: Project) -> str:
    """URL of the last run's page: the recorded one, which names the run, or that of the stage's output."""
    try:
        key = pipeline_key(project)
    except (UserError, OSError):  # params.yaml is being edited
        key = ""
    return f"/{recorded_page(project, key) or 'leaderboard/leaderboard.html'}"


def update_board(project: Project) -> None:
    """Write the board of all recorded runs again if runs were recorded since.

    Raises:
        UserError: a record is damaged, or params.yaml is invalid.
    """
    from tasks.leaderboard import board_files

    with _WRITING:
        if board_files.is_outdated(project.leaderboards):
            board_files.write_board(project.leaderboards, load_params(project.params_path).leaderboard.reference)


def _reports(project: Project) -> list[dict[str, str]]:
    """The last retraining reports, latest first."""
    folder = _FOLDERS["retrain"][0](project)
    records = [(read_state(path, may_move=False), path) for path in folder.glob("*.json")]
    reports = [
        {name: record[name] for name in ("when", "outcome", "reason")} | {"url": f"/retrain/{path.stem}.html"}
        for record, path in records
        if record
    ]
    return sorted(reports, key=lambda report: report["when"], reverse=True)[:NUM_REPORTS]


def _flow_runs(
    settings: ServerSettings, types: list[str], limit: int, sort: str = "START_TIME_DESC"
) -> list[dict[str, Any]]:
    """Ask Prefect for flow runs that are not part of another one."""
    runs = {"state": {"type": {"any_": types}}, "parent_task_run_id": {"is_null_": True}}
    found = get(f"{settings.prefect_api}/flow_runs/filter", {"flow_runs": runs, "sort": sort, "limit": limit})
    flows = get(f"{settings.prefect_api}/flows/filter", {}) if found else None
    names = {flow["id"]: flow["name"] for flow in flows or []}
    return [run | {"flow": names.get(run["flow_id"], "")} for run in found or []]


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version, timeout = "cloze", "", 30
    project: Project

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        path = urlsplit(self.path).path
        status, kind, content = http.HTTPStatus.NOT_FOUND, "text/plain", b"not found\n"
        scripts: list[str] = []
        if reason := refusal(self.headers.get):
            status, content = http.HTTPStatus.FORBIDDEN, f"{reason}\n".encode()
        elif path == "/health":
            status, content = http.HTTPStatus.OK, b"ok\n"
        elif path == "/":
            settings = recorded_settings(self.project)
            if settings is None:
                status, content = http.HTTPStatus.SERVICE_UNAVAILABLE, b"starting or stopping\n"
            else:
                status, kind, content = http.HTTPStatus.OK, "text/html", render(self.project, settings).encode()
        elif fault := self._fault(path):
            status, content = http.HTTPStatus.INTERNAL_SERVER_ERROR, f"{fault}\n".encode()
        elif (file := find_file(self.project, path)) is not None:
            status, kind, content = http.HTTPStatus.OK, _TYPES[file.suffix], file.read_bytes()
            if file.suffix == ".html":
                page = content.decode()
                scripts, content = declared_scripts(page), with_links(self.project, page).encode()
        self.send_response(status)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content)), **_HEADERS}
        headers["Content-Security-Policy"] = _POLICY.format(scripts=" ".join(scripts) or "'none'")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def _fault(self, path: str) -> str:
        """Update the page of this path; returns the reason if that is not possible."""
        try:
            if path == BOARD:
                update_board(self.project)
        except UserError as error:
            return redacted(str(error))
        return ""

    def log_message(self, format: str, *values: Any) -> None:
        """Log only errors, to standard error."""
        if len(values) > 1 and str(values[1]) >= "500":
            super().log_message(format, *values)


def make_server(project: Project, port: int) -> ThreadingHTTPServer:
    """Return a server that listens on 127.0.0.1."""
    server = ThreadingHTTPServer((HOST, port), type("Handler", (_Handler,), {"project": project}))
    server.daemon_threads = True
    return server


def main() -> None:
    """Serve the pages of the project around the current directory until the process is stopped."""
    project = Project.find()
    configure(project)
    make_server(project, int(sys.argv[1])).serve_forever()


if __name__ == "__main__":
    main()
