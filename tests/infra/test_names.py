"""infra/ uses the project's names of pools, deployments and job variables."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from flows.deployments import TABLE, job_variables, prefect_yaml
from tasks.project.project import Project
from tests.infra.manifests import INFRA, KUBERNETES, ROOT

POOLS = {kind: pool["name"] for kind, pool in prefect_yaml()["definitions"]["work_pools"].items()}


def test_workers_serve_the_pools_of_prefect_yaml() -> None:
    compose = yaml.safe_load((INFRA / "compose" / "compose.yaml").read_text())
    command = compose["services"]["worker"]["command"]
    assert command[command.index("--pool") + 1] == "${CLOZE_POOL:-" + POOLS["process"] + "}"
    worker = (KUBERNETES / "base" / "worker.yaml").read_text()
    assert f"--pool={POOLS['kubernetes']}" in worker and "--type=kubernetes" in worker


@pytest.mark.parametrize("page", ["infra/compose/README.md", "infra/kubernetes/README.md", "docs/operations.md"])
def test_documented_commands_deploy_to_those_pools(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for line in re.findall(r"cloze deploy ([^`\n]+)", text):
        options = dict(re.findall(r"--([a-z]+) (\S+)", line))
        if options["pool"] != "NAME":
            assert options["pool"] == POOLS[options.get("overlay", "process")], line
            assert ("image" in options) == ("overlay" in options), line
    named = set(re.findall(r"prefect deployment run ['\"]?([\w-]+/[\w-]+)", text))
    assert named <= {f"{one.flow}/{one.flow}" for one in TABLE}


def test_job_variables_are_in_the_template() -> None:
    template = json.loads((KUBERNETES / "base" / "work-pool.json").read_text())
    asked = job_variables(Project(ROOT, ROOT), "kubernetes", "cloze:0.1.0")
    known = template["variables"]["properties"]
    assert set(asked) <= set(known)
    assert {asked["image"], asked["command"]} == {known["image"]["default"], known["command"]["default"]}
