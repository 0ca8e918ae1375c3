"""The champion: promotion through the gate, rollback, and the history of both.

The alias `champion` marks the encoder in use and its fine-tuned models; the encoder's alias is set last and is
decisive. The alias `best` marks the best champion ever, which the gate compares with. Each event is a tag of the
registered encoder with time, reason and verdict, so the history is stored with the models.
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from typing import Any

from model.common.errors import UserError
from tasks.project.project import Project
from tasks.registry.events import Act, Event, best_after_rollback, champions, looks_of
from tasks.registry.gate import Candidate, Verdict, change_since, judge
from tasks.registry.mlflow_registry import BEST, CHAMPION, Registry, Version

_EVENT = "cloze.event."


@dataclass(frozen=True)
class Promotion:
    """Outcome of a promotion."""

    version: Version
    verdict: Verdict
    event: Event | None
    """None if the challenger, or another version with equal weights of the encoder, is already the champion."""

    @property
    def promoted(self) -> bool:
        return self.event is not None and self.event.act in ("promoted", "forced")


def promote(
    project: Project, version: Version, reason: str = "", force: bool = False, reset_best: bool = False
) -> Promotion:
    """Judge a registered version against the best champion ever, and make it the champion if it passes the gate.

    Args:
        reason: the user's reason, recorded with the gate's.
        force: promote even if the gate refuses; needs a reason.
        reset_best: promote even if the gate refuses, and make the version `best`, whatever its scores; needs a reason.

    Raises:
        UserError: `force` or `reset_best` without a reason, a damaged version, or MLflow cannot be reached.
    """
    force = force or reset_best
    if force and not reason:
        raise UserError("promotion against the gate needs a reason for the history; pass --reason")
    registry = Registry(project)
    before, best = registry.by_alias(CHAMPION), _best(registry)
    verdict = _judged(registry, version, before, best, force)
    if before is not None and not reset_best:
        is_equal = version.weights != "" and version.weights == before.weights
        if before.number == version.number or (is_equal and verdict.promoted and not force):
            return Promotion(version, verdict, None)
    act: Act = "promoted" if verdict.promoted else "forced" if force else "refused"
    said = f"{reason} ({verdict.reason})" if reason else verdict.reason
    if act != "refused" and (reset_best or verdict.moves_best):
        best = version
    return Promotion(version, verdict, _apply(registry, act, version, before, best, said, verdict.record()))


def assess(project: Project, version: Version) -> Verdict:
    """Judge a version without promoting it. This is not recorded, so it is not a look."""
    registry = Registry(project)
    return _judged(registry, version, registry.by_alias(CHAMPION), _best(registry))


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
    events, best = _history(registry), _best(registry)
    earlier = [event.version for event in champions(events) if event.version != present.number]
    known = {version.number: version for version in registry.versions()}
    if not earlier or earlier[-1] not in known:
        raise UserError(f"{present} has no champion before it; `cloze champion` shows the history")
    version = known[earlier[-1]]
    best = known.get(best_after_rollback(events, version.number, None if best is None else best.number), version)
    return _apply(registry, "rolled back", version, present, best, reason)


def current(project: Project) -> Version | None:
    return Registry(project).by_alias(CHAMPION)


def best(project: Project) -> Version | None:
    """Return the best champion ever, which the gate compares with; None before the first champion."""
    return _best(Registry(project))


def versions(project: Project) -> list[Version]:
    """Return all registered versions, latest first."""
    return Registry(project).versions()


def history(project: Project) -> list[Event]:
    """Return all events, oldest first."""
    return _history(Registry(project))


def _best(registry: Registry) -> Version | None:
    """Champions of older releases have no `best` yet; the latest one takes its place."""
    return registry.by_alias(BEST) or registry.by_alias(CHAMPION)


def _history(registry: Registry) -> list[Event]:
    registered = registry.registered(registry.encoder_model)
    tags = {} if registered is None else registered.tags
    return [Event(**json.loads(tags[name])) for name in sorted(tags) if name.startswith(_EVENT)]


def _judged(
    registry: Registry, version: Version, before: Version | None, best: Version | None, force: bool = False
) -> Verdict:
    """Judge a version, and add the cumulative change of the champion after this decision."""
    challenger = registry.candidate(version)
    if best is None:
        return dataclasses.replace(judge(challenger, None, registry.settings), challenger=str(version))
    before = before or best
    events, known = _history(registry), {one.number: one for one in registry.versions()}
    first = next((event.version for event in events if event.act in ("promoted", "forced")), before.number)
    candidates: dict[int, Candidate] = {version.number: challenger}
    for number in (before.number, best.number, first):
        if number in known and number not in candidates:
            candidates[number] = registry.candidate(known[number])
    verdict = judge(challenger, candidates[best.number], registry.settings, looks_of(events), candidates[before.number])
    after = version if verdict.promoted or force else before
    earlier = [("best", best.number), ("first champion", first)]
    changes = []
    for name, number in earlier:
        if number in candidates and number != after.number:
            systems = candidates[after.number], candidates[number]
            changes.append(change_since(str(after), f"{name}, {known[number]}", *systems, registry.settings))
    return dataclasses.replace(verdict, challenger=str(version), best=str(best), changes=tuple(changes))


def _apply(
    registry: Registry,
    act: Act,
    version: Version,
    before: Version | None,
    best: Version | None,
    reason: str,
    verdict: dict[str, Any] | None = None,
) -> Event:
    """Record an event, tag the version with it (after a rollback, both versions) and, unless the version was refused,
    make it the champion.

    Moves each alias to the fine-tuned models, removes it from models that the version lacks, then moves the encoder's;
    `champion` after `best`.
    """
    event = Event(
        act=act,
        version=version.number,
        encoder=version.encoder,
        before=None if before is None else before.number,
        best=None if best is None else best.number,
        reason=" ".join(reason.split()),
        verdict=verdict,
    )
    client, encoder_model = registry.client, registry.encoder_model
    with registry.errors():
        content = json.dumps(dataclasses.asdict(event))
        client.set_registered_model_tag(encoder_model, f"{_EVENT}{time.time_ns():020}", content)
        tags: dict[int, str] = {event.version: act}
        if act == "rolled back":
            tags = {event.version: "restored"} | ({} if event.before is None else {event.before: act})
        for number, name in tags.items():
            tag = f"cloze.{name.replace(' ', '_')}"
            client.set_model_version_tag(encoder_model, str(number), tag, f"{event.when} {event.reason}")
    if act != "refused":
        registry.set_alias(BEST, best or version)
        registry.set_alias(CHAMPION, version)
    return event
