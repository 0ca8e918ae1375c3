"""The Job controller and the kubelet of a Kubernetes API double: pods of a batch/v1 Job run with Docker."""

from __future__ import annotations

import contextlib
import copy
import re
import secrets
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from docker import DockerClient
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.types import Mount

from tests.cluster.docker import NETWORK, Engine

Object = dict[str, Any]
_TRACKED = "batch.kubernetes.io/job-tracking"  # finalizer of pods that the Job has not counted yet
_FOREGROUND = "foregroundDeletion"
_INDEX = "batch.kubernetes.io/job-completion-index"
_UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12} | {f"{u}i": 1024.0**n for n, u in enumerate("KMGT", 1)}
_FIELD = re.compile(r"metadata\.(name|namespace|uid|labels|annotations)(?:\['(.+)'\])?")
_ENDED = ("Succeeded", "Failed")


@dataclass
class _Pod:
    content: Object
    scratch: Path
    """Directory of its emptyDir volumes."""
    container: Container | None = None
    kill_at: float | None = None
    """When SIGKILL follows SIGTERM."""
    lost_at: float | None = None
    """When its node stopped reporting."""

    @property
    def name(self) -> str:
        return str(self.content["metadata"]["name"])

    @property
    def phase(self) -> str:
        return str(self.content["status"]["phase"])

    @property
    def is_terminating(self) -> bool:
        return "deletionTimestamp" in self.content["metadata"]

    @property
    def is_counted(self) -> bool:
        return _TRACKED not in self.content["metadata"]["finalizers"]

    @property
    def index(self) -> int | None:
        found = self.content["metadata"]["annotations"].get(_INDEX)
        return None if found is None else int(found)


class Kubelet:
    """Runs the pods of Jobs as containers, and keeps the objects of Jobs and pods as Kubernetes 1.31 does.

    Pods have one container and the restart policy Never. Requests, extended resources (GPUs), probes, affinities and
    service accounts are not looked at; a Job's subdomain works without a Service.

    Args:
        engine: Docker's engine; the image of a pod must exist there.
        claims: the directory of each PersistentVolumeClaim.
        changed: called with ADDED, MODIFIED or DELETED and a copy of the Job or the pod after each change, in order and
            from several threads, one at a time. It must not wait for another method of this class.
        images: what Docker calls an image of a manifest.
        backoff_seconds: delay before a failed pod is replaced; it doubles with each failure.
        lost_seconds: time after which Kubernetes gives up a pod of a node that does not report.
    """

    def __init__(
        self,
        engine: Engine,
        claims: Mapping[str, Path],
        changed: Callable[[str, Object], None] = lambda _event, _content: None,
        images: Mapping[str, str] = {},
        backoff_seconds: float = 10,
        lost_seconds: float = 300,
    ) -> None:
        self._client = DockerClient(base_url=engine.address, timeout=60)
        self._claims, self._images, self._changed = claims, images, changed
        self._backoff_seconds, self._lost_seconds = backoff_seconds, lost_seconds
        self._jobs: dict[str, Object] = {}
        self._pods: dict[str, _Pod] = {}
        self._failures: dict[str, tuple[int, float]] = {}  # failed pods in a row, and when the last one ended, per Job
        self._version = 0
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    # What the API server asks

    def create(self, job: Object) -> Object:
        """Create a Job, and return the object with the API server's defaults.

        Raises:
            ValueError: a Job with this name exists, or it needs something that this class does not have.
        """
        job = copy.deepcopy(job)
        name, spec = job["metadata"]["name"], job["spec"]
        pod = spec["template"]["spec"]
        if name in self._jobs:
            raise ValueError(f'jobs.batch "{name}" already exists')
        if len(pod["containers"]) != 1 or pod.get("initContainers") or pod.get("restartPolicy") != "Never":
            raise ValueError(f"{name}: a pod must have one container and the restart policy Never")
        for volume in pod.get("volumes", []):
            if (
                "emptyDir" not in volume
                and volume.get("persistentVolumeClaim", {}).get("claimName") not in self._claims
            ):
                raise ValueError(f"{name}: volume {volume['name']} is neither an emptyDir nor a known claim")
        for variable in pod["containers"][0].get("env", []):
            if "value" not in variable and not _FIELD.fullmatch(_path(variable)):
                raise ValueError(f"{name}: env {variable['name']}: only values and fields of the metadata work")
        for rule in spec.get("podFailurePolicy", {}).get("rules", []):
            if rule["action"] not in ("FailJob", "Ignore", "Count"):
                raise ValueError(f"{name}: podFailurePolicy: the action {rule['action']} does not work")
        defaults = {"completions": 1, "parallelism": 1, "backoffLimit": 6, "suspend": False}
        replaced = "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed"
        defaults |= {"completionMode": "NonIndexed", "podReplacementPolicy": replaced}
        job["spec"] = defaults | spec
        job = {"apiVersion": "batch/v1", "kind": "Job"} | job
        job["metadata"] = {"namespace": "default"} | job["metadata"]
        job["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": _now()}
        job["status"] = {}
        with self._lock:
            self._jobs[name] = job
            self._emit("ADDED", job)
            return copy.deepcopy(job)

    def update(self, name: str, spec: Object) -> Object:
        """Merge fields into a Job's spec, such as {"suspend": True}, and return the object."""
        with self._lock:
            job = self._jobs[name]
            job["spec"] |= spec
            self._emit("MODIFIED", job)
            return copy.deepcopy(job)

    def delete(self, name: str, propagation: str = "Background") -> None:
        """Delete a Job and its pods. With Foreground, the Job stays until its pods are gone."""
        with self._lock:
            job = self._jobs[name]
            if propagation == "Foreground":
                job["metadata"] |= {"deletionTimestamp": _now(), "finalizers": [_FOREGROUND]}
                self._emit("MODIFIED", job)
            else:
                del self._jobs[name]
                self._emit("DELETED", job)
            for pod in self._pods_of(job):
                self._untrack(pod)
                self._terminate(pod)

    def delete_pod(self, name: str, reason: str = "") -> None:
        """Delete a pod: SIGTERM, the grace period, SIGKILL.

        Args:
            reason: of the condition DisruptionTarget, such as EvictionByEvictionAPI, PreemptionByScheduler or
                DeletionByTaintManager; empty if a person deletes it.
        """
        with self._lock:
            pod = self._pods[name]
            if reason:
                _set_condition(pod.content, "DisruptionTarget", "True", reason)
            self._terminate(pod)

    def lose(self, name: str) -> None:
        """Let a pod's node vanish: its container is killed at once, and Kubernetes notices it after `lost_seconds`."""
        with self._lock:
            pod = self._pods[name]
            pod.lost_at = time.monotonic()
            with contextlib.suppress(APIError):
                pod.container.kill() if pod.container else None
            for condition in ("Ready", "ContainersReady"):
                _set_condition(pod.content, condition, "False", "NodeNotReady")
            self._emit("MODIFIED", pod.content)

    def job(self, name: str) -> Object | None:
        """Return a copy of a Job; None if there is none."""
        with self._working():
            return copy.deepcopy(self._jobs.get(name))

    def jobs(self) -> list[Object]:
        """Return copies of all Jobs."""
        with self._working():
            return copy.deepcopy(list(self._jobs.values()))

    def pods(self, job: str | None = None) -> list[Object]:
        """Return copies of a Job's pods, or of all pods, oldest first."""
        with self._working():
            found = [pod.content for pod in self._pods.values()]
            return copy.deepcopy([one for one in found if job in (None, one["metadata"]["labels"]["job-name"])])

    def logs(self, name: str) -> str:
        """Return what a pod's container has printed.

        Raises:
            KeyError: there is no such pod.
        """
        container = self._pods[name].container
        return container.logs().decode(errors="replace") if container else ""

    def container(self, name: str) -> Container:
        """Return a pod's container, for tests that do something to it."""
        container = self._pods[name].container
        assert container is not None, f"{name} has not started"
        return container

    def close(self) -> None:
        """Stop everything, and remove all containers and scratch directories."""
        self._stop.set()
        self._thread.join()
        for pod in self._pods.values():
            self._remove(pod)
        self._client.close()

    # The loop

    def _work(self) -> None:
        try:
            while not self._stop.wait(0.1):
                with self._lock:
                    for pod in list(self._pods.values()):
                        self._sync_pod(pod)
                    for job in list(self._jobs.values()):
                        self._sync_job(job)
        except BaseException as error:
            self._fault = error
            raise

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        if self._fault is not None:
            raise RuntimeError("the controller's thread has ended") from self._fault
        with self._lock:
            yield

    def _emit(self, event: str, content: Object) -> None:
        self._version += 1
        content["metadata"]["resourceVersion"] = str(self._version)
        self._changed(event, copy.deepcopy(content))

    @contextlib.contextmanager
    def _emitting(self, content: Object) -> Iterator[None]:
        """Report the object if the block changes it."""
        before = copy.deepcopy(content)
        yield
        if content != before:
            self._emit("MODIFIED", content)

    def _pods_of(self, job: Object) -> list[_Pod]:
        uid = job["metadata"]["uid"]
        return [pod for pod in self._pods.values() if pod.content["metadata"]["ownerReferences"][0]["uid"] == uid]

    # The Job controller

    def _sync_job(self, job: Object) -> None:
        pods = self._pods_of(job)
        if "deletionTimestamp" in job["metadata"]:
            if not pods:
                del self._jobs[job["metadata"]["name"]]
                self._emit("DELETED", job)
            return
        if any(_condition(job, kind) for kind in ("Complete", "Failed")):
            return
        with self._emitting(job):
            failure = self._count(job, pods) or self._past_deadline(job)
            if failure and not _condition(job, "FailureTarget"):
                _set_condition(job, "FailureTarget", "True", *failure)
            active = [pod for pod in pods if pod.phase not in _ENDED and not pod.is_terminating]
            if failure := _condition(job, "FailureTarget"):
                self._end(job, "Failed", failure["reason"], failure["message"])
            elif job["status"].get("succeeded", 0) >= job["spec"]["completions"]:
                _set_condition(job, "SuccessCriteriaMet", "True", "CompletionsReached")
                self._end(job, "Complete", "CompletionsReached", "Reached expected number of succeeded pods")
            elif job["spec"]["suspend"]:
                self._suspend(job, active)
            else:
                self._create_pods(job, pods)
            self._set_numbers(job)

    def _count(self, job: Object, pods: list[_Pod]) -> tuple[str, str] | None:
        """Count pods that ended; return why the Job fails, if it does."""
        status, failure = job["status"], None
        for pod in pods:
            if pod.is_counted or pod.phase not in _ENDED:
                continue
            self._untrack(pod)
            name = job["metadata"]["name"]
            if pod.phase == "Succeeded":
                done = {int(index) for index in status.get("completedIndexes", "").split(",") if index}
                if pod.index is None:
                    status["succeeded"] = status.get("succeeded", 0) + 1
                else:
                    status["succeeded"] = len(done | {pod.index})
                    status["completedIndexes"] = ",".join(map(str, sorted(done | {pod.index})))
                self._failures.pop(name, None)
                continue
            action, message = _action(job["spec"].get("podFailurePolicy", {}), pod.content)
            if action == "FailJob":
                failure = failure or ("PodFailurePolicy", message)
            if action != "Ignore":
                status["failed"] = status.get("failed", 0) + 1
            self._failures[name] = (self._failures.get(name, (0, 0.0))[0] + 1, time.monotonic())
        if not failure and status.get("failed", 0) > job["spec"]["backoffLimit"]:
            failure = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        return failure

    @staticmethod
    def _past_deadline(job: Object) -> tuple[str, str] | None:
        limit = job["spec"].get("activeDeadlineSeconds")
        if limit is None or _seconds_since(job["status"].get("startTime")) < limit:
            return None
        return ("DeadlineExceeded", "Job was active longer than specified deadline")

    def _end(self, job: Object, condition: str, reason: str, message: str) -> None:
        """End the Job as soon as all its pods have ended."""
        alive = [pod for pod in self._pods_of(job) if pod.phase not in _ENDED]
        for pod in alive:
            self._terminate(pod)
        if not alive:
            _set_condition(job, condition, "True", reason, message)
            if condition == "Complete":
                job["status"]["completionTime"] = _now()

    def _suspend(self, job: Object, active: list[_Pod]) -> None:
        for pod in active:
            self._untrack(pod)  # pods that end because the Job is suspended do not count
            self._terminate(pod)
        if not _condition(job, "Suspended"):
            _set_condition(job, "Suspended", "True", "JobSuspended", "Job suspended")
            job["status"].pop("startTime", None)

    def _create_pods(self, job: Object, pods: list[_Pod]) -> None:
        spec, status, name = job["spec"], job["status"], job["metadata"]["name"]
        if _condition(job, "Suspended"):
            _set_condition(job, "Suspended", "False", "JobResumed", "Job resumed")
        status.setdefault("startTime", _now())
        failures, last = self._failures.get(name, (0, 0.0))
        if failures and time.monotonic() - last < min(self._backoff_seconds * 2 ** (failures - 1), 600):
            return
        waits_for_end = spec["podReplacementPolicy"] == "Failed"
        in_use = [pod for pod in pods if pod.phase not in _ENDED and (waits_for_end or not pod.is_terminating)]
        num_wanted = min(spec["parallelism"], spec["completions"] - status.get("succeeded", 0)) - len(in_use)
        if spec["completionMode"] == "Indexed":
            taken = {pod.index for pod in in_use} | {int(i) for i in status.get("completedIndexes", "").split(",") if i}
            free = [index for index in range(spec["completions"]) if index not in taken]
            for index in free[: max(0, num_wanted)]:
                self._create_pod(job, index)
        else:
            for _ in range(num_wanted):
                self._create_pod(job, None)

    def _set_numbers(self, job: Object) -> None:
        pods = [pod for pod in self._pods_of(job) if pod.phase not in _ENDED]
        active = [pod for pod in pods if not pod.is_terminating]
        ready = [pod for pod in active if _condition(pod.content, "Ready")]
        job["status"] |= {"active": len(active), "ready": len(ready), "terminating": len(pods) - len(active)}

    def _create_pod(self, job: Object, index: int | None) -> None:
        meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
        middle = meta["name"] if index is None else f"{meta['name']}-{index}"
        labels = {"job-name": meta["name"], "controller-uid": meta["uid"]}
        labels |= {f"batch.kubernetes.io/{key}": value for key, value in labels.items()}
        annotations = dict(template.get("metadata", {}).get("annotations", {}))
        spec = template["spec"]
        if index is not None:
            labels[_INDEX] = annotations[_INDEX] = str(index)
            spec.setdefault("hostname", middle)
            env = spec["containers"][0].setdefault("env", [])
            field = {"fieldPath": f"metadata.annotations['{_INDEX}']"}
            env.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": field}})
        spec = {"terminationGracePeriodSeconds": 30, "nodeName": f"node-{index or 0}"} | spec
        content = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{middle}-{secrets.token_hex(3)[:5]}",
                "namespace": meta["namespace"],
                "uid": str(uuid.uuid4()),
                "creationTimestamp": _now(),
                "labels": dict(template.get("metadata", {}).get("labels", {})) | labels,
                "annotations": annotations,
                "finalizers": [_TRACKED],
                "ownerReferences": [
                    {
                        "apiVersion": "batch/v1",
                        "kind": "Job",
                        "name": meta["name"],
                        "uid": meta["uid"],
                        "controller": True,
                    }
                ],
            },
            "spec": spec,
            "status": {"phase": "Pending"},
        }
        _set_condition(content, "PodScheduled", "True")
        pod = _Pod(content, Path(tempfile.mkdtemp(prefix="pod-")))
        self._pods[pod.name] = pod
        self._emit("ADDED", content)

    def _untrack(self, pod: _Pod) -> None:
        if not pod.is_counted:
            pod.content["metadata"]["finalizers"].remove(_TRACKED)
            self._emit("MODIFIED", pod.content)

    # The kubelet

    def _sync_pod(self, pod: _Pod) -> None:
        if pod.phase in _ENDED:
            if (pod.is_terminating and pod.is_counted) or self._is_orphan(pod):
                self._remove(pod)
                del self._pods[pod.name]
                self._emit("DELETED", pod.content)
        elif pod.lost_at is not None:
            if time.monotonic() - pod.lost_at >= self._lost_seconds:
                _set_condition(pod.content, "DisruptionTarget", "True", "DeletionByPodGC")
                pod.content["status"]["phase"] = "Failed"
                pod.content["metadata"].setdefault("deletionTimestamp", _now())
                self._emit("MODIFIED", pod.content)
        elif pod.container is None:
            with self._emitting(pod.content):
                self._start(pod)
        else:
            with self._emitting(pod.content):
                self._watch(pod, pod.container)

    def _is_orphan(self, pod: _Pod) -> bool:
        owner = pod.content["metadata"]["ownerReferences"][0]
        return self._jobs.get(owner["name"], {}).get("metadata", {}).get("uid") != owner["uid"]

    def _start(self, pod: _Pod) -> None:
        if pod.is_terminating:
            pod.content["status"] |= {"phase": "Failed"}
            return
        status = pod.content["status"]
        try:
            pod.container = self._client.containers.create(**self._options(pod))
            pod.container.start()
        except (APIError, NotFound) as error:
            waiting = {"reason": "CreateContainerError", "message": error.explanation}
            status["containerStatuses"] = [_container_status(pod, {"waiting": waiting})]
            if pod.container is not None:
                pod.container.remove(force=True)
                pod.container = None
            return
        pod.container.reload()
        status |= {"phase": "Running", "startTime": _now()}
        status["podIP"] = pod.container.attrs["NetworkSettings"]["Networks"][NETWORK]["IPAddress"]
        state = {"running": {"startedAt": _now()}}
        status["containerStatuses"] = [_container_status(pod, state)]
        for condition in ("Initialized", "ContainersReady", "Ready"):
            _set_condition(pod.content, condition, "True")

    def _watch(self, pod: _Pod, container: Container) -> None:
        container.reload()
        state, status = container.attrs["State"], pod.content["status"]
        limit = pod.content["spec"].get("activeDeadlineSeconds")
        if limit is not None and "reason" not in status and _seconds_since(status["startTime"]) >= limit:
            message = "Pod was active on the node longer than the specified deadline"
            status |= {"reason": "DeadlineExceeded", "message": message}
            self._stop_container(pod)
        if state["Status"] in ("created", "running"):
            if pod.kill_at is not None and time.monotonic() >= pod.kill_at:
                with contextlib.suppress(APIError):
                    container.kill()
            return
        code = int(state["ExitCode"])
        reason = "OOMKilled" if state["OOMKilled"] and code else "Error" if code else "Completed"
        times = {"startedAt": state["StartedAt"], "finishedAt": state["FinishedAt"]}
        ended = {"terminated": {"exitCode": code, "reason": reason, **times}}
        status["containerStatuses"] = [_container_status(pod, ended)]
        status["phase"] = "Failed" if code or "reason" in status else "Succeeded"
        for condition in ("ContainersReady", "Ready"):
            _set_condition(pod.content, condition, "False", f"Pod{status['phase']}")

    def _terminate(self, pod: _Pod) -> None:
        """Delete a pod: its container gets SIGTERM, and SIGKILL after the grace period."""
        if not pod.is_terminating:
            grace = pod.content["spec"]["terminationGracePeriodSeconds"]
            pod.content["metadata"] |= {"deletionTimestamp": _now(), "deletionGracePeriodSeconds": grace}
            self._emit("MODIFIED", pod.content)
            self._stop_container(pod)

    @staticmethod
    def _stop_container(pod: _Pod) -> None:
        if pod.kill_at is None and pod.container is not None:
            pod.kill_at = time.monotonic() + pod.content["spec"]["terminationGracePeriodSeconds"]
            with contextlib.suppress(APIError):  # it has just ended
                pod.container.kill("SIGTERM")

    @staticmethod
    def _remove(pod: _Pod) -> None:
        if pod.container is not None:
            pod.container.remove(force=True)
        shutil.rmtree(pod.scratch, ignore_errors=True)

    def _options(self, pod: _Pod) -> dict[str, Any]:
        """Return how Docker creates a pod's container."""
        spec, metadata = pod.content["spec"], pod.content["metadata"]
        container = spec["containers"][0]
        security = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
        capabilities = security.get("capabilities", {})
        limits = container.get("resources", {}).get("limits", {})
        env = {
            one["name"]: one["value"] if "value" in one else _field(metadata, one) for one in container.get("env", [])
        }
        user = ":".join(str(security[key]) for key in ("runAsUser", "runAsGroup") if key in security)
        names = [spec["hostname"]] if "hostname" in spec else []
        if names and "subdomain" in spec:
            names = [f"{names[0]}.{spec['subdomain']}"]
            names.append(f"{names[0]}.{metadata['namespace']}.svc.cluster.local")
        memory = int(_quantity(limits["memory"])) if "memory" in limits else None
        network = self._client.api.create_endpoint_config(aliases=names)
        return {
            "image": self._images.get(container["image"], container["image"]),
            "name": pod.name,
            "hostname": spec.get("hostname", pod.name)[:63],
            "entrypoint": [_expand(word, env) for word in container["command"]] if "command" in container else None,
            "command": [_expand(word, env) for word in container.get("args", [])] or None,
            "environment": {name: _expand(value, env) for name, value in env.items()},
            "working_dir": container.get("workingDir"),
            "user": user or None,
            "group_add": [str(security["fsGroup"])] if "fsGroup" in security else None,
            "read_only": bool(security.get("readOnlyRootFilesystem")),
            "cap_drop": capabilities.get("drop"),
            "cap_add": capabilities.get("add"),
            "security_opt": None if security.get("allowPrivilegeEscalation", True) else ["no-new-privileges"],
            "mem_limit": memory,
            "memswap_limit": memory,
            "nano_cpus": int(_quantity(limits["cpu"]) * 1e9) if "cpu" in limits else None,
            "mounts": list(self._mounts(pod, container)),
            "network": NETWORK,
            "networking_config": {NETWORK: network},
            "healthcheck": {"test": ["NONE"]},  # of the image; Kubernetes does not run it
        }

    def _mounts(self, pod: _Pod, container: Object) -> Iterator[Mount]:
        volumes = {one["name"]: one for one in pod.content["spec"].get("volumes", [])}
        group = pod.content["spec"].get("securityContext", {}).get("fsGroup")
        for mount in container.get("volumeMounts", []):
            volume, target = volumes[mount["name"]], mount["mountPath"]
            if (claim := volume.get("persistentVolumeClaim")) is not None:
                source = self._claims[claim["claimName"]] / mount.get("subPath", "")
            elif volume["emptyDir"].get("medium") == "Memory":
                size = int(_quantity(volume["emptyDir"].get("sizeLimit", "64Mi")))
                yield Mount(target, None, "tmpfs", tmpfs_size=size, tmpfs_mode=0o1777)
                continue
            else:
                source = pod.scratch / mount["name"]
                source.mkdir(exist_ok=True)
                source.chmod(0o2777 if group else 0o777)
                if group:
                    shutil.chown(source, group=group)
            yield Mount(target, str(source), "bind", read_only=bool(mount.get("readOnly")))


def _container_status(pod: _Pod, state: Object) -> Object:
    container = pod.content["spec"]["containers"][0]
    status = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0, "state": state}
    return status | {
        "ready": "running" in state,
        "containerID": f"docker://{pod.container.id if pod.container else ''}",
    }


def _condition(content: Object, kind: str) -> Object | None:
    """Return the condition of this type if it is true."""
    found = (one for one in content["status"].get("conditions", []) if (one["type"], one["status"]) == (kind, "True"))
    return next(found, None)


def _set_condition(content: Object, kind: str, status: str, reason: str = "", message: str = "") -> None:
    conditions = content["status"].setdefault("conditions", [])
    now = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": _now()}
    same = [one for one in conditions if one["type"] == kind]
    if not same:
        conditions.append(now)
    elif (same[0]["status"], same[0]["reason"]) != (status, reason):
        same[0] |= now


def _action(policy: Object, pod: Object) -> tuple[str, str]:
    """Return the action of the first matching rule of a podFailurePolicy, or Count, and the message for FailJob."""
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for position, rule in enumerate(policy.get("rules", [])):
        action, said = rule["action"], f"matching {rule['action']} rule at index {position}"
        codes = rule.get("onExitCodes")
        for status in pod["status"].get("containerStatuses", []) if codes else []:
            code = status["state"].get("terminated", {}).get("exitCode", 0)
            is_meant = codes.get("containerName", status["name"]) == status["name"] and code
            if is_meant and (code in codes["values"]) == (codes["operator"] == "In"):
                return action, f"Container {status['name']} for pod {name} failed with exit code {code} {said}"
        for pattern in rule.get("onPodConditions", []):
            found = [one for one in pod["status"]["conditions"] if one["type"] == pattern["type"]]
            if found and found[0]["status"] == pattern.get("status", "True"):
                return action, f"Pod {name} has condition {pattern['type']} {said}"
    return "Count", ""


def _path(variable: Object) -> str:
    return str(variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", ""))


def _field(metadata: Object, variable: Object) -> str:
    """Value of a variable that refers to a field of the pod's metadata."""
    field, key = _FIELD.fullmatch(_path(variable)).groups()
    return str(metadata[field].get(key, "") if key else metadata[field])


def _expand(text: str, env: Mapping[str, str]) -> str:
    """Replace $(NAME) by a variable, as in command, args and env; $$ is a dollar sign."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]), text)


def _quantity(text: object) -> float:
    """Value of a quantity such as 500m or 2Gi, in cores or bytes."""
    number, unit = re.fullmatch(r"([\d.]+)([A-Za-z]*)", str(text)).groups()
    return float(number) * (_UNITS[unit] if unit else 1)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds_since(moment: str | None) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds() if moment else 0.0
