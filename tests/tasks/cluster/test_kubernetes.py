"""Jobs on the double of Kubernetes' API: what is created, found again, refused and deleted, with the role of a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainingRuntime, TrainerV1alpha1TrainJob

from model.common.errors import UserError
from tasks.cluster import node_supervisor
from tasks.cluster.cluster_job import ClusterJob, JobKey, LauncherUnavailable
from tasks.cluster.gang import GIVEN_UP
from tasks.cluster.kubernetes import KubernetesLauncher, _Job, container_template, job_template, pod_template
from tasks.cluster.launchers import find_patiently
from tasks.params.cluster import ClusterSettings, JobResources
from tests.cluster.kubernetes_api import JOBS, SERVICES, TRAIN_JOBS, KubernetesApi
from tests.infra.manifests import KUBERNETES, documents
from tests.waiting import wait_for

RESOURCES = JobResources(nodes=2, image="cloze:0.1.0", cpus=4, memory="8Gi", queue="gpus", time_minutes=60)
SETTINGS = ClusterSettings(launcher="kubernetes", pretrain=RESOURCES)
FOLDER = Path("/work")


def job(name: str = "pretrained-0123456789abcdef", folder: Path = FOLDER) -> ClusterJob:
    run_dir = folder / "build" / "runs" / "pretrain" / name
    key = JobKey.of(name.rpartition("-")[2], run_dir)
    return ClusterJob(key, run_dir / "log.txt", RESOURCES, folder, (str(run_dir / "RUN.json"), "1"), num_gpus=8)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    with KubernetesApi(tmp_path) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        yield api


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    with KubernetesApi(tmp_path, has_runtime=True) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        yield api


def launcher() -> KubernetesLauncher:
    """A launcher of another process, which knows nothing but the settings."""
    return KubernetesLauncher(SETTINGS)


def test_what_is_created_is_what_the_dry_run_shows(api: KubernetesApi) -> None:
    shown = list(yaml.safe_load_all(launcher().manifest(job())))
    name = launcher().submit(job())
    (created,), (service,) = api.objects(JOBS), api.objects(SERVICES)
    for version in ("1.31", "1.34"):
        for one in (created, service):
            kubernetes_validate.validate(one, version, strict=True)
    uid = created["metadata"].pop("uid")
    assert service["metadata"]["ownerReferences"][0].pop("uid") == uid
    shown[1]["metadata"]["ownerReferences"][0].pop("uid")
    service["metadata"].pop("uid")
    assert [created, service] == shown
    spec = created["spec"]
    assert spec["completions"] == spec["parallelism"] == 2 and spec["activeDeadlineSeconds"] == 3600
    (container,) = spec["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "8"}
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert environment["MASTER_ADDR"] == f"{name}-0.{name}" and spec["template"]["spec"]["subdomain"] == name
    assert len(f"{name}-999") <= 63
    assert created["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"


def test_a_second_submission_finds_the_first(api: KubernetesApi) -> None:
    names = [launcher().submit(job()) for _ in range(2)]
    assert names[0] == names[1] and len(api.objects(JOBS)) == len(api.objects(SERVICES)) == 1
    threads = [threading.Thread(target=launcher().submit, args=(job("other-fedcba9876543210"),)) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(api.objects(JOBS)) == 2


def test_a_job_is_found_by_its_key_until_it_has_ended(api: KubernetesApi) -> None:
    key = job().key
    assert launcher().find(key) is None
    name = launcher().submit(job())
    waiting = launcher().find(key)
    assert waiting is not None and not waiting.is_running and waiting.reason == "no pods yet"
    state = {"waiting": {"reason": "ErrImagePull", "message": "no such\nimage"}}
    statuses = {"containerStatuses": [{"name": "node", "image": "x", "imageID": "", "ready": False, "restartCount": 0}]}
    statuses["containerStatuses"][0]["state"] = state
    api.set_pods(name, [{"metadata": {"labels": {"batch.kubernetes.io/job-name": name}}, "status": statuses}])
    waiting = launcher().find(key)
    assert waiting is not None and waiting.reason == "ErrImagePull: no such image"
    api.set_status(name, active=2, ready=2)
    running = launcher().find(key)
    assert running is not None and running.is_running and running.id == name
    assert launcher().find(JobKey.of("0" * 16, FOLDER / "other")) is None
    for ended in ("Complete", "Failed"):
        api.set_status(name, conditions=[{"type": ended, "status": "True"}])
        assert launcher().find(key) is None


def test_a_finished_job_is_replaced(api: KubernetesApi) -> None:
    name = launcher().submit(job())
    before = api.objects(JOBS)[0]["metadata"]["uid"]
    api.set_status(name, conditions=[{"type": "Failed", "status": "True"}])
    assert launcher().submit(job()) == name
    ((now,), (service,)) = api.objects(JOBS), api.objects(SERVICES)
    assert now["metadata"]["uid"] != before
    assert service["metadata"]["ownerReferences"][0]["uid"] == now["metadata"]["uid"]


def test_a_process_that_was_killed_before_the_service_leaves_it_to_the_next(api: KubernetesApi) -> None:
    first = launcher()
    first._call(lambda api: api.create(_Job(), _Job().body(first._name(job().key), job(), SETTINGS.volume)))
    assert not api.objects(SERVICES)
    assert launcher().find(job().key) is not None
    assert len(api.objects(SERVICES)) == 1


def test_a_canceled_job_exists_until_its_pods_have_ended(api: KubernetesApi) -> None:
    ended = threading.Event()

    class Slow:
        def created(self, job: dict[str, Any]) -> None: ...

        def deleted(self, job: dict[str, Any]) -> None:
            assert ended.wait(10)

    api.controller = Slow()
    name = launcher().submit(job())
    launcher().cancel(name)
    assert launcher().find(job().key) is not None, "its pods save"
    ended.set()
    wait_for(lambda: launcher().find(job().key) is None, 10)
    assert not api.objects(SERVICES)
    launcher().cancel(name)  # one that is gone is no mistake


def test_an_api_that_is_down_is_waited_for(api: KubernetesApi, capfd: pytest.CaptureFixture[str]) -> None:
    launcher().submit(job())
    api.is_down = True
    with pytest.raises(LauncherUnavailable, match="does not answer"):
        launcher().find(job().key)
    threading.Timer(5, lambda: setattr(api, "is_down", False)).start()
    stop = threading.Event()
    found = find_patiently(launcher(), job().key, stop)
    assert found is not None
    assert capfd.readouterr().err.count("waiting for it") == 1, "one line"
    api.is_down = True
    stop.set()
    with pytest.raises(LauncherUnavailable):
        find_patiently(launcher(), job().key, stop)


def test_refusals_are_the_apis_words(api: KubernetesApi) -> None:
    api.granted = {one for one in api.granted if one[2] != "create"}
    with pytest.raises(UserError, match="^Kubernetes: jobs.batch is forbidden: the account cannot create it$"):
        launcher().submit(job())


def test_the_project_has_to_be_on_the_volume(api: KubernetesApi) -> None:
    with pytest.raises(UserError, match=r"^cluster.volume: /home/me is not below /work"):
        launcher().submit(job(folder=Path("/home/me")))


def test_equal_jobs_of_two_claims_have_two_names(api: KubernetesApi) -> None:
    other = SETTINGS.model_copy(update={"volume": "other:/work"})
    assert launcher()._name(job().key) != KubernetesLauncher(other)._name(job().key)


def test_a_train_job_where_the_runtime_exists(trainer: KubernetesApi) -> None:
    (shown,) = yaml.safe_load_all(launcher().manifest(job()))
    name = launcher().submit(job())
    (created,) = trainer.objects(TRAIN_JOBS)
    created["metadata"].pop("uid")
    assert created == shown and not trainer.objects(JOBS) and not trainer.objects(SERVICES)
    model = TrainerV1alpha1TrainJob.from_dict(created)
    assert model is not None and model.to_dict() == created
    trained = created["spec"]["trainer"]
    assert trained["numNodes"] == 2 and trained["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == "8"
    assert {"name": "MASTER_ADDR", "value": f"{name}-node-0-0.{name}"} in trained["env"]
    waiting = launcher().find(job().key)
    assert waiting is not None and not waiting.is_running
    trainer.set_status(name, TRAIN_JOBS, jobsStatus=[{"name": "node", "ready": 1}])
    running = launcher().find(job().key)
    assert running is not None and running.is_running
    launcher().cancel(name)
    wait_for(lambda: launcher().find(job().key) is None, 10)


def test_workers_are_pods_that_are_replaced_one_by_one(trainer: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = ClusterJob.of_workers("finetune", FOLDER / "build" / "runs" / "nodes", RESOURCES, FOLDER, num_gpus=1)
    (shown,) = yaml.safe_load_all(launcher().manifest(workers))
    name = launcher().submit(workers)
    (created,) = trainer.objects(JOBS)
    kubernetes_validate.validate(created, "1.34", strict=True)
    created["metadata"].pop("uid")
    assert created == shown and not trainer.objects(SERVICES)
    assert created["spec"]["completionMode"] == "NonIndexed" and created["spec"]["completions"] == 2
    (container,) = created["spec"]["template"]["spec"]["containers"]
    assert container["args"][3] == "tasks.cluster.dask_worker" and container["workingDir"] == "/work"
    found = launcher().find(workers.key)
    assert found is not None and found.id == name
    launcher().cancel(name)
    wait_for(lambda: launcher().find(workers.key) is None, 10)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UserError, match="run `cloze` in a pod"):
        launcher().local_address(RESOURCES)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    assert launcher().local_address(RESOURCES) == "127.0.0.1"


def test_the_role_of_a_run_has_the_verbs_that_are_used(
    api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trainer").mkdir()
    with KubernetesApi(tmp_path / "trainer", has_runtime=True) as trainer:
        for one in (api, trainer):
            monkeypatch.setenv("KUBECONFIG", str(one.kubeconfig))
            name = launcher().submit(job())
            launcher().find(job().key)
            launcher().cancel(name)
        assert api.used | trainer.used == api.granted


def test_the_runtime_of_train_jobs_is_the_template_of_jobs() -> None:
    text = (KUBERNETES / "components" / "trainer" / "runtime.yaml").read_text()
    (runtime,) = documents(text)
    model = TrainerV1alpha1TrainingRuntime.from_dict(runtime)
    assert model is not None and model.to_dict() == runtime
    job_set = runtime["spec"]["template"]["spec"]
    (replicated,) = job_set["replicatedJobs"]
    spec = replicated["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod.pop("containers")
    assert pod == pod_template()
    assert container == {**container_template(), "image": "cloze"}
    assert spec["backoffLimit"] == 0, "one failed pod fails the job, and the JobSet starts all pods again"
    assert {key: spec[key] for key in job_template()} == job_template()
    assert job_set["failurePolicy"]["rules"][0]["action"] == "FailJobSet"


def test_exit_codes_mean_what_the_nodes_mean() -> None:
    rules = job_template()["podFailurePolicy"]["rules"]
    actions = {code: rule["action"] for rule in rules for code in rule.get("onExitCodes", {}).get("values", [])}
    fails = dict.fromkeys((node_supervisor.USER_ERROR, GIVEN_UP), "FailJob")
    assert actions == {**fails, node_supervisor.RESUMABLE: "Ignore"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"launcher": "kubernetes"}, "cluster.pretrain.image: name the image"),
        ({"launcher": "kubernetes", "pretrain": {"image": "x", "partition": "gpu"}}, "partition: not a setting of"),
        ({"launcher": "slurm", "pretrain": {"image": "x"}}, "image: not a setting of the launcher slurm"),
        ({"volume": "project"}, "expected CLAIM:PATH such as project:/work, got 'project'"),
    ],
)
def test_mistakes_in_the_settings(content: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ClusterSettings.parse(content, "params.yaml")
