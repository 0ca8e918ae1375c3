"""What Prefect's server does by itself when a run fails, hangs or does not start.

A run that dies without a word (kill -9, a machine that goes away) stops its heartbeat and is marked as crashed. Failed,
late and long runs are told to the address in CLOZE_NOTIFY_URL (a webhook that takes {"text": …}, as Slack's and
Mattermost's do); without one, they show in Prefect's event feed.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

NOTIFY_VARIABLE = "CLOZE_NOTIFY_URL"
BLOCK = "cloze-notify"
SILENT_SECONDS = 180  # six heartbeats
LONG_HOURS = 72


def make_automations(tag: str) -> list[str]:
    """Make the automations, or bring them up to date; their names."""
    from prefect.client.orchestration import get_client

    wanted = automations(tag, _notification())
    with get_client(sync_client=True) as client:
        for one in wanted:
            there = client.read_automations_by_name(one.name)
            if there:
                client.update_automation(there[0].id, one)
            else:
                client.create_automation(one)
    return [one.name for one in wanted]


def automations(tag: str, notify: Any) -> list[Any]:
    """The automations for runs with this tag; `notify` is done for those that someone has to see."""
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    runs = {"prefect.resource.id": "prefect.flow-run.*"}
    ours = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{tag}"}
    each = {"prefect.resource.id"}
    ends = {f"prefect.flow-run.{state}" for state in ("Completed", "Skipped", "Failed", "Cancelled", "Crashed")}
    common: dict[str, Any] = {"match": runs, "match_related": ours, "for_each": each}

    def reactive(states: set[str]) -> EventTrigger:
        expect = {f"prefect.flow-run.{state}" for state in states}
        return EventTrigger(expect=expect, posture=Posture.Reactive, threshold=1, **common)

    beat = "prefect.flow-run.heartbeat"
    silent = EventTrigger(
        after={beat},
        expect={beat, *ends},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=SILENT_SECONDS),
        **common,
    )
    long = EventTrigger(
        after={"prefect.flow-run.Running"},
        expect=ends,
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(hours=LONG_HOURS),
        **common,
    )
    crashed = ChangeFlowRunState(
        name="Crashed", state=StateType.CRASHED, message=f"no sign of life for {SILENT_SECONDS} s", force=False
    )
    return [
        AutomationCore(
            name="cloze: failed",
            description="A run failed or crashed.",
            trigger=reactive({"Failed", "Crashed"}),
            actions=[notify],
        ),
        AutomationCore(
            name="cloze: stuck",
            description="A run's process is gone: the run is marked as crashed, which frees its slots.",
            trigger=silent,
            actions=[crashed],
        ),
        AutomationCore(
            name="cloze: long",
            description=f"A run has not ended after {LONG_HOURS} hours.",
            trigger=long,
            actions=[notify],
        ),
        AutomationCore(
            name="cloze: late",
            description="A run was due and no worker took it: see `cloze status`.",
            trigger=reactive({"Late"}),
            actions=[notify],
        ),
    ]


def _notification() -> Any:
    """A message to the webhook of the environment; without one, nothing but the event itself."""
    from prefect.events.actions import DoNothing, SendNotification

    url = os.environ.get(NOTIFY_VARIABLE)
    if not url:
        return DoNothing()
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.types import SecretDict

    block = CustomWebhookNotificationBlock(
        name="cloze",
        url="{{address}}",
        secrets=SecretDict({"address": url}),  # whoever has a webhook's address can write to it
        json_data={"text": "{{subject}}: {{body}}"},
        headers=None,
        cookies=None,
    )
    block_id: Any = block.save(BLOCK, overwrite=True)
    return SendNotification(
        block_document_id=block_id,
        subject="cloze",
        body="{{ flow.name }} / {{ flow_run.name }}: {{ flow_run.state.name }} {{ flow_run.state.message }}",
    )
