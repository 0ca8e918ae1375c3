"""Prefect automations for runs that fail, hang or do not start.

A run whose process is killed, or whose machine goes down, sends no more heartbeats and is marked as crashed. Failed,
late and long runs are reported to the webhook in CLOZE_NOTIFY_URL, which receives {"text": …} as Slack and Mattermost
expect; without a webhook, they only appear in Prefect's event feed.
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
    """Create or update the automations, and return their names."""
    from prefect.client.orchestration import get_client

    defined = automations(tag, _notification())
    with get_client(sync_client=True) as client:
        for one in defined:
            existing = client.read_automations_by_name(one.name)
            if existing:
                client.update_automation(existing[0].id, one)
            else:
                client.create_automation(one)
    return [one.name for one in defined]


def automations(tag: str, notify: Any) -> list[Any]:
    """Return the automations for runs with this tag.

    Args:
        tag: The tag of the flow runs.
        notify: The action for runs that need attention.
    """
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    beat = "prefect.flow-run.heartbeat"
    ends = {f"prefect.flow-run.{state}" for state in ("Completed", "Skipped", "Failed", "Cancelled", "Crashed")}
    common: dict[str, Any] = {
        "match": {"prefect.resource.id": "prefect.flow-run.*"},
        "match_related": {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{tag}"},
        "for_each": {"prefect.resource.id"},
        "threshold": 1,
    }

    def on_event(*states: str) -> EventTrigger:
        expect = {f"prefect.flow-run.{state}" for state in states}
        return EventTrigger(expect=expect, posture=Posture.Reactive, **common)

    def on_absence(expect: set[str], after: str, within: timedelta) -> EventTrigger:
        return EventTrigger(after={after}, expect=expect, within=within, posture=Posture.Proactive, **common)

    crash = ChangeFlowRunState(
        name="Crashed", state=StateType.CRASHED, message=f"no heartbeat for {SILENT_SECONDS} s", force=False
    )
    return [
        AutomationCore(
            name="cloze: failed",
            description="A run failed or crashed.",
            trigger=on_event("Failed", "Crashed"),
            actions=[notify],
        ),
        AutomationCore(
            name="cloze: stuck",
            description="The process of a run is gone; the run is marked as crashed, which frees its slots.",
            trigger=on_absence({beat, *ends}, beat, timedelta(seconds=SILENT_SECONDS)),
            actions=[crash],
        ),
        AutomationCore(
            name="cloze: long",
            description=f"A run has been active for more than {LONG_HOURS} hours.",
            trigger=on_absence(ends, "prefect.flow-run.Running", timedelta(hours=LONG_HOURS)),
            actions=[notify],
        ),
        AutomationCore(
            name="cloze: late",
            description="No worker has started a scheduled run; check `cloze status`.",
            trigger=on_event("Late"),
            actions=[notify],
        ),
    ]


def _notification() -> Any:
    """Return the action that sends a message to the webhook, or no action if none is set."""
    from prefect.events.actions import DoNothing, SendNotification

    url = os.environ.get(NOTIFY_VARIABLE)
    if not url:
        return DoNothing()
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.types import SecretDict

    block = CustomWebhookNotificationBlock(
        name="cloze",
        url="{{address}}",
        secrets=SecretDict({"address": url}),  # anyone who knows the URL can post to it
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
