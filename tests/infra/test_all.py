"""All files of infra/: exact image tags, no secrets, existing commands."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flows.cli.main import cli
from tests.infra.manifests import INFRA, OVERLAYS, pods

SECRETS = {
    "AWS key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "token": r"\b(?:ghp|gho|xox[bap]|hf|glpat|dckr_pat)[_-][A-Za-z0-9_-]{16,}",
    "password in a URL": r"://[^\s/@:{}$]+:[^\s/@{}$]+@",
    "assigned": r"(?i)\b(?:password|secret|token|api_?key)\b\s*[:=]\s*[\"']?[A-Za-z0-9+/]{16,}",
}


def files() -> list[Path]:
    return sorted(
        path
        for path in INFRA.rglob("*")
        if path.is_file() and not {"secrets", ".terraform", "__pycache__"} & set(path.parts)
    )


def images() -> Iterator[tuple[str, str]]:
    for path in files():
        text = path.read_text(encoding="utf-8")
        if path.name == "Dockerfile":
            for found in re.findall(r"^(?:ARG BASE=|FROM )(\S+)", text, re.MULTILINE):
                yield path.name, found
        elif path.suffix == ".yaml":
            for found in re.findall(r"^\s*image: (\S+)", text, re.MULTILINE):
                yield path.name, found


def test_every_image_has_an_exact_tag() -> None:
    found = list(images())
    assert len(found) >= 8
    for where, image in found:
        if image in ("cloze", "${BASE}"):  # kustomize's images and the ARG say which
            continue
        tag = re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", image).rpartition(":")[2]
        assert re.search(r"\d+\.\d+", tag) and "latest" not in image, f"{where}: {image}"
    for path in (INFRA / "kubernetes" / "overlays").glob("*/kustomization.yaml"):
        (image,) = yaml.safe_load(path.read_text())["images"]
        assert re.fullmatch(r"\d+\.\d+\.\d+", image["newTag"]), path


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(INFRA).as_posix())
def test_no_file_holds_a_secret(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for kind, pattern in SECRETS.items():
        found = re.search(pattern, text)
        assert found is None, f"{path}: {kind}: {found and found.group()}"


def test_a_planted_secret_would_be_found() -> None:
    planted = ["AKIA" + "A" * 16, "postgresql://me:hunter2hunter2@db/x", 'password: "' + "x1" * 10 + '"']
    for text in planted:
        assert any(re.search(pattern, text) for pattern in SECRETS.values()), text


def commands() -> Iterator[tuple[str, list[str]]]:
    compose = yaml.safe_load((INFRA / "compose" / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        if str(service["image"]).startswith("${CLOZE_IMAGE"):
            yield name, service["command"]
    if shutil.which("kubectl"):
        for overlay in OVERLAYS:
            for name, pod in pods(overlay):
                yield from ((f"{overlay} {name}", one["args"]) for one in pod["containers"] if "cloze" in one["image"])


def test_every_command_exists() -> None:
    """Checks options too, because a container with a wrong option exits with a usage message."""
    seen = set()
    for where, words in commands():
        words = [str(word) for word in words]
        if words[0] == "cloze":
            assert words[1] in cli.commands, where
        elif words[:2] == ["mlflow", "server"]:
            from mlflow.cli import server

            known = {option for parameter in server.params for option in (*parameter.opts, *parameter.secondary_opts)}
            assert {word.partition("=")[0] for word in words[2:] if word.startswith("--")} <= known, where
        elif words[0] == "prefect":
            import inspect

            module = importlib.import_module(f"prefect.cli.{words[1]}")
            text = inspect.getsource(module)
            for word in words[3:]:
                if word.startswith("--"):
                    assert f'"{word.partition("=")[0]}"' in text, f"{where}: {word}"
        elif words[0] == "python":
            assert words[1:3] == ["-P", "-m"] and importlib.util.find_spec(words[3]), where
        else:
            assert words == ["true"], where
        seen.add(words[0])
    assert {"prefect", "mlflow", "python"} <= seen


def test_readmes_name_what_exists() -> None:
    for path in INFRA.rglob("README.md"):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"infra/[\w./-]+\w", text):
            if "/secrets/" in name:  # made by secrets.sh
                continue
            assert (INFRA.parent / name).exists(), f"{path}: {name}"
        for name in re.findall(r"\]\(([\w./-]+)\)", text):
            assert (path.parent / name).exists(), f"{path}: {name}"


def test_shell_scripts_parse() -> None:
    scripts = [path for path in files() if path.read_bytes().startswith((b"#!/bin/sh", b"#!/bin/bash"))]
    assert len(scripts) >= 3
    for path in scripts:
        shell = "bash" if b"bash" in path.read_bytes().splitlines()[0] else "sh"
        subprocess.run([shell, "-n", str(path)], check=True, timeout=20)
