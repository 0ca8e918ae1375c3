"""Links between the pages of a run: Prefect's, MLflow's and those of `cloze up`; and the artifacts that show them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from prefect import runtime
from prefect.artifacts import create_link_artifact, create_markdown_artifact

from model.common.files import read_json
from tasks.leaderboard import history
from tasks.leaderboard.page import table_rows
from tasks.leaderboard.schema import Leaderboard, MeasuredSystem
from tasks.project.pages import is_web, markdown_link, markdown_text
from tasks.project.project import Project
from tasks.project.workspace import commit_page
from tasks.servers.server_plan import PREFECT_UI, running_address
from tasks.servers.start_page import recorded_page
from tasks.tracking.tracking import pipeline_key, run_page

LEADERBOARD, CORPUS_CARD = "leaderboard/leaderboard.html", "corpus/report.html"


def flow_run_page(project: Project) -> str:
    """Return the URL of the current flow run in Prefect; empty if its server ends with the run."""
    server = running_address(project, "prefect")
    is_used = server and os.environ.get("PREFECT_API_URL") == f"{server}/api"
    return f"{server}{PREFECT_UI}/runs/flow-run/{runtime.flow_run.id}" if is_used and runtime.flow_run.id else ""


def task_run_page(project: Project) -> str:
    """Return the URL of the current task run in Prefect; empty if its server ends with the run."""
    page, task_run = flow_run_page(project), runtime.task_run.id
    return f"{page.partition('/runs/')[0]}/runs/task-run/{task_run}" if page and task_run else ""


def page_of(project: Project, path: str) -> str:
    """Return the URL of one of the project's pages on the server of `cloze up`; empty if it is not running."""
    server = running_address(project, "pages")
    return f"{server}/{path}" if server else ""


def leaderboard_page(project: Project, key: str = "") -> str:
    """Return the URL of the leaderboard page; empty if the server is not running or does not have the page.

    Args:
        key: key of the pipeline run, whose recorded page is preferred: it stays as it is.
    """
    if recorded := recorded_page(project, key):
        return page_of(project, recorded)
    return page_of(project, LEADERBOARD) if project.root == project.home else ""  # a workspace has no other page


def description(project: Project, encoders: Sequence[str], benchmarks: Sequence[str], seeds: Sequence[int]) -> str:
    """Describe a pipeline run in Markdown, for MLflow."""
    pages = {"Leaderboard": leaderboard_page(project), "Prefect run": flow_run_page(project)}
    lines = [
        f"**Encoders:** {markdown_text(', '.join(encoders))}",
        _in_a_line(pages | {"Git commit": commit_page(project)}),  # MLflow folds what follows
        f"**Benchmarks:** {markdown_text(', '.join(benchmarks))}",
        f"**Seeds:** {', '.join(map(str, seeds))}",
    ]
    return "\n\n".join(filter(None, lines))


def job_description(project: Project, name: str) -> str:
    """Describe a training job in Markdown, for MLflow."""
    links = {"Prefect task run": task_run_page(project), "Git commit": commit_page(project)}
    return "\n\n".join(filter(None, [f"Training job {markdown_text(name)}", _in_a_line(links)]))


def system_description(project: Project, system: MeasuredSystem) -> str:
    """Describe a system of the leaderboard in Markdown, for MLflow."""
    links = {"Leaderboard": leaderboard_page(project), "Git commit": commit_page(project)}
    average = "none" if system.average is None else f"{system.average:.1f}"
    text = f"Average on {system.split}: {average} ({len(system.scores)} benchmarks)"
    return "\n\n".join(filter(None, [text, _in_a_line(links)]))


def _in_a_line(links: Mapping[str, str]) -> str:
    return " · ".join(markdown_link(text, url) for text, url in links.items() if is_web(url))


def show_pages(project: Project, key: str) -> None:
    """Attach links to the MLflow run of a pipeline run and to the git commit to the current flow run."""
    _show_link("mlflow-run", run_page(project, key), "Open the run in MLflow")
    _show_link("git-commit", commit_page(project), "Open the commit")


def _show_link(name: str, link: str, text: str) -> None:
    if is_web(link):  # Prefect shows the description on the page of the run
        create_link_artifact(key=name, link=link, link_text=text, description=markdown_link(text, link))


def show_leaderboard(project: Project, board: Leaderboard, page: str) -> None:
    """Attach the table of a leaderboard to the flow run, with a link to its page if it has a URL."""
    path = os.path.relpath(project.build / LEADERBOARD, project.home)
    where = markdown_link("Full page", page) if page else f"Page: {markdown_text(path)}"
    lines = ["Scores on dev, from 0 to 100.", where, markdown_table(table_rows(board))]
    create_markdown_artifact(key="leaderboard", markdown="\n\n".join(lines), description=where)


def show_results(project: Project) -> None:
    """Attach the leaderboard and a link to its page to the flow run, even if no stage ran."""
    path = project.build / "leaderboard" / "leaderboard.json"
    if not path.exists():
        return
    key, board = pipeline_key(project), Leaderboard.parse(read_json(path), str(path))
    history.note_repeat(project, board)
    page = leaderboard_page(project, key)
    show_leaderboard(project, board, page)
    _show_link("leaderboard-page", page, "Open the leaderboard")


def markdown_table(rows: Sequence[dict[str, str]]) -> str:
    """Format rows with equal keys as a Markdown table."""
    if not rows:
        return ""
    lines = [[str(markdown_text(cell)) for cell in line] for line in ([*rows[0]], *(row.values() for row in rows))]
    lines.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
