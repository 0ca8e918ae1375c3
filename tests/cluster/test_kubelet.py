"""The double's Job controller and kubelet do what Kubernetes documents: retries, policies, deadlines, evictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.cluster.docker import BASE, Engine, why_not
from tests.cluster.kubelet import Kubelet, Object
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.disruption, pytest.mark.skipif(bool(why_not()), reason=str(why_not()))]
Events = list[tuple[str, Object]]
WAIT = "echo ready; while :; do sleep 0.1; done"
SLEEP = f"trap 'exit 75' TERM; {WAIT}"


@pytest.fixture
def events() -> Events:
    return []


@pytest.fixture
def kubelet(engine: Engine, tmp_path: Path, events: Events) -> Iterator[Kubelet]:
    (tmp_path / "project").mkdir(mode=0o777)
    (tmp_path / "project").chmod(0o777)
    claims = {"project": tmp_path / "project"}

    def changed(event: str, content: Object) -> None:
        events.append((event, content))

    kubelet = Kubelet(engine, claims, changed, {"base": BASE}, backoff_seconds=0.2, lost_seconds=2)
    yield kubelet
    kubelet.close()
    for _, content in events:
        kubernetes_validate.validate(content, "1.34", strict=True)


def job(
    script: str, spec: Mapping[str, Any] = {}, pod: Mapping[str, Any] = {}, container: Mapping[str, Any] = {}
) -> Object:
    """A Job named `it` whose container runs a shell script."""
    one = {"name": "main", "image": "base", "command": ["sh", "-c", script], **container}
    template = {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [one], **pod}}
    return {"metadata": {"name": "it"}, "spec": {"template": template, **spec}}


def conditions(content: Object) -> dict[str, str]:
    """Reasons of the true conditions."""
    found = content["status"].get("conditions", [])
    return {one["type"]: one["reason"] for one in found if one["status"] == "True"}


def ended(kubelet: Kubelet, seconds: float = 30) -> Object:
    """The Job, after it has ended."""
    return wait_for(
        lambda: (it := kubelet.job("it")) and conditions(it).keys() & {"Complete", "Failed"} and it, seconds
    )


def running(kubelet: Kubelet, count: int = 1) -> list[Object]:
    """The Job's pods, when this many run and have set their traps."""

    def found() -> list[Object]:
        pods = kubelet.pods("it")
        alive = [pod for pod in pods if pod["status"]["phase"] == "Running" and not is_terminating(pod)]
        ready = [pod for pod in alive if "ready" in kubelet.logs(pod["metadata"]["name"])]
        return ready if len(ready) == count else []

    return wait_for(found)


def is_terminating(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def terminated(pod: Object) -> Object:
    """How the pod's container ended."""
    return pod["status"]["containerStatuses"][0]["state"]["terminated"]


def rule(action: str, *codes: int) -> Object:
    return {"action": action, "onExitCodes": {"operator": "In", "values": list(codes)}}


INDEXED = {"completionMode": "Indexed", "completions": 2, "parallelism": 2}
VOLUMES = {"volumes": [{"name": "project", "persistentVolumeClaim": {"claimName": "project"}}]}
MOUNTS = {"workingDir": "/work", "volumeMounts": [{"name": "project", "mountPath": "/work"}]}
DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def test_pods_of_an_indexed_job_reach_one_another(kubelet: Kubelet, events: Events) -> None:
    script = (
        "echo $JOB_COMPLETION_INDEX $(hostname) $NAME $0; "
        "until getent hosts it-0.meet && getent hosts it-1.meet.default.svc.cluster.local; do sleep 0.1; done; "
        "touch $JOB_COMPLETION_INDEX; until [ -e 0 ] && [ -e 1 ]; do sleep 0.1; done"
    )
    container = MOUNTS | {"args": ["$(NAME)-$(NONE)"], "env": [{"name": "NAME", "value": "x"}]}
    kubelet.create(job(script, INDEXED, VOLUMES | {"subdomain": "meet"}, container))
    done = ended(kubelet)
    assert conditions(done)["Complete"] == "CompletionsReached"
    status = done["status"]
    assert (status["succeeded"], status["completedIndexes"], status["active"]) == (2, "0,1", 0)
    assert status["startTime"] <= status["completionTime"]
    for index, pod in enumerate(sorted(kubelet.pods("it"), key=lambda one: one["metadata"]["name"])):
        assert kubelet.logs(pod["metadata"]["name"]).splitlines()[0] == f"{index} it-{index} x x-$(NONE)"
        assert pod["metadata"]["name"].startswith(f"it-{index}-") and pod["status"]["phase"] == "Succeeded"
        seen = [one["status"]["phase"] for _, one in events if one["metadata"]["uid"] == pod["metadata"]["uid"]]
        assert list(dict.fromkeys(seen)) == ["Pending", "Running", "Succeeded"]
    versions = [int(one["metadata"]["resourceVersion"]) for _, one in events]
    assert versions == sorted(set(versions))


def test_security_limits_and_volumes(kubelet: Kubelet, tmp_path: Path) -> None:
    script = (
        "set -e; id -u; id -G; touch /root-is-read-only 2>/dev/null || echo read-only; grep CapEff /proc/self/status;"
        "grep NoNewPrivs /proc/self/status; pwd; echo kept > here; echo x > /tmp/x; df -m /dev/shm | tail -1;"
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null || true"
    )
    pod = {
        "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000},
        "volumes": [
            {"name": "project", "persistentVolumeClaim": {"claimName": "project"}},
            {"name": "scratch", "emptyDir": {}},
            {"name": "shared", "emptyDir": {"medium": "Memory", "sizeLimit": "128Mi"}},
        ],
    }
    paths = {"project": "/work", "scratch": "/tmp", "shared": "/dev/shm"}
    container = {
        "workingDir": "/work",
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in paths.items()],
        "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}},
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    kubelet.create(job(script, {}, pod, container))
    ended(kubelet)
    [one] = kubelet.pods("it")
    lines = kubelet.logs(one["metadata"]["name"]).splitlines()
    assert lines[:3] == ["1000", "1000 2000", "read-only"] and lines[3].split()[1] == "0" * 16
    assert lines[4].split()[1] == "1" and lines[5] == "/work" and lines[6].split()[1] == "128"
    assert lines[7] == str(64 * 2**20)
    assert (tmp_path / "project" / "here").read_text() == "kept\n"


def test_retries_up_to_the_backoff_limit(kubelet: Kubelet) -> None:
    kubelet.create(job("exit 1", {"backoffLimit": 2}))
    done = ended(kubelet)
    assert conditions(done)["Failed"] == "BackoffLimitExceeded" and done["status"]["failed"] == 3
    assert [terminated(pod)["exitCode"] for pod in kubelet.pods("it")] == [1, 1, 1]


def test_policies(kubelet: Kubelet) -> None:
    # Interrupted twice, which does not count, then an error, which does, then success.
    script = "n=$(cat count 2>/dev/null || echo 0); echo $((n + 1)) > count; case $n in 0|1) exit 75;; 2) exit 1;; esac"
    policy = {"podFailurePolicy": {"rules": [rule("FailJob", 2), rule("Ignore", 75)]}, "backoffLimit": 1}
    kubelet.create(job(script, policy, VOLUMES, MOUNTS))
    done = ended(kubelet)
    assert "Complete" in conditions(done) and done["status"]["failed"] == 1
    assert [pod["status"]["phase"] for pod in kubelet.pods("it")] == ["Failed"] * 3 + ["Succeeded"]


def test_a_failed_job_stops_its_other_pods(kubelet: Kubelet) -> None:
    script = f'[ "$JOB_COMPLETION_INDEX" = 1 ] && sleep 1 && exit 2; {SLEEP}'
    kubelet.create(job(script, INDEXED | {"podFailurePolicy": {"rules": [rule("FailJob", 2)]}}))
    done = ended(kubelet)
    assert conditions(done) == {"FailureTarget": "PodFailurePolicy", "Failed": "PodFailurePolicy"}
    [message] = [one["message"] for one in done["status"]["conditions"] if one["type"] == "Failed"]
    assert message.startswith("Container main for pod default/it-1-") and "exit code 2 matching FailJob rule" in message
    assert done["status"]["failed"] == 2, "the stopped pod counts, too"
    wait_for(lambda: len(kubelet.pods("it")) == 1)  # the one that was stopped is deleted


def test_suspend_and_resume(kubelet: Kubelet) -> None:
    kubelet.create(job(SLEEP, INDEXED | {"suspend": True, "backoffLimit": 0}))
    wait_for(lambda: "Suspended" in conditions(kubelet.job("it")))
    assert not kubelet.pods("it") and "startTime" not in kubelet.job("it")["status"]
    kubelet.update("it", {"suspend": False})
    first = {pod["metadata"]["uid"] for pod in running(kubelet, 2)}
    kubelet.update("it", {"suspend": True})
    wait_for(lambda: not kubelet.pods("it"))
    assert not kubelet.job("it")["status"].get("failed"), "a suspended pod is no failure"
    kubelet.update("it", {"suspend": False})
    assert not first & {pod["metadata"]["uid"] for pod in running(kubelet, 2)}


def test_deadlines(kubelet: Kubelet) -> None:
    kubelet.create(job(SLEEP, {"activeDeadlineSeconds": 2}))
    assert conditions(ended(kubelet))["Failed"] == "DeadlineExceeded"
    kubelet.delete("it")
    wait_for(lambda: not kubelet.pods())
    kubelet.create(job(SLEEP, {"backoffLimit": 0}, {"activeDeadlineSeconds": 4}))
    running(kubelet)
    assert conditions(ended(kubelet))["Failed"] == "BackoffLimitExceeded"
    [pod] = kubelet.pods("it")
    assert pod["status"]["reason"] == "DeadlineExceeded" and terminated(pod)["exitCode"] == 75


def test_an_evicted_pod_is_replaced_after_it_has_ended(kubelet: Kubelet, events: Events) -> None:
    script = f"trap 'sleep 2; exit 1' TERM; {WAIT}"
    policy = INDEXED | {"backoffLimit": 0, "podFailurePolicy": {"rules": [DISRUPTED]}}
    kubelet.create(job(script, policy))
    victim = running(kubelet, 2)[0]["metadata"]["name"]
    kubelet.delete_pod(victim, "EvictionByEvictionAPI")
    wait_for(lambda: kubelet.job("it")["status"]["terminating"] == 1)
    assert len(kubelet.pods("it")) == 2, "its index is in use until it has ended"
    wait_for(lambda: victim not in [pod["metadata"]["name"] for pod in kubelet.pods("it")])
    last = [one for event, one in events if event == "DELETED"][-1]
    assert conditions(last)["DisruptionTarget"] == "EvictionByEvictionAPI" and terminated(last)["exitCode"] == 1
    running(kubelet, 2)
    assert not kubelet.job("it")["status"].get("failed")


def test_who_ignores_sigterm_is_killed_after_the_grace_period(kubelet: Kubelet, events: Events) -> None:
    script = f"trap '' TERM; {WAIT}"
    kubelet.create(job(script, {"backoffLimit": 0}, {"terminationGracePeriodSeconds": 1}))
    kubelet.delete_pod(running(kubelet)[0]["metadata"]["name"])
    assert conditions(ended(kubelet))["Failed"] == "BackoffLimitExceeded", "deleted by a person: it counts"
    [last] = [one for event, one in events if event == "DELETED"]
    assert terminated(last)["exitCode"] == 137 and "DisruptionTarget" not in conditions(last)


def test_a_lost_pod(kubelet: Kubelet) -> None:
    kubelet.create(job(SLEEP, {"backoffLimit": 0, "podFailurePolicy": {"rules": [DISRUPTED]}}))
    [pod] = running(kubelet)
    kubelet.lose(pod["metadata"]["name"])
    [silent] = kubelet.pods("it")
    assert silent["status"]["phase"] == "Running" and "Ready" not in conditions(silent), "nobody knows yet"
    wait_for(lambda: [one["metadata"]["uid"] for one in kubelet.pods("it")] != [pod["metadata"]["uid"]])
    running(kubelet)
    assert not kubelet.job("it")["status"].get("failed")


def test_too_little_memory(kubelet: Kubelet) -> None:
    container = {
        "command": ["python3", "-c", "b = bytearray(200 * 2**20)"],
        "resources": {"limits": {"memory": "64Mi"}},
    }
    kubelet.create(job("", {"backoffLimit": 0}, {}, container))
    assert conditions(ended(kubelet))["Failed"] == "BackoffLimitExceeded"
    [pod] = kubelet.pods("it")
    assert (terminated(pod)["exitCode"], terminated(pod)["reason"]) == (137, "OOMKilled")


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
def test_deletion(kubelet: Kubelet, events: Events, propagation: str) -> None:
    kubelet.create(job(SLEEP, INDEXED))
    running(kubelet, 2)
    kubelet.delete("it", propagation)
    assert (kubelet.job("it") is None) == (propagation == "Background")
    wait_for(lambda: not kubelet.pods())
    wait_for(lambda: kubelet.job("it") is None)
    deleted = [one["kind"] for event, one in events if event == "DELETED"]
    assert deleted == (["Job", "Pod", "Pod"] if propagation == "Background" else ["Pod", "Pod", "Job"])


def test_an_image_that_does_not_exist(kubelet: Kubelet) -> None:
    kubelet.create(job("", {}, {}, {"image": "cloze-none:test"}))
    wait_for(lambda: "containerStatuses" in kubelet.pods("it")[0]["status"] if kubelet.pods("it") else False)
    [pod] = kubelet.pods("it")
    waiting = pod["status"]["containerStatuses"][0]["state"]["waiting"]
    assert pod["status"]["phase"] == "Pending" and waiting["message"] == "No such image: cloze-none:test"


def test_what_it_does_not_have_is_refused(kubelet: Kubelet) -> None:
    for wrong in (
        job("", {"podFailurePolicy": {"rules": [{"action": "FailIndex"}]}}),
        job("", {}, {"restartPolicy": "OnFailure"}),
        job("", {}, {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "none"}}]}),
        job("", {}, {}, {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {}}}]}),
    ):
        with pytest.raises(ValueError, match="it: "):
            kubelet.create(wrong)
    kubelet.create(job("exit 0"))
    with pytest.raises(ValueError, match="already exists"):
        kubelet.create(job("exit 0"))
