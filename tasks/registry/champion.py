"""The champion: promotion through the gate, rollback, and the history of both.

The alias `champion` marks the encoder and its fine-tuned models; the encoder's alias is set last and is decisive. Each
event is a tag of the registered encoder with time, reason and verdict, so the history is stored with the models.
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from typing import Any, Literal

from model.common.errors import UserError
from tasks.project.project import Project
from tasks.project.workspace import timestamp, user_name
from tasks.registry.gate import Verdict, judge
from tasks.registry.mlflow_registry import CHAMPION, Registry, Version

_EVENT = "cloze.event."
Act = Literal["promoted", "forced", "refused", "rolled back"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """A decision about the champion."""

    when: str = dataclasses.field(default_factory=timestamp)
    act: Act
    """`forced` is a promotion against the gate."""
    version: int
    """Version of the encoder that was promoted or refused, or, after a rollback, is champion again."""
    encoder: str
    before: int | None
    """Version of the previous champion."""
    reason: str
    by: str = dataclasses.field(default_factory=user_name)
    """User name."""
    verdict: dict[str, Any] | None = None
    """Verdict of the gate (`Verdict.record`)."""


@dataclass(frozen=True)
class Promotion:
    """Outcome of a promotion."""

    version: Version
    verdict: Verdict
    event: Event | None
    """None if the challenger is already the champion."""

    @property
    def promoted(self) -> bool:
        return self.event is not None and self.event.act in ("promoted", "forced")


def promote(project: Project, version: Version, reason: str = "", force: bool = False) -> Promotion:
    """Judge a registered version against the champion, and make it the champion if it passes the gate.

    Args:
        reason: the user's reason, recorded with the gate's.
        force: promote even if the gate refuses; needs a reason.

    Raises:
        UserError: `force` without a reason, a damaged version, or MLflow cannot be reached.
    """
    if force and not reason:
        raise UserError("promotion against the gate needs a reason for the history; pass --reason")
    registry = Registry(project)
    before = registry.by_alias(CHAMPION)
    verdict = _judged(registry, version, before)
    if before is not None and before.number == version.number:
        return Promotion(version, verdict, None)
    act: Act = "promoted" if verdict.promoted else "forced" if force else "refused"
    said = f"{reason} ({verdict.reason})" if reason else verdict.reason
    return Promotion(version, verdict, _apply(registry, act, version, before, said, verdict.record()))


def assess(project: Project, version: Version) -> Verdict:
    """Judge a version without promoting it."""
    registry = Registry(project)
    return _judged(registry, version, registry.by_alias(CHAMPION))


def rollback(project: Project, reason: str) -> Event:
    """Make the previous champion the champion again; a second rollback goes one champion further back.

    Raises:
        UserError: no reason is given, or there is no champion or previous champion.
    """
    if not reason:
        raise UserError("a rollback needs a reason for the history; pass --reason")
    registry = Registry(project)
    present = registry.by_alias(CHAMPION)
    if present is None:
        raise UserError("there is no champion to roll back; run `cloze promote` first")
    earlier = [number for number in _rollback_targets(history(project)) if number != present.number]
    known = {version.number: version for version in registry.versions()}
    if not earlier or earlier[-1] not in known:
        raise UserError(f"{present} has no champion before it; `cloze champion` shows the history")
    version = known[earlier[-1]]
    return _apply(registry, "rolled back", version, present, reason)


def current(project: Project) -> Version | None:
    return Registry(project).by_alias(CHAMPION)


def history(project: Project) -> list[Event]:
    """Return all events, oldest first."""
    registry = Registry(project)
    registered = registry.registered(registry.encoder_model)
    tags = {} if registered is None else registered.tags
    return [Event(**json.loads(tags[name])) for name in sorted(tags) if name.startswith(_EVENT)]


def _rollback_targets(events: list[Event]) -> list[int]:
    """List the versions that a rollback can return to, the current champion last; skips rolled-back versions."""
    targets: list[int] = []
    for event in events:
        if event.act in ("promoted", "forced"):
            targets = [number for number in targets if number != event.version] + [event.version]
        elif event.act == "rolled back":
            targets = targets[: targets.index(event.version) + 1] if event.version in targets else [event.version]
    return targets


def _judged(registry: Registry, version: Version, before: Version | None) -> Verdict:
    incumbent = None if before is None else registry.candidate(before)
    return judge(registry.candidate(version), incumbent, registry.settings)


def _apply(
    registry: Registry,
    act: Act,
    version: Version,
    before: Version | None,
    reason: str,
    verdict: dict[str, Any] | None = None,
) -> Event:
    """Record an event, tag the version with it and, unless the version was refused, make it the champion.

    Moves the alias to the fine-tuned models, removes it from models that the champion lacks, then moves the encoder's.
    """
    event = Event(
        act=act,
        version=version.number,
        encoder=version.encoder,
        before=None if before is None else before.number,
        reason=" ".join(reason.split()),
        verdict=verdict,
    )
    numbers = registry.of_registration(version.registration)
    client, encoder_model = registry.client, registry.encoder_model
    with registry.errors():
        content = json.dumps(dataclasses.asdict(event))
        client.set_registered_model_tag(encoder_model, f"{_EVENT}{time.time_ns():020}", content)
        tag = f"cloze.{act.replace(' ', '_')}"
        client.set_model_version_tag(encoder_model, str(event.version), tag, f"{event.when} {event.reason}")
        if act == "refused":
            return event
        for registered in client.search_registered_models(f"name LIKE '{registry.settings.model}-%'"):
            if CHAMPION in registered.aliases and registered.name not in numbers:
                client.delete_registered_model_alias(registered.name, CHAMPION)
        for model, number in (numbers | {encoder_model: version.number}).items():
            client.set_registered_model_alias(model, CHAMPION, str(number))
    return event
