"""Commands that inspect and clean a project: `logs`, `verify`, `gc` and `doctor`."""

from __future__ import annotations

import collections
import contextlib
import importlib.metadata
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import click

from flows.cli import completion
from flows.cli.context import EXIT_FAILED, examples, json_option, project_here
from model.common.errors import UserError
from model.common.files import read_json
from model.common.redaction import redacted
from model.common.run_dir import RunDir
from model.common.state_files import read_state
from tasks.dvc.integrity import cache_of, object_path
from tasks.dvc.integrity import verify as find_faults
from tasks.dvc.remotes import refuse_unsafe
from tasks.jobs.job_records import job_table, read_jobs
from tasks.jobs.resources import num_cores
from tasks.project.environment import numba_cache
from tasks.project.progress import console, echo, print_json, show, working
from tasks.project.project import Project
from tasks.project.workspace import (
    Busy,
    find_workspaces,
    folder_bytes,
    git_commit,
    git_says,
    reconnect,
    run_lock,
)
from tasks.project.yaml_files import read_yaml
from tasks.servers.server_plan import running_address
from tasks.tracking.tracking import STAGES

ENOUGH_BYTES = 5 * 2**30
_COLORS = {"ok": "green", "fault": "red", "note": "yellow"}
PORTS = {4200: "Prefect", 4201: "pages", 5000: "MLflow"}
_KNOWN_BAD = dict.fromkeys(("lightning", "pytorch-lightning"), ("2.6.2", "2.6.3"))


@click.command(epilog=examples("logs", "logs rte --follow", "logs --run seeds"))
@click.argument("job", required=False)
@click.option(
    "--run",
    "run_name",
    shell_complete=completion.workspaces,
    help="Name or id of a run in a workspace (of `cloze run --params`).",
)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines as they are written.")
@json_option
def logs(job: str | None, run_name: str | None, follow: bool, as_json: bool) -> None:
    """Print the log of a job, or list the jobs.

    JOB is any part of a job's name. If several jobs match, the newest log is printed.
    """
    if as_json and job is not None:
        raise UserError("--json lists the jobs; the log of a job is text, whose path is in the list")
    project = project_here()
    if run_name is not None:
        project = _workspace_of(project, run_name)
    records = read_jobs(project)
    if as_json:
        print_json({"jobs": [one.content() for one in records]})
        return
    if job is None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print("\n".join(job_table(records, width)) if records else "no job has started yet; `cloze run` starts jobs")
        return
    found = [one for one in records if one.name == job] or [one for one in records if one.matches(job)]
    if not found:
        raise UserError(f"no job matches '{job}'; `cloze logs` lists all jobs")
    newest = found[0]
    if len(found) > 1:
        echo(f"{len(found)} jobs match '{job}'; this is the newest, {newest.name}")
    with newest.run_dir.log.open(encoding="utf-8", errors="replace") as file:
        while True:
            for line in file:
                print(line, end="", flush=True)
            if not follow or newest.run_dir.read_status().get("state") != "running":
                return
            time.sleep(0.5)


def _workspace_of(project: Project, run_name: str) -> Project:
    from tasks.leaderboard.history import read_records

    found = find_workspaces(project, run_name)
    if not found and any(
        run_name in (one.name, one.title, one.id) and not one.workspace for one in read_records(project.leaderboards)
    ):
        echo(f"the run '{run_name}' is one of the project itself; these are the project's jobs")
        return project
    if not found:
        known = ", ".join(sorted(path.name for path in project.workspaces.glob("*"))) or "none"
        raise UserError(f"no workspace of a run '{run_name}'; available: {known}")
    if len(found) > 1:
        echo(f"{len(found)} runs are called {run_name}; this is the newest, {found[0].name}")
    return Project(found[0], project.home)


@click.command()
@click.option("--remote", help="Also read every object in this DVC remote.")
@json_option
def verify(remote: str | None, as_json: bool) -> None:
    """Check all files against their recorded hashes.

    Reads every byte of data/, the outputs and the DVC cache.
    """
    project = project_here()
    if remote is not None:
        refuse_unsafe(project)
    faults = find_faults(project, remote, echo)
    if as_json:
        print_json({"faults": faults})
    else:
        show("\n".join(faults) or "all files match their recorded hashes")
    if faults:
        sys.exit(EXIT_FAILED)


@click.command(epilog=examples("gc --dry-run", "gc --older-than 30"))
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also delete what is left of all jobs that are not in the outputs, finished or not, cleaned corpus partitions,"
    " unfinished downloads, and workspaces of runs that did not finish.",
)
@click.option(
    "--older-than",
    "num_days",
    type=click.IntRange(min=0),
    default=30,
    help="Delete the workspace of a run that finished more than this number of days ago (with --all, also of one that"
    " was interrupted then).",
)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted; delete nothing.")
def gc(everything: bool, num_days: int, dry_run: bool) -> None:
    """Delete files that no current run, branch or setting uses.

    In DVC's cache, these are the versions to which neither the project's directory nor a commit refers: commit dvc.lock
    before, to keep the results of a run. The leaderboards of deleted workspaces stay on the page of `cloze board`.
    """
    project = project_here()
    say = show if dry_run else echo
    with run_lock(project, "cloze gc"):
        unused = [*_leftovers(project, everything), *_old_workspaces(project, num_days, everything)]
        unused = [path for path in dict.fromkeys(unused) if path.exists()]
        freed = sum(folder_bytes(path) for path in unused)
        for path in unused:
            say(f"{'would delete' if dry_run else 'deleting'} {project.relative(path)}")
            if not dry_run:
                shutil.rmtree(path)
        if not dry_run:
            reconnect(project)
            subprocess.run(["git", "worktree", "prune"], cwd=project.root, capture_output=True, check=False)
        in_cache, versions = _collect_cache(project, dry_run)
        would_be = "would be " if dry_run else ""
        say(f"{freed / 2**20:,.1f} MiB {would_be}freed in build/ and .cloze/")
        what = f"versions without a commit{': ' * bool(versions)}{versions}"
        say(f"{in_cache / 2**20:,.1f} MiB {would_be}freed in DVC's cache, of {what}")


def _leftovers(project: Project, everything: bool) -> list[Path]:
    from tasks.cluster.launchers import is_queued

    found = [*(project.runs / "staging").glob("*"), *project.mlflow_home.glob(".creating-*")]
    current = numba_cache(project)
    found += [folder for folder in current.parent.glob("*") if folder != current]
    for stage in ("pretrain", "finetune"):
        for folder in (project.runs / stage).glob("*"):
            job = RunDir(folder)
            if job.result.exists() and _is_published(project, stage, job):
                found += job.artifacts()
            elif everything and folder.is_dir() and not is_queued(folder, project.params_path):
                found.append(folder)
    if everything:
        found.append(project.runs / "corpus" / "units")
        found += [path for path in (project.runs / "fetch").glob("*") if path.is_dir()]
    return found


def _old_workspaces(project: Project, num_days: int, everything: bool = False) -> Iterator[Path]:
    """Yield the workspaces that no run uses and whose leaderboard was recorded more than `num_days` days ago.

    Args:
        everything: also yield those without a recorded leaderboard whose parameters were written that long ago.
    """
    from tasks.cluster.launchers import is_queued

    recorded = {read_state(path).get("workspace") for path in project.leaderboards.glob("*/record.json")}
    for folder in project.workspaces.glob("*"):
        last = folder / "build" / "leaderboard" / "leaderboard.json"
        if not last.exists() or os.path.relpath(folder, project.home) not in recorded:
            if not everything:
                continue
            last = folder / "params.yaml"
        if last.exists() and time.time() - last.stat().st_mtime < num_days * 86_400:
            continue
        workspace = Project(folder, project.home)
        if any(is_queued(path, workspace.params_path) for path in (workspace.runs / "pretrain").glob("*")):
            continue
        with contextlib.suppress(Busy), run_lock(workspace, "cloze gc"):
            yield folder


def _is_published(project: Project, stage: str, job: RunDir) -> bool:
    digest = read_state(job.result).get("digest")
    if stage == "pretrain":
        published = [RunDir(path).metrics for path in (project.build / stage).glob("*")]
        return any(path.exists() and read_json(path)["digest"] == digest for path in published)
    return any((project.build / stage).glob(f"*/*/jobs/{digest}"))


def _collect_cache(project: Project, dry_run: bool) -> tuple[int, str]:
    """Delete the objects in DVC's cache to which neither the working tree nor a commit refers, as `dvc gc` does.

    Unlike `dvc gc`, reads only the commits that changed what DVC tracks. Returns the bytes of these objects, and lists
    the stages with the number of versions that lose files.
    """
    from dvc.repo import Repo
    from dvc_data.hashfile.gc import gc as delete_unused

    logging.getLogger("dvc").setLevel(logging.ERROR)  # it warns about each output of each commit without a dvc.lock
    tracked = ("dvc.lock", "dvc.yaml", "*.dvc")
    commits = git_says(project, "log", "--all", "--full-history", "--format=%H", "--", *tracked).split()
    try:
        with (
            working(f"finding the files that {len(commits)} commits use"),
            Repo(str(project.root)) as repo,
            repo.lock,
        ):
            used = {one for ids in repo.used_objs(revs=commits, force=True).values() for one in ids}
            kept, objects = {one.value for one in used}, cache_of(project)
            unused = [file for file in objects.glob("??/*") if file.parent.name + file.name not in kept]
            num_bytes = sum(file.stat().st_size for file in unused)
            versions = collections.Counter(
                entry["cmd"].rpartition(" ")[2]
                for entry in map(read_yaml, (objects.parent.parent / "runs").glob("*/*/*"))
                if any(out["md5"] not in kept and object_path(objects, out["md5"]).exists() for out in entry["outs"])
            )
            for _, cache in repo.cache.by_scheme() if not dry_run else ():
                if cache:
                    delete_unused(cache, used)
    except Exception as error:
        raise UserError(f"dvc gc: {' '.join(str(error).split())}") from error
    return num_bytes, ", ".join(f"{stage} ({versions[stage]})" for stage in STAGES if stage in versions)


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check the installation and print a remedy for each problem.

    Checks Python, pinned packages, torch, disk space, git, DVC and ports.
    """
    project = project_here()
    findings = [finding for check in CHECKS for finding in check(project)]
    if as_json:
        print_json({"checks": [finding.content() for finding in findings]})
    else:
        _print_findings(findings)
    if any(finding.result == "fault" for finding in findings):
        sys.exit(EXIT_FAILED)


def _print_findings(findings: Sequence[Finding]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "check", "found", "what to do", box=None, pad_edge=False)
    for finding in findings:
        cells = map(redacted, finding.content().values())
        result, *texts = cells
        table.add_row(f"[{_COLORS[result]}]{result}[/]", *map(escape, texts))
    console().print(table)


@dataclass(frozen=True)
class Finding:
    """Result of one check. A fault that is not `grave` is a recommendation."""

    what: str
    found: str
    fine: bool = True
    remedy: str = ""
    grave: bool = True

    @property
    def result(self) -> str:
        """ok, fault or note."""
        return "ok" if self.fine else "fault" if self.grave else "note"

    def content(self) -> dict[str, str]:
        """Columns of `cloze doctor`."""
        remedy = "" if self.fine else self.remedy
        return {"result": self.result, "check": self.what, "found": self.found, "remedy": remedy}


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
    remedy = "pip install -c constraints.txt 'cloze[pipeline]'"
    yield Finding("pins", some or "as in constraints.txt", not differing, remedy, grave=False)


def _torch(_project: Project) -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding("torch", str(error), False, "pip install -c constraints.txt 'cloze[pipeline]'")
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
        graph = Graph(project, may_write=False)
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
    from tasks import preflight
    from tasks.params.root import load_params

    try:
        params = load_params(project.params_path)
        if project.data.is_dir():
            preflight.check(project, params, may_write=False)
        yield Finding("params.yaml", "valid, and every input is tracked")
    except UserError as error:
        for line in str(error).splitlines():
            yield Finding("params.yaml", line, False, "fix the setting")


def _ports(project: Project) -> Iterator[Finding]:
    for port, server in PORTS.items():
        if urlsplit(running_address(project, server.lower())).port == port:
            yield Finding(f"port {port}", f"{server} of `cloze up`")
            continue
        with socket.socket() as probe:
            taken = probe.connect_ex(("127.0.0.1", port)) == 0
        found, remedy = "in use" if taken else "free", f"cloze up --{server.lower()}-port NUMBER"
        yield Finding(f"port {port}", found, not taken, remedy, grave=False)


CHECKS: tuple[Callable[[Project], Iterator[Finding]], ...] = (
    _python, _pins, _torch, _disk, _git, _params, _dvc, _remotes, _ports,
)  # fmt: skip
