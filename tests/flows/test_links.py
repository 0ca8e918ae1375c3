"""Links and tables of flow runs in Prefect and in MLflow."""

from __future__ import annotations

from pathlib import Path

from flows.links import description, job_description, leaderboard_page, markdown_table, page_of
from model.common.files import write_json
from tasks.project.project import Project
from tasks.servers import processes
from tasks.servers.server_plan import servers_folder


def test_a_table_keeps_its_cells() -> None:
    assert markdown_table([{"a": "1|2", "b": ""}]) == "| a | b |\n| --- | --- |\n| 1\\|2 |  |"
    assert markdown_table([]) == ""


def test_links_are_only_to_running_servers(tmp_path: Path) -> None:
    project = Project(tmp_path, tmp_path)
    assert page_of(project, "x") == "" and leaderboard_page(project) == ""
    assert "](" not in description(project, ["a"], ["rte"], [1])
    assert job_description(project, "a/rte/seed=1") == "Training job a/rte/seed=1"
    folder = servers_folder(project)
    processes.launch(folder, "pages", ["sleep", "60"], {}, tmp_path, address="http://127.0.0.1:4201")
    try:
        assert leaderboard_page(project) == "http://127.0.0.1:4201/leaderboard/leaderboard.html"
        write_json(project.leaderboards / "0123abcd" / "record.json", {"pipeline": "key"})
        assert leaderboard_page(project, "key") == "http://127.0.0.1:4201/board/0123abcd/leaderboard.html"
        workspace = Project(tmp_path / ".cloze" / "workspaces" / "a", tmp_path)
        assert leaderboard_page(workspace, "other") == "", "the server shows the pages of the project"
        assert leaderboard_page(workspace, "key").endswith("/board/0123abcd/leaderboard.html")
    finally:
        processes.stop(folder, "pages")
    assert leaderboard_page(project, "key") == ""
