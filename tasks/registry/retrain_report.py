"""The report of a retraining: what came of it and why, for Prefect's page, as a page of its own, and with MLflow."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model.common.files import digest_of, write_bytes, write_json
from model.common.redaction import redacted
from tasks.project.pages import templates
from tasks.project.progress import echo
from tasks.project.project import Project
from tasks.project.workspace import git_commit, timestamp
from tasks.registry.drift import Drift
from tasks.registry.gate import Verdict
from tasks.tracking.forward import Entry, Forwarder

Outcome = Literal["skipped", "promoted", "refused", "already champion", "failed"]
_ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True)
class Report:
    """What a retraining came to."""

    outcome: Outcome
    reason: str
    """In one line."""
    version: str = ""
    """The registered encoder that was judged, as people read it."""
    why: tuple[str, ...] = ()
    """What had changed."""
    ran: tuple[str, ...] = ()
    """The stages that ran."""
    verdict: Verdict | None = None
    drift: Drift | None = None
    kept: str = ""
    """Where the outcome was kept: branch and remote."""
    when: str = dataclasses.field(default_factory=timestamp)

    @property
    def title(self) -> str:
        """The encoder and what became of it."""
        return f"{self.version}: {self.outcome}" if self.version else self.outcome.capitalize()

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "outcome": self.outcome,
            "reason": redacted(self.reason),
            "version": self.version,
            "why": list(self.why),
            "ran": list(self.ran),
            "verdict": self.verdict and self.verdict.record(),
            "drift": self.drift and self.drift.record(),
            "kept": self.kept,
            "when": self.when,
        }

    def markdown(self) -> str:
        """As Prefect's page shows it."""
        parts = [f"# {self.title}", self.reason]
        if self.why:
            parts += ["## Why it ran", "\n".join(f"- {line}" for line in self.why)]
        if self.verdict:
            parts += ["## Verdict", self.verdict.markdown()]
        if self.verdict or self.drift:
            parts += ["## Corpus", self.drift.markdown() if self.drift else "There was no corpus to compare with."]
        if self.outcome != "skipped":
            parts += ["## Kept", f"Stages that ran: {', '.join(self.ran) or 'none'}. {self.kept}".strip()]
        return redacted("\n\n".join(parts)) + "\n"

    def html(self) -> str:
        """As a page that needs nothing from elsewhere."""
        import markupsafe
        from markdown_it import MarkdownIt

        made = MarkdownIt("commonmark", {"html": False}).enable("table").render(self.markdown())
        page = templates(_ASSETS).get_template("report.html.j2")
        return page.render(title=self.title, when=self.when, body=markupsafe.Markup(made))


def write_report(project: Project, report: Report) -> Path:
    """Keep the report below build/runs/retrain/ as a page, Markdown and JSON; the page's path.

    Of skipped retrainings only the last is kept: a schedule makes many.
    """
    folder = project.runs / "retrain"
    skipped = report.outcome == "skipped"
    path = folder / ("skipped.html" if skipped else f"{report.when[:19].replace(':', '')}.html")
    write_bytes(path, report.html().encode())
    write_bytes(path.with_suffix(".md"), report.markdown().encode())
    write_json(path.with_suffix(".json"), report.record())
    return path


def track(project: Project, report: Report, page: Path, state: str, prefect_run: str = "") -> None:
    """A run in MLflow that says what came of it, with the page; skipped ones of the same state share one.

    Args:
        state: Names what was judged: the digest of dvc.lock.
        prefect_run: The id of the flow run.
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
    entry = Entry(
        key=key,
        name=f"retrain {report.when[:10]}: {report.outcome}",
        status="FAILED" if report.outcome == "failed" else "FINISHED",
        tags={name: value for name, value in tags.items() if value},
        metrics=_metrics(report),
        artifacts=[(str(page.with_suffix(suffix)), "report") for suffix in (".html", ".md", ".json")],
        changed_ms=int(time.time() * 1000),
    )
    folder = project.runs / "tracking"
    write_json(folder / f"{key}.json", dataclasses.asdict(entry))
    forwarder = Forwarder(project.tracking_uri, project.mlflow_home, folder)
    forwarder.start()
    if forwarder.drain():
        echo(f"cloze: MLflow did not take the report{forwarder.reason}; it is kept and the next run sends it")


def _metrics(report: Report) -> dict[str, float]:
    found: dict[str, float | None] = {}
    if report.verdict:
        found |= {"gate/difference": report.verdict.difference, "gate/low": report.verdict.low}
    if report.drift:
        found |= {
            "drift/words": report.drift.words,
            "drift/sentence_lengths": report.drift.sentence_lengths,
            "drift/document_lengths": report.drift.document_lengths,
            "drift/new_words": report.drift.new_words,
            "drift/unknown": report.drift.unknown[1],
        }
    return {name: value for name, value in found.items() if value is not None}
