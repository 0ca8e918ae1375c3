"""Helpers for the tests of infra/: YAML documents, containers, and overlays rendered by kubectl."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
KUBERNETES = INFRA / "kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())


def documents(text: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(text) if one]


@functools.cache
def rendered(overlay: str) -> str:
    """Render an overlay with kustomize; skip the test without kubectl."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl, whose kustomize renders overlays, is not on this machine")
    command = [kubectl, "kustomize", str(KUBERNETES / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def work_pool_job(labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the job that the Kubernetes worker makes from the defaults in work-pool.json."""
    import json

    template = json.loads((KUBERNETES / "base" / "work-pool.json").read_text())
    values: dict[str, Any] = {name: one.get("default") for name, one in template["variables"]["properties"].items()}
    values |= {"name": "a-run", "labels": labels or {"prefect.io/flow-run-id": "1"}, "annotations": {}}
    values["env"] = [{"name": "A", "value": "b"}]
    values["command"] = values["command"].split()

    def fill(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: fill(value) for key, value in node.items()}
        if isinstance(node, list):
            return [fill(value) for value in node]
        if isinstance(node, str) and node.startswith("{{ ") and node.endswith(" }}"):
            return values[node[3:-3]]
        if isinstance(node, str):
            for name, value in values.items():
                node = node.replace("{{ " + name + " }}", str(value))
        return node

    return fill(template["job_configuration"]["job_manifest"])


def pods(overlay: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the name and specification of every pod of an overlay, including those of flow runs."""
    for one in documents(rendered(overlay)):
        if one["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield f"{one['kind']} {one['metadata']['name']}", one["spec"]["template"]["spec"]
    yield "flow run", work_pool_job()["spec"]["template"]["spec"]
