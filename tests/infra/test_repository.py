"""The files that GitHub, editors and citation tools read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from tests.infra.manifests import ROOT

GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("vendor.github-workflows", ".github/workflows/ci.yml"),
        ("vendor.github-workflows", "tasks/project/assets/workflow.yml"),
        ("vendor.dependabot", ".github/dependabot.yml"),
        ("vendor.github-issue-forms", ".github/ISSUE_TEMPLATE/bug.yml"),
        ("vendor.github-issue-forms", ".github/ISSUE_TEMPLATE/feature.yml"),
        ("vendor.github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("vendor.citation-file-format", "CITATION.cff"),
    ],
)
def test_files_match_their_schemas(schema: str, path: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(ROOT / path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ci_tests_the_declared_python_versions() -> None:
    jobs = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())["jobs"]
    declared = [one.split(" :: ")[-1] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    assert jobs["fast"]["strategy"]["matrix"]["python"] == declared
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    used = {run.removeprefix("make ") for run in runs if run.startswith("make ")}
    assert used == {"check", "test", "test-fast", "test-slow"}
    assert used <= targets


def test_the_dev_container_and_the_hooks_use_what_exists() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert "constraints.txt -e '.[dev]'" in container["onCreateCommand"]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    dev = {re.split(r"[^\w-]", one)[0] for one in PROJECT["optional-dependencies"]["dev"]}
    assert {one["entry"].split()[0].removeprefix(".venv/bin/") for one in hooks} <= dev


def test_the_citation_names_the_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == PROJECT["version"]
