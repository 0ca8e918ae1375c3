"""The champion: promotion through the gate, rollback, and the history of both.

The alias `champion` marks the encoder and its fine-tuned models; that of the encoder is set last and is decisive. Each
event is a tag of the registered encoder, with time, reason and the gate's verdict, so the history is stored with the
models.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model.common.errors import UserError
from tasks.project.project import Project
from tasks.project.workspace import timestamp, user_name
from tasks.registry.gate import Verdict, judge
from tasks.registry.mlflow_registry import CHAMPION, Registry, Version

_EVENT = "cloze.event."
Act = Literal["promoted", "forced", "refused", "rolled back"]


@dataclass(frozen=True)
class Event:
    """A decision about the champion."""

    when: str
    """Time as 2026-11-21T16:33:19+0000."""
    act: Act
    """`forced` is a promotion against the gate."""
    version: int
    """Version of the encoder that was promoted or refused, or, after a rollback, is champion again."""
    encoder: str
    before: int | None
    """Version of the previous champion."""
    reason: str
    by: str
    """User name."""
    verdict: dict[str, Any] | None = None
    """Verdict of the gate (`Verdict.record`)."""


@dataclass(frozen=True)
class Promotion:
    """Outcome of a promotion."""

    version: Version
    verdict: Verdict
    event: Event | None
    """None if the challenger is the champion already."""

    @property
    def promoted(self) -> bool:
        """True if the challenger has become the champion."""
        return self.event is not None and self.event.act in ("promoted", "forced")


def promote(project: Project, version: Version, reason: str = "", force: bool = False) -> Promotion:
    """Judge a registered version against the champion, and make it the champion if it passes the gate.

    Args:
        reason: given by the user, kept with that of the gate.
        force: promote even if the gate refuses; needs a reason.

    Raises:
        UserError: `force` without a reason, a damaged version, or MLflow cannot be reached.
    """
    if force and not reason:
        raise UserError("promotion against the gate needs a reason (--reason), which is kept in the history")
    registry = Registry(project)
    before = registry.by_alias(CHAMPION)
    verdict = _judged(registry, version, before)
    if before is not None and before.number == version.number:
        return Promotion(version, verdict, None)
    act: Act = "promoted" if verdict.promoted else "forced" if force else "refused"
    said = f"{reason} ({verdict.reason})" if reason else verdict.reason
    event = _event(act, version, before, said, verdict)
    if act == "refused":
        _note(registry, event)
    else:
        _set_champion(registry, version, event)
    return Promotion(version, verdict, event)


def assess(project: Project, version: Version) -> Verdict:
    """Judge a version without promoting it."""
    registry = Registry(project)
    return _judged(registry, version, registry.by_alias(CHAMPION))


def rollback(project: Project, reason: str) -> Event:
    """Make the previous champion the champion again; a second rollback goes one champion further back.

    Raises:
        UserError: no reason is given, there is no champion, or none before it.
    """
    if not reason:
        raise UserError("a rollback needs a reason (--reason), which is kept in the history")
    registry = Registry(project)
    present = registry.by_alias(CHAMPION)
    if present is None:
        raise UserError("there is no champion to roll back; `cloze promote` makes one")
    earlier = [number for number in _rollback_targets(history(project)) if number != present.number]
    known = {version.number: version for version in registry.versions()}
    if not earlier or earlier[-1] not in known:
        raise UserError(f"{present} has no champion before it; `cloze champion` shows the history")
    version = known[earlier[-1]]
    event = _event("rolled back", version, present, reason, None)
    _set_champion(registry, version, event)
    return event


def current(project: Project) -> Version | None:
    """Return the champion; None if nothing was promoted yet."""
    return Registry(project).by_alias(CHAMPION)


def history(project: Project) -> list[Event]:
    """Return all events, the latest last."""
    registry = Registry(project)
    registered = registry.registered(registry.encoder_model)
    tags = {} if registered is None else registered.tags
    return [Event(**json.loads(tags[name])) for name in sorted(tags) if name.startswith(_EVENT)]


def _rollback_targets(events: list[Event]) -> list[int]:
    """Versions that a rollback can return to, the current champion last; skips versions that were rolled back."""
    targets: list[int] = []
    for event in events:
        if event.act in ("promoted", "forced"):
            targets = [number for number in targets if number != event.version] + [event.version]
        elif event.act == "rolled back":
            targets = targets[: targets.index(event.version) + 1] if event.version in targets else [event.version]
    return targets


def _judged(registry: Registry, version: Version, before: Version | None) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / name for name in ("challenger", "champion")]
        for path in folders:
            path.mkdir()
        challenger = registry.candidate(version, folders[0])
        incumbent = None if before is None else registry.candidate(before, folders[1])
        return judge(challenger, incumbent, registry.settings)


def _event(act: Act, version: Version, before: Version | None, reason: str, verdict: Verdict | None) -> Event:
    return Event(
        when=timestamp(),
        act=act,
        version=version.number,
        encoder=version.encoder,
        before=None if before is None else before.number,
        reason=" ".join(reason.split()),
        by=user_name(),
        verdict=None if verdict is None else verdict.record(),
    )


def _note(registry: Registry, event: Event) -> None:
    """Keep an event, and show it on the version's page."""
    name = f"{_EVENT}{time.time_ns():020}"
    with registry.errors():
        registry.client.set_registered_model_tag(registry.encoder_model, name, json.dumps(dataclasses.asdict(event)))
        registry.client.set_model_version_tag(
            registry.encoder_model,
            str(event.version),
            f"cloze.{event.act.replace(' ', '_')}",
            f"{event.when} {event.reason}",
        )


def _set_champion(registry: Registry, version: Version, event: Event) -> None:
    """Set the alias on the fine-tuned models, take it from those that the champion has not, then on the encoder."""
    numbers = registry.of_registration(version.registration)
    _note(registry, event)
    with registry.errors():
        for registered in registry.client.search_registered_models(f"name LIKE '{registry.settings.model}-%'"):
            if CHAMPION in registered.aliases and registered.name not in numbers:
                registry.client.delete_registered_model_alias(registered.name, CHAMPION)
        for model, number in numbers.items():
            of_encoder = model == registry.encoder_model
            registry.client.set_registered_model_alias(model, CHAMPION, str(version.number if of_encoder else number))
