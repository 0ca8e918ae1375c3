"""compose.yaml: valid schema, ports on loopback only, no root, secrets in files."""

from __future__ import annotations

import configparser
import importlib.resources
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.manifests import INFRA

FILE = INFRA / "compose" / "compose.yaml"
ONE_SHOT = {"folders", "bucket"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())


def test_it_matches_the_schema(compose: dict[str, Any]) -> None:
    import jsonschema

    package = importlib.resources.files("check_jsonschema")
    schema = json.loads((package / "builtin_schemas" / "vendor" / "compose-spec.json").read_text())
    jsonschema.validators.validator_for(schema)(schema).validate(compose)
    broken = {"services": {"postgres": {"image": "postgres:17.6", "port": ["5432"]}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validators.validator_for(schema)(schema).validate(broken)


def test_ports_are_published_on_loopback_only(compose: dict[str, Any]) -> None:
    published = {name: one["ports"] for name, one in compose["services"].items() if "ports" in one}
    assert set(published) == {"prefect", "mlflow"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert not any(one.get("network_mode") == "host" for one in compose["services"].values())


def test_no_service_is_root_or_can_become_root(compose: dict[str, Any]) -> None:
    for name, one in compose["services"].items():
        assert re.fullmatch(r"(\$\{CLOZE_UID:-)?[1-9]\d*\}?:(\$\{CLOZE_GID:-)?[1-9]\d*\}?", one["user"]), name
        assert not one.get("privileged"), name
        if name != "folders":
            assert one["cap_drop"] == ["ALL"] and one["read_only"] is True, name
            assert "no-new-privileges:true" in one["security_opt"], name


def test_every_server_has_a_health_check_and_restarts(compose: dict[str, Any]) -> None:
    for name, one in compose["services"].items():
        if name not in ONE_SHOT:
            assert one["healthcheck"]["test"][0] == "CMD", name
            assert one["restart"] == "unless-stopped", name
        for other, how in one.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
            assert how["condition"] == wanted, f"{name} → {other}"


def test_secrets_are_files_that_the_script_creates(compose: dict[str, Any], tmp_path: Path) -> None:
    script = tmp_path / "secrets.sh"
    script.write_bytes((FILE.parent / "secrets.sh").read_bytes())
    for _ in range(2):
        done = subprocess.run(["sh", str(script)], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == done.stderr == ""
        made = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert made == {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}, "kept the second time"
    assert set(made) == set(compose["secrets"])
    assert all(len(value) >= 40 for value in made.values()) and len(set(made.values())) == len(made)
    (identity,) = json.loads(made["store_identities"])["identities"]
    assert identity["credentials"] == [{"accessKey": made["store_key_id"], "secretKey": made["store_key"]}]
    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0
    used = {name for one in compose["services"].values() for name in one.get("secrets", [])}
    assert used == set(made)
    assert (FILE.parent / ".gitignore").read_text() == "secrets/\n"


def test_services_get_the_files_that_they_read(compose: dict[str, Any]) -> None:
    entry = (INFRA / "image" / "entry").read_text()
    for name, one in compose["services"].items():
        for variable, value in one.get("environment", {}).items():
            if not variable.endswith("_FILE"):
                continue
            assert Path(value).parent == Path("/run/secrets") and Path(value).name in one["secrets"], (
                f"{name}: {variable}"
            )
            if name != "postgres":
                assert variable.removesuffix("_FILE") in entry, f"{variable}: the image's entry does not know it"


def test_no_password_is_in_a_url() -> None:
    assert not re.findall(r"://[^\s/@:]+:[^\s/@]+@", FILE.read_text())
    settings = configparser.ConfigParser()
    settings.read(FILE.parent / "mlflow-auth.ini")
    assert settings["mlflow"]["default_permission"] == "NO_PERMISSIONS"
    assert "admin_password" not in settings["mlflow"]
