"""The overlays render, are valid, and give each pod only the rights it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.manifests import KUBERNETES, OVERLAYS, documents, pods, rendered, work_pool_job

VERSIONS = ("1.31", "1.34")


def kustomizations() -> list[Path]:
    return sorted(KUBERNETES.rglob("kustomization.yaml"))


@pytest.mark.parametrize("path", kustomizations(), ids=lambda path: path.parent.name)
def test_files_of_a_kustomization_exist(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    for name in [*content.get("resources", []), *content.get("components", [])]:
        target = path.parent / name
        assert target.exists(), f"{path}: {name}"
        if target.is_file():
            assert all(one["apiVersion"] and one["metadata"]["name"] for one in documents(target.read_text()))
    for generator in content.get("configMapGenerator", []):
        assert all((path.parent / name).is_file() for name in generator["files"]), generator["name"]
    listed = {*content.get("resources", []), "kustomization.yaml"}
    assert {one.name for one in path.parent.glob("*.yaml")} <= listed, "a file that nothing names"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_matches_the_strict_schemas(overlay: str) -> None:
    import kubernetes_validate

    for one in documents(rendered(overlay)):
        for version in VERSIONS:
            kubernetes_validate.validate(one, version, strict=True)


def test_the_job_of_a_flow_run_is_valid_for_prefect() -> None:
    import kubernetes_validate

    for version in VERSIONS:
        kubernetes_validate.validate(work_pool_job(), version, strict=True)
    template = json.loads((KUBERNETES / "base" / "work-pool.json").read_text())
    worker = pytest.importorskip("prefect_kubernetes.worker")
    theirs = worker.KubernetesWorker.get_default_base_job_template()
    assert set(template["job_configuration"]) <= set(theirs["job_configuration"])
    text = json.dumps(template["job_configuration"])
    for name in template["variables"]["properties"]:
        assert "{{ " + name + " }}" in text, f"{name} is asked for and used nowhere"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_pod_is_root_or_unbounded(overlay: str) -> None:
    for name, pod in pods(overlay):
        context = pod["securityContext"]
        assert context["runAsNonRoot"] and context["runAsUser"] >= 999, name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is (name in ("Deployment worker", "flow run")), name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod), name
        assert not any("hostPath" in volume for volume in pod.get("volumes", [])), name
        for container in pod["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            resources = container["resources"]
            assert {"cpu", "memory"} <= set(resources["requests"]) & set(resources["limits"]), name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_is_published_and_every_service_finds_pods(overlay: str) -> None:
    resources = documents(rendered(overlay))
    labels = [
        one["spec"]["template"]["metadata"]["labels"] for one in resources if "template" in (one.get("spec") or {})
    ]
    for one in resources:
        assert one["kind"] != "Ingress"
        if one["kind"] == "Service":
            assert one["spec"].get("type", "ClusterIP") == "ClusterIP", one["metadata"]["name"]
            wanted = one["spec"]["selector"].items()
            assert any(wanted <= found.items() for found in labels), one["metadata"]["name"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_references_of_pods_exist(overlay: str) -> None:
    resources = documents(rendered(overlay))
    there = {(one["kind"], one["metadata"]["name"]) for one in resources}
    config_maps = {name for kind, name in there if kind == "ConfigMap"}
    secrets = {"databases", "prefect", "mlflow", "store", "job"}  # those of secrets.sh
    script = (KUBERNETES / "secrets.sh").read_text()
    assert all(f"secret {name} << END" in script for name in secrets)
    for name, pod in pods(overlay):
        assert ("ServiceAccount", pod["serviceAccountName"]) in there, name
        for kind, found in references(pod):
            if kind in ("configMap", "configMapRef", "configMapKeyRef"):
                assert found in config_maps, f"{name}: {found}"
            elif kind == "persistentVolumeClaim":
                assert ("PersistentVolumeClaim", found) in there, f"{name}: {found}"
            else:
                assert found in secrets, f"{name}: {found}"


def references(node: Any) -> list[tuple[str, str]]:
    kinds = ("configMap", "configMapRef", "configMapKeyRef", "secret", "secretRef", "secretKeyRef")
    found = []
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if key in kinds:
            found.append((key, value.get("name") or value["secretName"]))
        elif key == "persistentVolumeClaim":
            found.append((key, value["claimName"]))
        else:
            found += references(value)
    return found


def test_accounts_have_the_least_rights() -> None:
    """tests/tasks/jobs/test_kubernetes.py compares the role of runs with the requests that they make."""
    resources = documents((KUBERNETES / "base" / "accounts.yaml").read_text())
    assert {one["kind"] for one in resources} == {"ServiceAccount", "Role", "RoleBinding"}
    roles = {one["metadata"]["name"]: one["rules"] for one in resources if one["kind"] == "Role"}
    assert set(roles) == {"worker", "job"} and "*" not in str(roles)
    for account, rules in roles.items():
        names = {name for rule in rules for name in rule["resources"]}
        assert not names & {"secrets", "pods/exec", "roles", "rolebindings"}, account
        for rule in rules:
            if {"pods", "pods/log", "events"} & set(rule["resources"]):
                assert set(rule["verbs"]) <= {"get", "list", "watch"}, account
    for binding in [one for one in resources if one["kind"] == "RoleBinding"]:
        assert [one["name"] for one in binding["subjects"]] == [binding["roleRef"]["name"]]
    accounts = [one for one in resources if one["kind"] == "ServiceAccount"]
    assert all(one["automountServiceAccountToken"] is False for one in accounts)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_the_listed_connections_are_allowed(overlay: str) -> None:
    policies = {
        one["metadata"]["name"]: one["spec"] for one in documents(rendered(overlay)) if one["kind"] == "NetworkPolicy"
    }
    assert policies["nothing-else"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for name, policy in policies.items():
        for rule in policy.get("ingress", []):
            assert rule["from"], f"{name}: from anywhere"
    if overlay != "aws":
        assert {"postgres", "store"} <= set(policies)


def test_the_pod_security_standard_is_enforced() -> None:
    (namespace, _) = documents((KUBERNETES / "base" / "namespace.yaml").read_text())
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_both_copies_of_a_file_are_equal() -> None:
    compose = KUBERNETES.parent / "compose"
    assert (compose / "mlflow-auth.ini").read_text() == (KUBERNETES / "base" / "mlflow-auth.ini").read_text()


def test_the_yaml_is_tidy(root: Path) -> None:
    off = ("line-length", "document-start", "braces", "brackets")
    rules = dict.fromkeys(off, "disable") | {
        "comments": {"min-spaces-from-content": 1},
        "truthy": {"check-keys": False},
    }
    settings = json.dumps({"extends": "default", "rules": rules})
    command = [sys.executable, "-m", "yamllint", "--strict", "-d", settings, str(root / "infra")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
