"""The Prefect deployments: the flow, default parameters, schedule and work pool of each; and the automations.

prefect.yaml describes the same deployments for `prefect deploy`. `python -m flows.deployments` regenerates it, and a
test checks that it is up to date.

A run whose process is killed, or whose machine goes down, sends no more heartbeats and is marked as crashed. Failed,
late and long runs are reported to the webhook in CLOZE_NOTIFY_URL, which receives {"text": …} as Slack and Mattermost
expect; without a webhook, they only appear in Prefect's event feed.
"""

from __future__ import annotations

import asyncio
import pkgutil
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy, StateType
from prefect.deployments.runner import EntrypointType, RunnerDeployment
from prefect.events.actions import ChangeFlowRunState, DoNothing, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from prefect.schedules import Cron
from prefect.types import SecretDict
from prefect.workers.process import ProcessWorker

from model.common.errors import UserError
from tasks.jobs.resources import gpus
from tasks.params.forms import base_files, form_values
from tasks.params.root import load_params
from tasks.project.project import Project
from tasks.project.yaml_files import write_yaml
from tasks.registry.retrain import Outcome
from tasks.servers.server_plan import ANY_RUN, DEVICES, POOL, webhook
from tasks.tracking.tracking import STAGES

TAG = "cloze"
BLOCK = "cloze-notify"
SILENT_SECONDS = 180  # six heartbeats
LONG_HOURS = 72
_CANCEL_NEW = ConcurrencyLimitStrategy.CANCEL_NEW
_ENGINE = "-P -m prefect.engine"


@dataclass(frozen=True)
class Deployment:
    """A deployment of a flow, with the flow's name."""

    flow: str
    entrypoint: str
    """Import path of the flow's function."""
    tags: tuple[str, ...]
    max_runs: int = 1
    """Maximum number of concurrent runs."""
    collision_strategy: ConcurrencyLimitStrategy = ConcurrencyLimitStrategy.ENQUEUE
    """Strategy for further runs: ENQUEUE makes them wait, CANCEL_NEW cancels them."""
    choices: Callable[[Project], dict[str, list[str]]] = field(default=lambda _project: {})
    """Values that the form offers for a parameter."""
    shows_params: bool = False
    """Whether the parameter `params`, when it is unfolded in the form, starts with the values in params.yaml."""
    scheduled: bool = False


def _bases(project: Project) -> dict[str, list[str]]:
    return {"base": base_files(project)}


def _tasks(project: Project) -> dict[str, list[str]]:
    return {"task": load_params(project.params_path).finetune.names}


TABLE = (
    Deployment("pipeline", "flows.worker_flows.pipeline", ("pipeline",)),
    Deployment(
        "experiment",
        "flows.worker_flows.experiment",
        ("pipeline",),
        max_runs=2,
        choices=_bases,
        shows_params=True,
    ),
    Deployment("fine-tune-task", "flows.worker_flows.fine_tune_task", ("finetune",), max_runs=2, choices=_tasks),
    Deployment("retrain", "flows.worker_flows.retrain", ("retrain",), collision_strategy=_CANCEL_NEW, scheduled=True),
    *(Deployment(stage, f"flows.worker_flows.{stage}_stage", ("stage",)) for stage in STAGES),
)


def deploy(project: Project, pool: str, overlay: str = "process", image: str = "", cron: str | None = None) -> int:
    """Create or update the work pool, the limit, the automations and the deployments.

    Args:
        project: The project whose parameters fill the forms, and where the runs of a process pool work.
        pool: Name of the work pool. A process pool is created if it is missing; others must exist.
        overlay: Type of the pool: process or kubernetes. The latter needs a container image.
        cron: Schedule of retraining: a cron expression, 'never', or None to use the one in params.yaml.

    Returns the number of deployments.

    Raises:
        UserError: an image is missing or not needed, the schedule is invalid, or the pool is missing or has another
            type.
    """
    variables = job_variables(project, overlay, image)
    with get_client(sync_client=True) as client:
        _make_pool(client, pool, overlay)
        client.upsert_global_concurrency_limit_by_name(DEVICES, max(1, len(gpus())))  # without it, runs are not limited
        schedule = schedule_of(project, cron)
        for one in TABLE:
            deployment = _runner_deployment(project, one, variables, schedule if one.scheduled else None)
            deployment.apply(work_pool_name=pool)
        _delete_outdated(client, pool)
        for automation in automations(_notification()):
            existing = client.read_automations_by_name(automation.name)
            if not existing:
                client.create_automation(automation)
            elif _content(existing[0]) != _content(automation):  # an update forgets which heartbeats have come
                client.update_automation(existing[0].id, automation)
    return len(TABLE)


def job_variables(project: Project, overlay: str, image: str = "") -> dict[str, Any]:
    """Return the job variables with which a work pool of this type starts a run."""
    if overlay == "process":
        if image:
            raise UserError("--image needs --overlay kubernetes")
        return {"working_dir": str(project.root), "command": f"{shlex.quote(sys.executable)} {_ENGINE}"}
    if not image:
        raise UserError(f"--overlay {overlay} needs --image")
    command = f"python {_ENGINE}"
    return {"image": image, "command": command, "image_pull_policy": "IfNotPresent", "finished_job_ttl": 3600}


def prefect_yaml() -> dict[str, Any]:
    """Return the content of prefect.yaml, for `prefect deploy --all` with a process pool."""
    pools = {
        "process": {"name": POOL, "job_variables": {"working_dir": ".", "command": f"python {_ENGINE}"}},
        "kubernetes": {"name": "cloze-kubernetes", "job_variables": {"image": "{{ $CLOZE_IMAGE }}"}},
    }
    listed = []
    for one in TABLE:
        entry: dict[str, Any] = {
            "name": one.flow,
            "entrypoint": one.entrypoint,
            "tags": [TAG, *one.tags],
            "concurrency_limit": {"limit": one.max_runs, "collision_strategy": one.collision_strategy.value},
            "work_pool": pools["process"],
        }
        if one.scheduled:
            entry["schedules"] = [{"cron": "0 3 * * 0", "timezone": "UTC", "active": True}]
        listed.append(entry)
    return {"name": "cloze", "pull": [], "definitions": {"work_pools": pools}, "deployments": listed}


def _runner_deployment(project: Project, one: Deployment, variables: dict[str, Any], schedule: Any) -> Any:
    function = pkgutil.resolve_name(one.entrypoint)
    limit = ConcurrencyLimitConfig(limit=one.max_runs, collision_strategy=one.collision_strategy)
    deployment = RunnerDeployment.from_flow(
        function,
        one.flow,
        schedules=[schedule] if schedule else [],
        concurrency_limit=limit,
        description=(function.description or "").partition("\n\nArgs:")[0],
        tags=[TAG, *one.tags],
        job_variables=variables,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    deployment.entrypoint = one.entrypoint
    schema = deployment._parameter_openapi_schema
    if one.shows_params:
        tree = schema.definitions["StageParams"]
        tree["title"] = "All parameters"
        for section, values in form_values(project).items():  # Prefect's form cannot unfold a default of the whole tree
            tree["properties"][section]["default"] = values
    fields = schema.properties
    for name, shown in fields.items():  # Prefect uses the bare name
        shown["title"] = name.replace("_", " ").capitalize()
    for name, values in one.choices(project).items():
        fields[name]["enum"] = values
    return deployment


def schedule_of(project: Project, cron: str | None) -> Any:
    """Return the schedule of retraining, by default that of params.yaml; None without one.

    Raises:
        UserError: it is invalid.
    """
    settings = load_params(project.params_path).retrain
    chosen = settings.cron if cron is None else cron
    if chosen in ("", "never"):
        return None
    try:
        return Cron(chosen, timezone=settings.timezone)
    except ValueError as error:
        raise UserError(
            f"cron: invalid schedule '{chosen}': {' '.join(str(error).split())[:200]}; expected five fields, such as"
            ' "0 3 * * *" (daily at 3:00), or never'
        ) from None


def next_retraining(project: Project, cron: str | None) -> datetime | None:
    """Return the next time on the schedule of `deploy`; None without a schedule."""
    from prefect.server.schemas.schedules import CronSchedule  # takes a second to import

    schedule = schedule_of(project, cron)
    if schedule is None:
        return None
    return asyncio.run(CronSchedule(cron=schedule.cron, timezone=schedule.timezone).get_dates(1))[0]


def _make_pool(client: SyncPrefectClient, name: str, overlay: str) -> None:
    try:
        found = client.read_work_pool(name)
    except ObjectNotFound:
        if overlay != "process":
            raise UserError(
                f"no work pool '{name}'; create it with `prefect work-pool create --type {overlay}`"
            ) from None
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))
        return
    if found.type != overlay:
        raise UserError(f"work pool '{name}' has type {found.type}, not {overlay}; choose another pool or overlay")


def _delete_outdated(client: SyncPrefectClient, pool: str) -> None:
    """Delete the deployments of an earlier version in this pool, whose flows no longer exist."""
    ours = {(one.flow, one.flow) for one in TABLE}
    for found in client.read_deployments(deployment_filter=DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))):
        name = (client.read_flow(found.flow_id).name, found.name)
        if found.work_pool_name == pool and name not in ours:
            client.delete_deployment(found.id)


def automations(notify: Any) -> list[Any]:
    """Return the automations for the flow runs of Cloze; `notify` is the action for runs that need attention."""

    def automation(
        name: str, description: str, action: Any, expect: Sequence[str], tag: str = TAG, **absence: Any
    ) -> AutomationCore:
        """React to any event in `expect` of runs with `tag`; with `after` and `within`, to the absence of all."""
        trigger = EventTrigger(
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{tag}"},
            for_each={"prefect.resource.id"},
            threshold=1,
            expect={f"prefect.flow-run.{event}" for event in expect},
            posture=Posture.Proactive if absence else Posture.Reactive,
            **absence,
        )
        return AutomationCore(name=f"cloze: {name}", description=description, trigger=trigger, actions=[action])

    # A retraining ends in a state that is named for its outcome.
    ends = ("Completed", *(one.capitalize() for one in get_args(Outcome)), "Cancelled", "Crashed")
    crash = ChangeFlowRunState(
        name="Crashed", state=StateType.CRASHED, message=f"no heartbeat for {SILENT_SECONDS} s", force=False
    )
    return [
        automation("failed", "A run failed or crashed.", notify, ("Failed", "Crashed")),
        automation(
            "stuck",
            "The process of a run is gone; the run is marked as crashed, which frees its slots.",
            crash,
            ("heartbeat", *ends),
            tag=ANY_RUN,
            after={"prefect.flow-run.heartbeat"},
            within=timedelta(seconds=SILENT_SECONDS),
        ),
        automation(
            "long",
            f"A run has been active for more than {LONG_HOURS} hours.",
            notify,
            ends,
            after={"prefect.flow-run.Running"},
            within=timedelta(hours=LONG_HOURS),
        ),
        automation("late", "No worker has started a scheduled run; check `cloze status`.", notify, ("Late",)),
    ]


def _content(automation: AutomationCore) -> dict[str, Any]:
    """What an automation does, without the ids that the server adds."""
    content = automation.model_dump(mode="json", include=set(AutomationCore.model_fields))
    trigger = content["trigger"]
    trigger.pop("id", None)
    trigger |= {name: sorted(trigger[name]) for name in ("expect", "after", "for_each")}  # sets have no order
    return content


def _notification() -> Any:
    url = webhook()
    if not url:
        return DoNothing()
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    block = CustomWebhookNotificationBlock(
        name="cloze",
        url="{{address}}",
        secrets=SecretDict({"address": url}),  # the URL is the only credential of the webhook
        json_data={"text": "{{subject}}: {{body}}"},  # Prefect does not follow redirects
        headers=None,
        cookies=None,
    )
    block_id: Any = block.save(BLOCK, overwrite=True)
    return SendNotification(
        block_document_id=block_id,
        subject="cloze",
        body="{{ flow.name }} / {{ flow_run.name }}: {{ flow_run.state.name }} {{ flow_run.state.message }}",
    )


def main() -> None:
    """Regenerate prefect.yaml."""
    path = Path(__file__).resolve().parents[1] / "prefect.yaml"
    write_yaml(path, prefect_yaml())
    header = "# Generated by `python -m flows.deployments`; do not edit.\n"
    path.write_text(header + path.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main()
