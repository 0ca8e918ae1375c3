"""Terraform: syntax, format, and the settings of the bucket; validation if the provider is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

import pytest

from tests.infra.manifests import INFRA

AWS = INFRA / "terraform" / "aws"


@pytest.fixture(scope="module")
def parsed() -> dict[str, list[dict[str, Any]]]:
    import hcl2

    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(AWS.glob("*.tf")):
        with path.open(encoding="utf-8") as file:
            for kind, blocks in hcl2.load(file).items():
                if isinstance(blocks, list):
                    found.setdefault(kind, []).extend(blocks)
    return found


def plain(name: str) -> str:
    return name.strip('"')


def resources(parsed: dict[str, list[dict[str, Any]]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (plain(kind), plain(name)): body
        for block in parsed["resource"]
        for kind, named in block.items()
        if not kind.startswith("__")
        for name, body in named.items()
        if not name.startswith("__")
    }


def test_the_bucket_keeps_versions_is_encrypted_and_closed(parsed: dict[str, list[dict[str, Any]]]) -> None:
    found = resources(parsed)
    kinds = {kind for kind, _ in found}
    assert {
        "aws_s3_bucket_versioning",
        "aws_s3_bucket_server_side_encryption_configuration",
        "aws_s3_bucket_lifecycle_configuration",
    } <= kinds
    block = found["aws_s3_bucket_public_access_block", "this"]
    for name in ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets"):
        assert block[name] is True, name
    database = found["aws_db_instance", "this"]
    assert database["manage_master_user_password"] is True and "password" not in database
    assert database["storage_encrypted"] is True and database["publicly_accessible"] is False


def test_every_variable_is_described_and_every_text_checked(parsed: dict[str, list[dict[str, Any]]]) -> None:
    for block in parsed["variable"]:
        for name, body in block.items():
            if name.startswith("__"):
                continue
            assert body["description"], name
            if plain(str(body["type"])).strip("${}") != "bool":
                assert body["validation"], name


def test_no_role_may_do_everything() -> None:
    text = (AWS / "roles.tf").read_text()
    assert '"*"' not in text and "s3:*" not in text and "AdministratorAccess" not in text
    assert "s3:DeleteObjectVersion" not in text


@pytest.fixture(scope="module")
def terraform() -> str:
    found = shutil.which("terraform")
    if found is None:
        pytest.skip("terraform is not on this machine")
    return found


def test_it_is_formatted(terraform: str) -> None:
    done = subprocess.run([terraform, "fmt", "-check", "-diff"], cwd=AWS, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_it_validates(terraform: str) -> None:
    if not (AWS / ".terraform" / "providers").is_dir():
        pytest.skip("the AWS provider is not installed; run `terraform init -backend=false` in infra/terraform/aws")
    environment = os.environ | {"CHECKPOINT_DISABLE": "1"}
    done = subprocess.run(
        [terraform, "validate", "-no-color"], cwd=AWS, capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
