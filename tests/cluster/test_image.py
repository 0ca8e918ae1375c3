"""`cloze pretrain` on the double of Kubernetes: both nodes run in the image with Docker, and recover from kills."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from model.common.files import read_json, write_json
from tests.cluster.docker import IMAGE, Engine, why_not
from tests.cluster.kubelet import Kubelet, Object
from tests.cluster.kubernetes_api import JOBS, KubernetesApi
from tests.flows.clone import Clone, new_clone
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.disruption,
    pytest.mark.timeout(1800),  # the first test builds the image
    pytest.mark.skipif(bool(why_not()), reason=str(why_not())),
]
NUM_STEPS = 300
LONGER = 20_000
MACHINE = {"accelerator": "cpu", "precision": "fp32", "num_threads": 1, "compile": "off"}


class Cluster:
    """The double of the API server, whose Jobs run with Docker."""

    def __init__(self, engine: Engine, folder: Path, project: Path, numba: Path) -> None:
        self._compiled = str(project / ".cloze" / "numba")
        self.api = KubernetesApi(folder, self)
        claims = {"project": project, "numba": numba}
        self.kubelet = Kubelet(engine, claims, self._changed, backoff_seconds=0.5, lost_seconds=20)
        self.events: list[Object] = []
        self.before: Callable[[], None] = lambda: None
        """Called before the pods of a Job start."""

    def created(self, job: Object) -> None:
        self.before()
        # Compiling takes minutes on a busy machine: tests share what numba compiles. All else is as submitted.
        pod = job["spec"]["template"]["spec"]
        pod["volumes"].append({"name": "numba", "persistentVolumeClaim": {"claimName": "numba"}})
        pod["containers"][0]["volumeMounts"].append({"name": "numba", "mountPath": self._compiled})
        self.kubelet.create(job)

    def deleted(self, job: Object) -> None:
        name = job["metadata"]["name"]
        self.kubelet.delete(name, "Foreground")
        wait_for(lambda: self.kubelet.job(name) is None, 400)

    def pod(self, index: int) -> str:
        """Name of the running pod of a node."""
        running = wait_for(lambda: [one for one in self._running() if _index(one) == index], 240)
        return str(running[0]["metadata"]["name"])

    def codes(self) -> list[tuple[int, int]]:
        """Index and exit code of the pods that have ended."""
        last = {pod["metadata"]["uid"]: pod for pod in self.events if pod["kind"] == "Pod"}
        states = [
            (_index(pod), pod["status"].get("containerStatuses", [{"state": {}}])[0]["state"]) for pod in last.values()
        ]
        return [(index, state["terminated"]["exitCode"]) for index, state in states if "terminated" in state]

    def _running(self) -> list[Object]:
        return [pod for pod in self.kubelet.pods() if pod["status"]["phase"] == "Running"]

    def _changed(self, _event: str, content: Object) -> None:
        self.events.append(content)
        name = content["metadata"]["name"]
        if content["kind"] == "Job":
            self.api.set_status(name, **content["status"])
        else:
            job = content["metadata"]["labels"]["job-name"]
            self.api.set_pods(job, self.kubelet.pods(job))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A project whose text is tokenized, with a longer training."""
    folder = tmp_path_factory.mktemp("project") / "clone"
    folder.mkdir()
    clone = new_clone(folder)

    def change(content: dict[str, Any]) -> None:
        recipe = content["pretrain"]["recipe"]
        recipe["phases"][0]["num_steps"] = NUM_STEPS
        recipe["checkpoint_every_steps"] = 50
        content["pretrain"]["machine"] = MACHINE

    clone.params(change)
    clone.run("dvc", "repro", "tokens")
    return clone


@pytest.fixture(scope="module")
def trained(project: Clone, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Weights after a training by two ranks on this machine, outside of Docker."""
    clone = project.copy(tmp_path_factory.mktemp("local") / "clone")
    clone.params(lambda content: content["pretrain"]["machine"].update(num_devices=2))
    clone.run("cloze", "pretrain")
    return weights(clone)


@pytest.fixture
def clone(project: Clone, tmp_path: Path) -> Iterator[Clone]:
    before = os.umask(0)  # the image's user writes to the project, too
    clone = project.copy(tmp_path / "clone")
    for path in (clone.root, *clone.root.rglob("*")):
        os.chown(path, 1000, 1000, follow_symlinks=False)
    wanted = {"nodes": 2, "image": IMAGE, "cpus": 1, "memory": "2Gi"}
    cluster = {"launcher": "kubernetes", "volume": f"project:{clone.root}", "pretrain": wanted}
    clone.params(lambda content: content.update(cluster=cluster))
    yield clone
    os.umask(before)
    for process in psutil.process_iter(["cwd"]):  # of a test that failed
        if process.info["cwd"] == str(clone.root):
            process.kill()


@pytest.fixture(scope="module")
def numba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numba")
    folder.chmod(0o777)
    return folder


@pytest.fixture
def cluster(engine: Engine, clone: Clone, numba: Path, tmp_path: Path) -> Iterator[Cluster]:
    engine.build()
    cluster = Cluster(engine, tmp_path, clone.root, numba)
    with cluster.api:
        clone.environment["KUBECONFIG"] = str(cluster.api.kubeconfig)
        yield cluster
        cluster.kubelet.close()


def _index(pod: Object) -> int:
    return int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])


def run_dir(clone: Clone) -> Path:
    found = list((clone.root / "build" / "runs" / "pretrain").glob("pretrained-*"))
    return found[0] if found else clone.root / "none"


def step(clone: Clone) -> int:
    path = run_dir(clone) / "status.json"
    return int(read_json(path).get("step", 0)) if path.exists() else 0


def weights(clone: Clone) -> bytes:
    return (clone.root / "build" / "pretrain" / "pretrained" / "model.safetensors").read_bytes()


def log(clone: Clone) -> str:
    return (clone.root / "test.log").read_text()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_container(clone: Clone, cluster: Cluster, trained: bytes, victim: int) -> None:
    process = clone.start("cloze", "pretrain")
    clone.wait_for(lambda: step(clone) > 60, process, 600)
    other = cluster.pod(1 - victim)
    cluster.kubelet.container(cluster.pod(victim)).kill()
    killed = time.monotonic()
    wait_for(lambda: cluster.kubelet.container(other).attrs["State"]["Status"] == "exited", 60)
    print(f"the other node ended {time.monotonic() - killed:.1f} s after the kill")
    clone.wait_for(lambda: step(clone) > 150, process, 600)
    print(f"step 150 {time.monotonic() - killed:.1f} s after the kill")
    assert process.wait(600) == 0, log(clone)
    codes = cluster.codes()
    assert (victim, 137) in codes and (1 - victim, 1) in codes
    assert weights(clone) == trained


def test_a_container_that_is_told_to_stop(clone: Clone, cluster: Cluster, trained: bytes) -> None:
    process = clone.start("cloze", "pretrain")
    clone.wait_for(lambda: step(clone) > 60, process, 600)
    cluster.kubelet.container(cluster.pod(1)).kill("SIGTERM")
    assert process.wait(600) == 0, log(clone)
    assert sorted(cluster.codes()) == [(0, 0), (0, 75), (1, 0), (1, 75)]
    assert weights(clone) == trained


def test_invalid_parameters(clone: Clone, cluster: Cluster) -> None:
    def break_run() -> None:
        path = run_dir(clone) / "RUN.json"
        run = read_json(path)
        run["recipe"]["phases"][0]["batch_size"] = 15
        write_json(path, run)

    cluster.before = break_run
    process = clone.start("cloze", "pretrain")
    assert process.wait(600) == 2, log(clone)
    assert "batch_size: 15 cannot be split among 2 ranks" in log(clone).splitlines()[-1]
    assert (0, 2) in cluster.codes()
    assert len({one["metadata"]["uid"] for one in cluster.events if one["kind"] == "Pod"}) == 2, "no pod is replaced"


def test_too_little_memory(clone: Clone, cluster: Cluster) -> None:
    clone.params(lambda content: content["cluster"]["pretrain"].update(memory="300Mi"))
    process = clone.start("cloze", "pretrain")
    assert process.wait(900) == 1, f"{log(clone)}\n{cluster.codes()}"
    assert (0, 3) in cluster.codes(), "it gives up after three losses"
    assert "raise cluster.pretrain.memory" in log(clone).splitlines()[-1]


def test_the_run_the_api_and_a_node_are_lost(clone: Clone, cluster: Cluster) -> None:
    """Kill -9 of the flow, an API that is down for a minute, an evicted pod, and one whose node is lost."""
    clone.params(lambda content: content["pretrain"]["recipe"]["phases"][0].update(num_steps=LONGER))
    process = clone.start("cloze", "pretrain")
    clone.wait_for(lambda: step(clone) > 60, process, 600)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    cluster.api.is_down = True
    again = clone.start("cloze", "pretrain")
    clone.wait_for(lambda: "waiting for it" in log(clone), again, 120)
    time.sleep(60)
    cluster.api.is_down = False
    clone.wait_for(lambda: "follows the Kubernetes job" in log(clone), again, 60)
    cluster.kubelet.delete_pod(cluster.pod(1), "EvictionByEvictionAPI")
    reached = step(clone)
    clone.wait_for(lambda: step(clone) > reached + 60, again, 600)
    cluster.kubelet.lose(cluster.pod(1))
    reached = step(clone)
    clone.wait_for(lambda: step(clone) > reached + 60, again, 900)
    assert len(cluster.api.objects(JOBS)) == 1, "nothing was submitted again"
    again.send_signal(signal.SIGINT)
    assert again.wait(120) == 75, log(clone)
    wait_for(lambda: not cluster.api.objects(JOBS), 60)
    saved = max(int(path.name.partition("-")[2]) for path in (run_dir(clone) / "checkpoints").glob("step-*"))
    assert saved == step(clone) > reached
