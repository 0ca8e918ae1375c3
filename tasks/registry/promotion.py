"""Who is champion: promotion through the gate, rollback, and the history of both.

The alias `champion` says who it is, on the encoder and on its fine-tuned models alike; the encoder's is set last and is
what counts. Each act is a tag of the registered encoder, with time, reason and the gate's verdict, so the history lies
where the models lie.
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
from tasks.registry.versions import CHAMPION, Registry, Version

_EVENT = "cloze.event."
Act = Literal["promoted", "forced", "refused", "rolled back"]


@dataclass(frozen=True)
class Event:
    """Something that was decided about who is champion."""

    when: str
    """As 2026-11-21T16:33:19+0000."""
    act: Act
    """`forced` is a promotion against the gate."""
    version: int
    """Of the encoder: who was promoted or refused; of a rollback, who is champion again."""
    encoder: str
    before: int | None
    """Who was champion before."""
    reason: str
    by: str
    """The user."""
    verdict: dict[str, Any] | None = None
    """The gate's, as `Verdict.record` gives it."""


@dataclass(frozen=True)
class Promotion:
    """What became of a challenger."""

    version: Version
    verdict: Verdict
    event: Event | None
    """None where the challenger is the champion already: nothing was decided."""

    @property
    def promoted(self) -> bool:
        """Whether the challenger has become the champion."""
        return self.event is not None and self.event.act in ("promoted", "forced")


def promote(project: Project, version: Version, reason: str = "", force: bool = False) -> Promotion:
    """Judge a registered version against the champion, and make it the champion if the gate lets it pass.

    Args:
        reason: of a person, kept with the gate's.
        force: promote whatever the gate says; needs a reason.

    Raises:
        UserError: `force` without a reason, a damaged version, or MLflow cannot be reached.
    """
    if force and not reason:
        raise UserError("promotion against the gate needs a reason (--reason), which the history keeps")
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
        _enthrone(registry, version, event)
    return Promotion(version, verdict, event)


def assess(project: Project, version: Version) -> Verdict:
    """What the gate says of a version; nothing is changed."""
    registry = Registry(project)
    return _judged(registry, version, registry.by_alias(CHAMPION))


def rollback(project: Project, reason: str) -> Event:
    """Make the champion before the present one champion again; again, the one before that.

    Raises:
        UserError: no reason is given, there is no champion, or none before it.
    """
    if not reason:
        raise UserError("a rollback needs a reason (--reason), which the history keeps")
    registry = Registry(project)
    present = registry.by_alias(CHAMPION)
    if present is None:
        raise UserError("there is no champion to roll back; `cloze promote` makes one")
    earlier = [number for number in _reigns(history(project)) if number != present.number]
    known = {version.number: version for version in registry.versions()}
    if not earlier or earlier[-1] not in known:
        raise UserError(f"{present} has no champion before it; `cloze champion` shows the history")
    version = known[earlier[-1]]
    event = _event("rolled back", version, present, reason, None)
    _enthrone(registry, version, event)
    return event


def champion(project: Project) -> Version | None:
    """The champion; None where nothing was promoted yet."""
    return Registry(project).by_alias(CHAMPION)


def history(project: Project) -> list[Event]:
    """All that was decided, the latest last."""
    registry = Registry(project)
    registered = registry.registered(registry.encoder_model)
    tags = {} if registered is None else registered.tags
    return [Event(**json.loads(tags[name])) for name in sorted(tags) if name.startswith(_EVENT)]


def _reigns(events: list[Event]) -> list[int]:
    """The champions that a rollback can go back to, the present one last: a rollback ends a reign for good."""
    reigns: list[int] = []
    for event in events:
        if event.act in ("promoted", "forced"):
            reigns = [number for number in reigns if number != event.version] + [event.version]
        elif event.act == "rolled back":
            reigns = reigns[: reigns.index(event.version) + 1] if event.version in reigns else [event.version]
    return reigns


def _judged(registry: Registry, version: Version, before: Version | None) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / name for name in ("challenger", "champion")]
        for place in places:
            place.mkdir()
        challenger = registry.candidate(version, places[0])
        incumbent = None if before is None else registry.candidate(before, places[1])
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
    with registry.faults():
        registry.client.set_registered_model_tag(registry.encoder_model, name, json.dumps(dataclasses.asdict(event)))
        registry.client.set_model_version_tag(
            registry.encoder_model,
            str(event.version),
            f"cloze.{event.act.replace(' ', '_')}",
            f"{event.when} {event.reason}",
        )


def _enthrone(registry: Registry, version: Version, event: Event) -> None:
    """Set the alias on the fine-tuned models, take it from those that the champion has not, then on the encoder."""
    numbers = registry.of_registration(version.registration)
    _note(registry, event)
    with registry.faults():
        for registered in registry.client.search_registered_models(f"name LIKE '{registry.settings.model}-%'"):
            if CHAMPION in registered.aliases and registered.name not in numbers:
                registry.client.delete_registered_model_alias(registered.name, CHAMPION)
        for model, number in numbers.items():
            of_encoder = model == registry.encoder_model
            registry.client.set_registered_model_alias(model, CHAMPION, str(version.number if of_encoder else number))
