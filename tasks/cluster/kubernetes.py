"""Kubernetes: create a job, find it again, and delete it.

A job is a TrainJob of Kubeflow Trainer if the namespace has the TrainingRuntime `cloze` (infra/kubernetes), and an
Indexed Job with a headless service otherwise. Its name has a hash of the digest, the run directory and the claim, and
an annotation has the digest and the directory's path, by which it is found from another process. The state is polled:
there is no watch to lose, and the role of a run needs few verbs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml

from model.common.errors import UserError, missing_package
from tasks.cluster.cluster_job import ClusterJob, JobKey, LauncherUnavailable, QueuedJob, address_towards
from tasks.cluster.gang import GIVEN_UP
from tasks.cluster.node_supervisor import PORT, RESUMABLE, USER_ERROR
from tasks.params.cluster import ClusterSettings, JobResources

Object = dict[str, Any]
Answer = TypeVar("Answer")
RUNTIME = "cloze"
"""Name of the TrainingRuntime."""
NODE = "node"
"""Name of the container, of the TrainingRuntime's replicated job, of the service account and of the network policy."""
_COMMENT = "cloze/job"  # annotation
_QUEUE = "kueue.x-k8s.io/queue-name"
_SECONDS_TO_ANSWER = 30
_SECONDS_TO_SAVE = 300
_SECONDS_KEPT = 7 * 86_400  # of a finished job
_SLUG_LENGTH = 24  # of the run's name in the job's, which with the suffixes of pods may have 63 characters
_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONFLICT, _NOT_FOUND, _BUSY = 409, 404, (429, 500, 502, 503, 504)


class KubernetesLauncher:
    """Creates jobs in one namespace, with the rights of the pod's service account or of the current context."""

    title = "Kubernetes"

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._has_runtime: bool | None = None
        self._checked_service = False

    def problem(self) -> str:
        """Explain why this machine cannot create jobs; empty if it can."""
        if (_TOKEN / "token").is_file() or any(path.is_file() for path in _kubeconfigs()):
            return ""
        return f"this machine has neither a service account's token nor {_kubeconfigs()[0]}"

    def manifest(self, job: ClusterJob) -> str:
        """Return the objects that `submit` creates, as YAML."""

        async def describe(api: _Api) -> str:
            kind = await self._kind_of(api, job)
            body = kind.body(self._name(job.key), job, self._settings.volume)
            return yaml.safe_dump_all([body, *kind.services(body)], sort_keys=False, width=100)

        return self._call(describe)

    def submit(self, job: ClusterJob) -> str:
        """Create a job, and return its name. A finished job with this name is replaced.

        Raises:
            UserError: the API refuses the job, or the project is not on its volume.
            LauncherUnavailable: the API does not answer.
        """
        _, _, mount = self._settings.volume.partition(":")
        if not job.folder.is_relative_to(mount):
            raise UserError(f"cluster.volume: {job.folder} is not below {mount}, where the nodes mount the project")

        async def create(api: _Api) -> str:
            kind = await self._kind_of(api, job)
            name = self._name(job.key)
            found = await api.get(kind, name)
            if found is not None and kind.has_ended(found):
                await api.delete(kind, name)
                while await api.get(kind, name) is not None:
                    await asyncio.sleep(0.5)
                found = None
            found = found or await api.create(kind, kind.body(name, job, self._settings.volume))
            if _comment(found) != job.key.comment:
                raise UserError(f"Kubernetes: the {kind.title} {name} belongs to another project")
            for service in kind.services(found):
                await api.create_service(service)
            return name

        return self._call(create)

    def find(self, key: JobKey) -> QueuedJob | None:
        """Return the job with this key, unless it has ended.

        Raises:
            LauncherUnavailable: the API does not answer.
        """

        async def look(api: _Api) -> QueuedJob | None:
            name = self._name(key)
            for kind in await self._kinds(api):
                found = await api.get(kind, name)
                if found is not None and _comment(found) == key.comment and not kind.has_ended(found):
                    break
            else:
                return None
            if not self._checked_service:  # the process that created the job may have been killed before it did this
                for service in kind.services(found):
                    await api.create_service(service)
                self._checked_service = True
            if kind.is_running(found):
                return QueuedJob(name, is_running=True)
            return QueuedJob(name, is_running=False, reason=await api.waits_for(kind.pod_label, name))

        return self._call(look)

    def local_address(self, resources: JobResources) -> str:
        """Return the address of this pod.

        Raises:
            UserError: this process runs outside of the cluster, where nodes cannot reach it.
        """
        host = os.environ.get("KUBERNETES_SERVICE_HOST")
        if host is None:
            raise UserError("cluster: workers connect to this process, so run `cloze` in a pod of the cluster")
        return address_towards(host)

    def cancel(self, job_id: str) -> None:
        """Delete a job: its pods get SIGTERM, save and end, and then the job is gone.

        Raises:
            LauncherUnavailable: the API does not answer.
        """

        async def delete(api: _Api) -> None:
            for kind in await self._kinds(api):
                await api.delete(kind, job_id)

        self._call(delete)

    def _name(self, key: JobKey) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", key.name.lower())[:_SLUG_LENGTH].strip("-")
        digest = hashlib.sha256(f"{key.comment} {self._settings.volume}".encode()).hexdigest()[:10]
        return f"cloze-{slug}-{digest}"

    async def _kind_of(self, api: _Api, job: ClusterJob) -> _Kind:
        return _Job() if job.is_workers else (await self._kinds(api))[0]

    async def _kinds(self, api: _Api) -> list[_Kind]:
        if self._has_runtime is None:
            self._has_runtime = await api.has_runtime()
        return [_TrainJob(), _Job()] if self._has_runtime else [_Job()]

    def _call(self, action: Callable[[_Api], Awaitable[Answer]]) -> Answer:
        try:
            import aiohttp
            from kubernetes_asyncio.client import ApiException
            from kubernetes_asyncio.config import ConfigException
        except ImportError as error:
            raise missing_package(error, "cluster.launcher: kubernetes") from None

        async def run() -> Answer:
            async with _Api(self._settings.namespace) as api:
                return await asyncio.wait_for(action(api), _SECONDS_TO_ANSWER)

        try:
            return asyncio.run(run())
        except ConfigException as error:
            raise UserError(f"Kubernetes: {_one_line(error)}") from None
        except ApiException as error:
            text = f"Kubernetes: {_message(error)}"
            raise (LauncherUnavailable(text) if error.status in _BUSY else UserError(text)) from None
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise LauncherUnavailable(f"Kubernetes' API does not answer: {_one_line(error)}") from None


class _Kind(Protocol):
    """A kind of object that runs a job's pods."""

    title: str
    path: tuple[str, str, str]
    """Group, version and plural of the API."""
    pod_label: str
    """Label of the pods that has the object's name."""

    def body(self, name: str, job: ClusterJob, volume: str) -> Object: ...

    def services(self, body: Object) -> list[Object]:
        """Return what has to exist next to the object."""
        ...

    def has_ended(self, found: Object) -> bool: ...

    def is_running(self, found: Object) -> bool: ...


class _Job:
    """A Job whose pods are the nodes. A lost pod is replaced. Pods whose ranks work together are Indexed; if one is
    lost, the ranks of all others end and start again, too."""

    title = "Job"
    path = ("batch", "v1", "jobs")
    pod_label = "batch.kubernetes.io/job-name"

    def body(self, name: str, job: ClusterJob, volume: str) -> Object:
        wanted = job.resources
        container = {
            **container_template(),
            "image": wanted.image,
            "args": _arguments(job),
            "workingDir": str(job.folder),
            "resources": _resources(job),
        }
        container["volumeMounts"] = [*container["volumeMounts"], _mount(volume)]
        pod = pod_template()
        pod |= {"containers": [container], "volumes": [*pod["volumes"], _claim(volume)]}
        if not job.is_workers:
            pod["subdomain"] = name
            container["env"] = [*container["env"], *_environment(f"{name}-0.{name}")]
        labels = {**NODE_LABELS, "cloze/encoder": _label(job.key.name)}
        spec = job_template()
        if job.is_workers:
            spec["completionMode"] = "NonIndexed"
        spec |= {
            "completions": wanted.nodes,
            "parallelism": wanted.nodes,
            "backoffLimit": 2**31 - 1,  # it counts pods; the first node counts how often all ranks were started
            "podReplacementPolicy": "Failed",  # never two pods with the same index
            "ttlSecondsAfterFinished": _SECONDS_KEPT,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
        if wanted.time_minutes:
            spec["activeDeadlineSeconds"] = 60 * wanted.time_minutes
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(job, name), "spec": spec}

    def services(self, body: Object) -> list[Object]:
        """Return the headless service that gives the pods their names. It is deleted with the job."""
        if body["spec"]["completionMode"] != "Indexed":
            return []
        name = body["metadata"]["name"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": body["metadata"].get("uid", "")}
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # ranks connect before any pod is ready
            "selector": {self.pod_label: name},
            "ports": [{"name": "ranks", "port": PORT}],
        }
        metadata = {"name": name, "ownerReferences": [owner]}
        return [{"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}]

    def has_ended(self, found: Object) -> bool:
        return _is_true(found, "Complete", "Failed")

    def is_running(self, found: Object) -> bool:
        return bool(found.get("status", {}).get("ready"))


class _TrainJob:
    """A TrainJob of Kubeflow Trainer 2.2 or later. Its JobSet starts all pods again if one fails."""

    title = "TrainJob"
    path = ("trainer.kubeflow.org", "v1alpha1", "trainjobs")
    pod_label = "jobset.sigs.k8s.io/jobset-name"

    def body(self, name: str, job: ClusterJob, volume: str) -> Object:
        wanted = job.resources
        pod = {"volumes": [_claim(volume)], "containers": [{"name": NODE, "volumeMounts": [_mount(volume)]}]}
        replicated = {"name": NODE, "template": {"spec": {"template": {"spec": pod}}}}
        trainer: Object = {
            "image": wanted.image,
            "args": _arguments(job),
            "env": _environment(f"{name}-{NODE}-0-0.{name}"),
            "numNodes": wanted.nodes,
            "resourcesPerNode": _resources(job),
        }
        spec: Object = {
            "runtimeRef": {"apiGroup": self.path[0], "kind": "TrainingRuntime", "name": RUNTIME},
            "trainer": trainer,
            "runtimePatches": [
                {
                    "manager": "cloze",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
                }
            ],
        }
        if wanted.time_minutes:
            spec["activeDeadlineSeconds"] = 60 * wanted.time_minutes
        api_version = "/".join(self.path[:2])
        return {"apiVersion": api_version, "kind": self.title, "metadata": _metadata(job, name), "spec": spec}

    def services(self, body: Object) -> list[Object]:
        return []  # the JobSet has its own

    def has_ended(self, found: Object) -> bool:
        return _is_true(found, "Complete", "Failed")

    def is_running(self, found: Object) -> bool:
        return any(one.get("ready") for one in found.get("status", {}).get("jobsStatus") or [])


NODE_LABELS = {"app.kubernetes.io/name": NODE, "app.kubernetes.io/part-of": "cloze"}
"""Labels of the pods of a job, by which the network policy finds them."""


def job_template() -> Object:
    """Return what every Job of nodes has: Indexed pods, and what their exit codes mean."""
    codes = {"containerName": NODE, "operator": "In"}
    rules = [
        {"action": "FailJob", "onExitCodes": {**codes, "values": [USER_ERROR, GIVEN_UP]}},
        {"action": "Ignore", "onExitCodes": {**codes, "values": [RESUMABLE]}},  # interrupted: start it again
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},  # drained, preempted
    ]
    return {"completionMode": "Indexed", "podFailurePolicy": {"rules": rules}}


def pod_template() -> Object:
    """Return what every node's pod has, without its container. It meets the standard `restricted`."""
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    return {
        "restartPolicy": "Never",
        "serviceAccountName": NODE,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": _SECONDS_TO_SAVE,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            # A pod of a lost node is replaced after this time instead of five minutes.
            {"key": "node.kubernetes.io/unreachable", **lost},
            {"key": "node.kubernetes.io/not-ready", **lost},
        ],
        "topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": NODE_LABELS}}],
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "shared", "emptyDir": {"medium": "Memory"}},  # for NCCL
        ],
    }


def container_template() -> Object:
    """Return what every node's container has, without image, arguments and resources."""
    scratch = {"HOME": "", "TORCHINDUCTOR_CACHE_DIR": "/inductor"}
    return {
        "name": NODE,
        "env": [{"name": name, "value": f"/tmp{path}"} for name, path in scratch.items()],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}, {"name": "shared", "mountPath": "/dev/shm"}],
    }


def _metadata(job: ClusterJob, name: str) -> Object:
    labels = {**NODE_LABELS, "cloze/encoder": _label(job.key.name)}
    if job.resources.queue:
        labels[_QUEUE] = job.resources.queue
    return {"name": name, "labels": labels, "annotations": {_COMMENT: job.key.comment}}


def _arguments(job: ClusterJob) -> list[str]:
    python = ["python", "-P", "-m"]
    if job.is_workers:
        return [*python, "tasks.cluster.dask_worker", *job.arguments]
    return [*python, "tasks.cluster.kubernetes_node", *job.arguments, str(job.folder)]


def _environment(first_node: str) -> list[Object]:
    values = {"MASTER_ADDR": first_node, "MASTER_PORT": str(PORT)}
    return [{"name": key, "value": value} for key, value in values.items()]


def _resources(job: ClusterJob) -> Object:
    wanted = job.resources
    amounts = {"cpu": wanted.cpus, "memory": wanted.memory, "nvidia.com/gpu": job.num_gpus}
    given = {name: str(amount) for name, amount in amounts.items() if amount}
    return {"requests": given, "limits": given} if given else {}


def _claim(volume: str) -> Object:
    return {"name": "project", "persistentVolumeClaim": {"claimName": volume.partition(":")[0]}}


def _mount(volume: str) -> Object:
    return {"name": "project", "mountPath": volume.partition(":")[2]}


def _label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63].strip("-._")


def _comment(found: Object) -> str:
    return str(found["metadata"].get("annotations", {}).get(_COMMENT, ""))


def _is_true(found: Object, *types: str) -> bool:
    conditions = found.get("status", {}).get("conditions") or []
    return any(one["type"] in types and one["status"] == "True" for one in conditions)


class _Api(contextlib.AbstractAsyncContextManager["_Api"]):
    """The part of Kubernetes' API that jobs need. Objects are dictionaries, as in YAML."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    async def __aenter__(self) -> _Api:
        from kubernetes_asyncio import client, config

        settings = client.Configuration()
        if (_TOKEN / "token").is_file():
            config.load_incluster_config(client_configuration=settings)
            context = (_TOKEN / "namespace").read_text(encoding="utf-8").strip()
        else:
            paths = os.pathsep.join(map(str, _kubeconfigs()))  # the package reads KUBECONFIG when it is imported
            await config.load_kube_config(paths, client_configuration=settings)
            _, active = config.list_kube_config_contexts(paths)
            context = active["context"].get("namespace", "default") if active else "default"
        self._namespace = self._namespace or context
        self._client = client.ApiClient(settings)
        self._objects = client.CustomObjectsApi(self._client)  # of any group, so that all are dictionaries
        self._core = client.CoreV1Api(self._client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def get(self, kind: _Kind, name: str) -> Object | None:
        return await self._or_none(self._objects.get_namespaced_custom_object, *self._place(kind.path), name)

    async def create(self, kind: _Kind, body: Object) -> Object:
        """Create an object, and return it, or the one that has its name."""
        made = await self._or_none(self._objects.create_namespaced_custom_object, *self._place(kind.path), body)
        if made is None:
            made = await self.get(kind, body["metadata"]["name"])
        if made is None:
            raise LauncherUnavailable(f"Kubernetes: the {kind.title} of another process was just deleted")
        return made

    async def create_service(self, body: Object) -> None:
        """Create a service, unless one with its name exists."""
        await self._or_none(self._core.create_namespaced_service, self._namespace, body)

    async def delete(self, kind: _Kind, name: str) -> None:
        """Delete an object; it is gone when all its pods are. One that is gone already is ignored."""
        arguments = (*self._place(kind.path), name)
        delete = self._objects.delete_namespaced_custom_object
        await self._or_none(delete, *arguments, propagation_policy="Foreground")

    async def has_runtime(self) -> bool:
        """Check whether the namespace has the TrainingRuntime; without Kubeflow Trainer it has none."""
        place = self._place(("trainer.kubeflow.org", "v1alpha1", "trainingruntimes"))
        return await self._or_none(self._objects.get_namespaced_custom_object, *place, RUNTIME) is not None

    async def waits_for(self, label: str, name: str) -> str:
        """Return why a job's pods do not run yet; empty if no pod says why."""
        pods = await self._core.list_namespaced_pod(self._namespace, label_selector=f"{label}={name}")
        for pod in pods.items:
            for one in pod.status.container_statuses or []:
                if one.state.waiting is not None and one.state.waiting.message:
                    return f"{one.state.waiting.reason}: {_one_line(one.state.waiting.message)}"
            for condition in pod.status.conditions or []:
                if condition.type == "PodScheduled" and condition.status == "False":
                    return _one_line(condition.message or condition.reason)
        return "" if pods.items else "no pods yet"

    def _place(self, path: tuple[str, str, str]) -> tuple[str, str, str, str]:
        group, version, plural = path
        return group, version, self._namespace, plural

    async def _or_none(self, action: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
        from kubernetes_asyncio.client import ApiException

        try:
            return await action(*arguments, **options)
        except ApiException as error:
            if error.status in (_NOT_FOUND, _CONFLICT):
                return None
            raise


def _kubeconfigs() -> list[Path]:
    named = os.environ.get("KUBECONFIG", "")
    return [Path(path) for path in named.split(os.pathsep) if path] or [Path.home() / ".kube" / "config"]


def _message(error: Any) -> str:
    """Return the API's own message, or the status."""
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        return _one_line(yaml.safe_load(error.body)["message"])
    return f"{error.status} {error.reason}"


def _one_line(text: object) -> str:
    return " ".join(str(text).split()) or type(text).__name__
