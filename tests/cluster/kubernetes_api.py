"""A double of Kubernetes' API server: kmock's emulator over HTTP, with strict schemas, one role, and outages.

No current control plane can be had from the package indexes. This one keeps objects and answers as Kubernetes does for
what a run needs: create with 409, get, delete in the foreground, and pods by label. What a job's pods do is up to the
controller that is given (tests.cluster.kubelet runs them with Docker), or to a test that sets the status.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

import attrs
import kmock
import kubernetes_validate
import yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

from tests.infra.manifests import KUBERNETES, documents

Object = dict[str, Any]
Answer = TypeVar("Answer")
NAMESPACE = "cloze"
JOBS, SERVICES, PODS = (
    kmock.resource("batch", "v1", "jobs"),
    kmock.resource("", "v1", "services"),
    kmock.resource("", "v1", "pods"),
)
TRAIN_JOBS = kmock.resource("trainer.kubeflow.org", "v1alpha1", "trainjobs")
RUNTIMES = kmock.resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes")
_VERBS = {"fetch": "get", "list": "list", "watch": "watch", "create": "create", "update": "patch", "delete": "delete"}


class Controller(Protocol):
    """Runs the pods of jobs. It calls `KubernetesApi.set_status` and `KubernetesApi.set_pods`."""

    def created(self, job: Object) -> None: ...

    def deleted(self, job: Object) -> None:
        """End the pods of a job; return when they have ended."""
        ...


@attrs.define(kw_only=True)
class _Emulator(kmock.KubernetesEmulator):
    api: KubernetesApi

    async def _handle(self, request: kmock.Request) -> Any:
        if self.api.is_down:
            request._raw_request.transport.abort()
        if request.resource is None:
            return await super()._handle(request)
        try:
            self.api.admit(request)
        except kmock.KubernetesError as refusal:
            return await self._render_error(refusal)
        answer = await super()._handle(request)
        if request.resource in (JOBS, TRAIN_JOBS) and answer.status < 300:
            self.api.after(request)
        return answer

    async def _serve_list(self, request: kmock.Request) -> Any:
        wanted = dict(part.split("=", 1) for part in request.params.get("labelSelector", "").split(",") if part)
        items = [pod for pod in self.api.pods if wanted.items() <= pod["metadata"]["labels"].items()]
        return {"metadata": {"resourceVersion": "1"}, "items": items}


class KubernetesApi:
    """The API server on 127.0.0.1, in a thread.

    Args:
        folder: for the kubeconfig file.
        has_runtime: whether the namespace has the TrainingRuntime `cloze`.
    """

    def __init__(self, folder: Path, controller: Controller | None = None, has_runtime: bool = False) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self.controller = controller
        self.is_down = False
        self.pods: list[Object] = []
        self.used: set[tuple[str, str, str]] = set()
        """Group, resource and verb of the requests."""
        roles = [one for one in documents((KUBERNETES / "base" / "accounts.yaml").read_text()) if one["kind"] == "Role"]
        (role,) = [one for one in roles if one["metadata"]["name"] == "job"]
        self.granted = {
            (group, name, verb)
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for name in rule["resources"]
            for verb in rule["verbs"]
        }
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._emulator = _Emulator(api=self)
        for resource in (JOBS, SERVICES, PODS, TRAIN_JOBS, RUNTIMES):
            self._emulator.resources[resource] = {}
        if has_runtime:
            self._emulator.objects[RUNTIMES, NAMESPACE, "cloze"] = {"metadata": {"name": "cloze"}}

    def __enter__(self) -> KubernetesApi:
        self._thread.start()
        self._server = kmock.Server(self._emulator)
        self._run(self._emulator.__aenter__())
        self._run(self._server.__aenter__())
        cluster = {"name": "double", "cluster": {"server": str(self._server.url).rstrip("/")}}
        context = {"name": "double", "context": {"cluster": "double", "user": "me", "namespace": NAMESPACE}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "double", "clusters": [cluster]}
        config |= {"contexts": [context], "users": [{"name": "me", "user": {}}]}
        self.kubeconfig.write_text(yaml.safe_dump(config))
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._server.__aexit__(None, None, None))
        self._run(self._emulator.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def objects(self, resource: Any) -> list[Object]:
        """Objects of a kind that exist now."""
        found = self._emulator.objects.items()
        return [one.last.raw for (kind, _, _), one in found if kind == resource and not one.deleted]

    def set_status(self, name: str, resource: Any = JOBS, **status: Any) -> None:
        """Set the status of a job."""
        self._emulator.objects[resource, NAMESPACE, name].patch({"status": status})

    def set_pods(self, job: str, pods: list[Object]) -> None:
        """Replace the pods of a job. Each has `metadata` with labels, and `status`."""
        others = [one for one in self.pods if one["metadata"]["labels"].get("batch.kubernetes.io/job-name") != job]
        self.pods = others + pods

    def admit(self, request: Any) -> None:
        """Check the rights of a request, and the schema of a new object."""
        verb = _VERBS[request.action.value.lower()]
        key = (request.resource.group, request.resource.plural, verb)
        self.used.add(key)
        if key not in self.granted:
            message = f"{key[1]}.{key[0]} is forbidden: the account cannot {verb} it"
            raise kmock.KubernetesError(status=403, message=message)
        if verb == "create":
            body = request.data
            try:
                if request.resource == TRAIN_JOBS:
                    model = TrainerV1alpha1TrainJob.from_dict(body)
                    assert model is not None and model.to_dict() == body, "fields that TrainJobs do not have"
                else:
                    kubernetes_validate.validate(body, "1.34", strict=True)
            except Exception as error:
                message = f"{body.get('kind')} is invalid: {error}"
                raise kmock.KubernetesError(status=422, message=message) from None
            body["metadata"].setdefault("uid", uuid.uuid4().hex)
        if verb == "delete" and request.params.get("propagationPolicy") == "Foreground":
            place = (request.resource, NAMESPACE, request.name)
            if place in self._emulator.objects and not self._emulator.objects[place].deleted:
                self._emulator.objects[place].patch({"metadata": {"finalizers": ["foregroundDeletion"]}})

    def after(self, request: Any) -> None:
        """Tell the controller what was created or deleted; a job is gone when its pods have ended."""
        if request.action is kmock.action.CREATE:
            if self.controller is not None:
                self._in_background(self.controller.created, request.data)
        elif request.action is kmock.action.DELETE:
            self._in_background(self._finish, request.resource, request.name)

    def _finish(self, resource: Any, name: str) -> None:
        found = self._emulator.objects[resource, NAMESPACE, name]
        if self.controller is not None:
            self.controller.deleted(found.last.raw)
        found.delete()
        for key, one in list(self._emulator.objects.items()):  # as the garbage collector does
            owners = [] if one.deleted else one.last.raw["metadata"].get("ownerReferences", [])
            if any(owner["name"] == name for owner in owners):
                self._emulator.objects[key].delete()

    def _in_background(self, action: Any, *arguments: Any) -> None:
        threading.Thread(target=action, args=arguments, daemon=True).start()

    def _run(self, action: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(30)
