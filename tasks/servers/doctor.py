"""`cloze doctor`: check the environment and suggest a fix for each problem."""

from __future__ import annotations

import importlib.metadata
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from model.common.errors import UserError
from tasks.jobs.resources import num_cores
from tasks.project.project import Project
from tasks.project.workspace import git_commit

ENOUGH_BYTES = 5 * 2**30
PORTS = {4200: "Prefect", 5000: "MLflow"}
_KNOWN_BAD = {"lightning": ("2.6.2", "2.6.3")}


@dataclass(frozen=True)
class Finding:
    """Result of one check. A fault that is not `grave` is a recommendation."""

    what: str
    found: str
    fine: bool = True
    remedy: str = ""
    grave: bool = True


def examine(project: Project) -> bool:
    """Print all findings; returns True if there is no grave fault."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "check", "found", "what to do", box=None, pad_edge=False)
    findings = [finding for check in CHECKS for finding in check(project)]
    for finding in findings:
        sign = "[green]ok[/]" if finding.fine else "[red]fault[/]" if finding.grave else "[yellow]note[/]"
        table.add_row(sign, finding.what, escape(finding.found), escape("" if finding.fine else finding.remedy))
    Console().print(table)
    return all(finding.fine or not finding.grave for finding in findings)


def _python(_project: Project) -> Iterator[Finding]:
    version = sys.version_info
    found = f"{version.major}.{version.minor}.{version.micro}"
    yield Finding("Python", found, version >= (3, 11), "install Python 3.11 or later")
    inside = sys.prefix != sys.base_prefix
    yield Finding("environment", sys.prefix, inside, "run `make` to create a virtual environment", grave=False)


def _pins(project: Project) -> Iterator[Finding]:
    path = project.root / "constraints.txt"
    if not path.exists():
        return
    differing = []
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, wanted = line.strip().partition("==")
        try:
            installed = importlib.metadata.version(name) if wanted else ""
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed in _KNOWN_BAD.get(name, ()):
            yield Finding(name, installed, False, f"this release was malware: pip install {line}, and rotate your keys")
        elif installed.partition("+")[0] != wanted:
            differing.append(f"{name} {installed} (pinned {wanted})")
    some = ", ".join(differing[:4]) + (" …" if len(differing) > 4 else "")
    remedy = "pip install -c constraints.txt -e ."
    yield Finding("pins", some or "as in constraints.txt", not differing, remedy, grave=False)


def _torch(_project: Project) -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding("torch", str(error), False, "pip install -c constraints.txt -e .")
        return
    if torch.cuda.is_available():
        device = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
        bf16 = torch.cuda.is_bf16_supported()
    elif torch.backends.mps.is_available():
        device, bf16 = "Apple GPU (training uses the CPU)", False
    else:
        device, bf16 = f"CPU, {num_cores()} cores", bool({"amx_bf16", "avx512_bf16"} & _cpu_flags())
    yield Finding("torch", f"{torch.__version__}, {device}")
    found = "supported" if bf16 else "not in hardware"
    yield Finding("bf16", found, bf16, "training uses fp32 (precision: auto)", grave=False)


def _cpu_flags() -> set[str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())


def _disk(project: Project) -> Iterator[Finding]:
    free = shutil.disk_usage(project.root).free
    found = f"{free / 2**30:.1f} GiB free"
    yield Finding("disk", found, free > ENOUGH_BYTES, "free some space: `cloze gc`", grave=free < 2**30)


def _git(project: Project) -> Iterator[Finding]:
    if shutil.which("git") is None:
        yield Finding("git", "not found", False, "install git: DVC and workspaces need it")
        return
    commit = git_commit(project)
    yield Finding("git", commit[:12] or "no commit", bool(commit), "run `git init` and commit once")


def _dvc(project: Project) -> Iterator[Finding]:
    from tasks.dvc.graph import Graph

    try:
        graph = Graph(project)
    except UserError as error:
        yield Finding("DVC", str(error), False, "run in a clone, or `dvc init` if .dvc/ is missing")
        return
    stale = [stage for stage in graph.stages if graph.status(stage).reasons]
    graph.close()
    yield Finding("DVC", f"{len(stale)} of {len(graph.stages)} stages to run" if stale else "all up to date")
    exists = project.data.is_dir()
    yield Finding("data/", "exists" if exists else "missing", exists, "run `cloze sample`, or see docs/real-data.md")


def _remotes(project: Project) -> Iterator[Finding]:
    from tasks.dvc.remotes import remotes

    try:
        found = list(remotes(project))
    except UserError as error:
        yield Finding("DVC remotes", str(error), False, "fix the setting")
        return
    for remote in found:
        what = f"remote {remote.name}"
        if not remote.faults:
            yield Finding(what, f"{remote.url}, verified{', the default' if remote.is_default else ''}")
        for fault in remote.faults:
            yield Finding(what, remote.url, False, fault)


def _params(project: Project) -> Iterator[Finding]:
    from tasks.params.root import load_params

    try:
        load_params(project.params_path)
        yield Finding("params.yaml", "valid")
    except UserError as error:
        yield Finding("params.yaml", str(error), False, "fix the setting")


def _ports(_project: Project) -> Iterator[Finding]:
    for port, server in PORTS.items():
        with socket.socket() as probe:
            taken = probe.connect_ex(("127.0.0.1", port)) == 0
        found = "in use" if taken else "free"
        yield Finding(f"port {port}", found, not taken, f"start {server} on another --port", grave=False)


CHECKS: tuple[Callable[[Project], Iterator[Finding]], ...] = (
    _python, _pins, _torch, _disk, _git, _params, _dvc, _remotes, _ports,
)  # fmt: skip
