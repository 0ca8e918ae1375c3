"""Retraining: the record of the last verdict, the branch and push of a new state, and the report."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model.common.errors import UserError
from model.common.files import digest_of, write_bytes, write_json
from model.common.redaction import redacted
from model.common.state_files import read_state, write_state
from tasks.dvc.integrity import outputs, refuse_damaged
from tasks.params.root import RetrainSettings
from tasks.project.pages import markdown_templates, templates
from tasks.project.progress import warn
from tasks.project.project import Project
from tasks.project.workspace import dvc_config, git_commit, timestamp
from tasks.project.yaml_files import read_yaml
from tasks.registry.drift import Drift
from tasks.registry.gate import Verdict
from tasks.tracking.tracking import Entry, Forwarder, Tracking, standard_tags

Outcome = Literal["skipped", "promoted", "refused", "already champion", "failed"]
_RECORDED = ("dvc.lock", "data.dvc", "params.yaml")
_ASSETS = Path(__file__).parent / "assets"


def lock_digest(project: Project) -> str:
    """Compute the digest of dvc.lock (of an empty file before the first run)."""
    path = project.root / "dvc.lock"
    return digest_of(read_yaml(path) if path.exists() else {})


def last_judged(project: Project) -> dict[str, Any]:
    """Read the record of the last retraining with a verdict; empty before the first."""
    return read_state(project.home / ".cloze" / "retrain.json")


def remember(project: Project, record: dict[str, Any]) -> None:
    """Record the outcome of this retraining, so that the next one judges only a new state."""
    content = record | {"lock": lock_digest(project), "written": timestamp()}
    write_state(project.home / ".cloze" / "retrain.json", content)


def commit_on_branch(project: Project, settings: RetrainSettings, message: str) -> str:
    """Commit dvc.lock, data.dvc and params.yaml on a new branch; returns its name.

    The checkout, the index and the current branch do not change. The same state is committed only once.

    Raises:
        UserError: git refuses.
    """
    branch = f"{settings.branch}/{time.strftime('%Y-%m-%d')}-{lock_digest(project)[:6]}"
    files = [name for name in _RECORDED if (project.root / name).exists()]
    with tempfile.TemporaryDirectory() as folder:
        index = f"{folder}/index"
        _git(project, "read-tree", "HEAD", GIT_INDEX_FILE=index)
        _git(project, "add", "--force", "--", *files, GIT_INDEX_FILE=index)
        tree = _git(project, "write-tree", GIT_INDEX_FILE=index)
    if tree == _git(project, "rev-parse", "HEAD^{tree}"):
        return ""
    author = {}
    if not _git(project, "config", "--default", "", "--get", "user.email"):  # in a container
        named = {"NAME": "cloze", "EMAIL": "cloze@localhost"}
        author = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in named.items()}
    commit = _git(project, "commit-tree", tree, "-p", "HEAD", "-m", message, **author)
    _git(project, "update-ref", f"refs/heads/{branch}", commit)
    return branch


def push(project: Project) -> str:
    """Run `dvc push` to the default remote; returns a message for the report.

    Raises:
        UserError: a cached object is damaged (DVC would skip it silently), DVC refuses, or the remote does not
            respond.
    """
    if not dvc_config(project.root).get("core", {}).get("remote"):
        return "not pushed: DVC has no default remote (`dvc remote default NAME`)"
    refuse_damaged(project, outputs(project))
    command = [sys.executable, "-m", "dvc", "push", "--quiet"]
    done = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"dvc push: {redacted(' '.join(done.stderr.split()))[-500:]}")
    return "outputs pushed to DVC's remote"


def profiles_dir(project: Project) -> Path:
    """Directory of the profile of the corpus that was judged last, with its tokenizer."""
    return project.home / ".cloze" / "retrain"


def _git(project: Project, *arguments: str, **variables: str) -> str:
    command = ["git", *arguments]
    environment = os.environ | variables
    done = subprocess.run(command, cwd=project.root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"git {arguments[0]}: {' '.join(done.stderr.split())}")
    return done.stdout.strip()


@dataclass(frozen=True)
class RetrainReport:
    """Outcome of a retraining."""

    outcome: Outcome
    reason: str
    version: str = ""
    """Display name of the registered encoder that was judged."""
    why: tuple[str, ...] = ()
    ran: tuple[str, ...] = ()
    verdict: Verdict | None = None
    drift: Drift | None = None
    kept: str = ""
    """Branch and remote with the saved outcome."""
    when: str = dataclasses.field(default_factory=timestamp)

    @property
    def title(self) -> str:
        return f"{self.version}: {self.outcome}" if self.version else self.outcome.capitalize()

    def record(self) -> dict[str, Any]:
        verdict = self.verdict and self.verdict.record()
        return dataclasses.asdict(self) | {"reason": redacted(self.reason), "verdict": verdict}

    def markdown(self) -> str:
        return redacted(markdown_templates(_ASSETS).get_template("retrain.md.j2").render(report=self))

    def html(self) -> str:
        import markupsafe
        from markdown_it import MarkdownIt

        made = MarkdownIt("commonmark", {"html": False}).enable("table").render(self.markdown())
        page = templates(_ASSETS).get_template("report.html.j2")
        return page.render(title=self.title, when=self.when, body=markupsafe.Markup(made))


def write_report(project: Project, report: RetrainReport) -> Path:
    """Write the report to build/runs/retrain/ as a page, Markdown and JSON; returns the path of the page.

    Keeps only the last report of skipped retrainings, because a schedule produces many.
    """
    folder = project.runs / "retrain"
    skipped = report.outcome == "skipped"
    path = folder / ("skipped.html" if skipped else f"{report.when[:19].replace(':', '')}.html")
    write_bytes(path, report.html().encode())
    write_bytes(path.with_suffix(".md"), report.markdown().encode())
    write_json(path.with_suffix(".json"), report.record())
    return path


def track(project: Project, report: RetrainReport, page: Path, state: str, prefect_run: str = "") -> None:
    """Log the report to MLflow as a run; skipped retrainings of the same state share one.

    Args:
        state: digest of dvc.lock, which identifies what was judged.
        prefect_run: id of the flow run.
    """
    key = digest_of(["retrain", state, report.outcome, "" if report.outcome == "skipped" else report.when])
    tags = {
        "cloze.kind": "retrain",
        "cloze.run": key,
        "cloze.outcome": report.outcome,
        "cloze.reason": redacted(report.reason)[:4000],
        "cloze.version": report.version,
        "cloze.when": report.when,
        "cloze.git_commit": git_commit(project),
        "cloze.prefect_run": prefect_run,
    }
    name = f"retrain {report.when[:10]}: {report.outcome}"
    tags |= standard_tags(project, "retrain", report.markdown()[:5000])
    entry = Entry(key, name, tags={name: value for name, value in tags.items() if value})
    folder = project.runs / "tracking"
    tracking = Tracking(folder, entry, {})
    tracking.note(_metrics(report), [(page.with_suffix(suffix), "report") for suffix in (".html", ".md", ".json")])
    tracking.finish("FAILED" if report.outcome == "failed" else "FINISHED")
    forwarder = Forwarder(project.tracking_uri, project.mlflow_home, folder)
    forwarder.start()
    if forwarder.drain():
        warn(f"cloze: the report was not sent to MLflow{forwarder.reason}; the next run sends it")


def _metrics(report: RetrainReport) -> dict[str, float]:
    found: dict[str, float | None] = {}
    if report.verdict:
        found |= {"gate/difference": report.verdict.difference, "gate/low": report.verdict.low}
        if report.verdict.look:
            found |= {"gate/look": report.verdict.look.number, "gate/error_spent": report.verdict.look.spent}
    if report.drift:
        names = ("words", "sentence_lengths", "document_lengths", "new_words")
        found |= {f"drift/{name}": getattr(report.drift, name) for name in names}
        found["drift/unknown"] = report.drift.unknown[1]
    return {name: value for name, value in found.items() if value is not None}
