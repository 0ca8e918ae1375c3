"""Whole runs on PostgreSQL, a real S3 server and MLflow with artifacts by proxy: nothing lost when these fail, restored
from S3 alone, resumed from it, nothing damaged believed, and no secret in anything that was written."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from model.common.errors import UserError
from model.common.files import read_json, write_json
from model.common.metrics_log import MetricsLog
from tests.flows.clone import Clone, commit
from tests.rows import stored, written
from tests.s3 import KEY, SECRET
from tests.servers import DATABASE_PASSWORD, HTTP_PASSWORD, PREFECT_PASSWORD, Site
from tests.tasks.fetch.servers import Server, reply

pytestmark = [pytest.mark.slow, pytest.mark.disruption, pytest.mark.cluster, pytest.mark.timeout(900)]
ENCODER = "build/pretrain/pretrained/model.safetensors"
TOKEN = "hf_PLANTEDtokenFORtests"
WRONG = "wrongPLANTEDpassword4tests"
BENCHMARKS = ["cola", "sst2", "mrpc", "stsb", "rte", "wnli", "qnli", "ner"]
NUM_JOBS = 2 * len(BENCHMARKS)
NUM_STEPS = 400
OUTAGE_SECONDS = 4.0


class Watched(Clone):
    """A clone that uses all servers, and keeps the output of its commands."""

    said: list[str] = []  # of all of them

    def run(self, *command: str, code: int = 0) -> str:
        text = super().run(*command, code=code)
        Watched.said.append(text)
        assert "Traceback" not in text
        return text

    def copy(self, target: Path) -> Watched:
        shutil.copytree(self.root, target, symlinks=True)
        return self.at(target, self.environment)

    @classmethod
    def at(cls, folder: Path, environment: dict[str, str]) -> Watched:
        clone = cls(folder)
        clone.environment |= {name: value for name, value in environment.items() if name.startswith(_THEIRS)}
        return clone

    def lose(self) -> None:
        """kill -9 of everything that works in this folder: a machine that is gone."""
        import psutil

        for process in psutil.process_iter(["cwd"]):
            if process.info["cwd"] == str(self.root):
                process.kill()


_THEIRS = ("PREFECT_API", "MLFLOW_", "AWS_", "HF_TOKEN", "CLOZE_DATABASE")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of all clones of these tests."""
    return tmp_path_factory.mktemp("clones")


@pytest.fixture(scope="module")
def environment(site: Site) -> dict[str, str]:
    return site.environment | {"HF_TOKEN": TOKEN}


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    """URL, with a password, of a proxy in front of MLflow that rejects passwords."""
    server = Server(lambda request: reply(request, 401, b"who are you?"))
    yield server.url.replace("://", f"://admin:{WRONG}@")
    server.close()


@pytest.fixture(scope="module")
def whole(finished: Clone, site: Site, folder: Path, environment: dict[str, str]) -> Watched:
    """A clone after a whole run during which MLflow was killed, S3 refused and Prefect's server was restarted."""
    shutil.copytree(finished.root, folder / "whole", symlinks=True)
    clone = Watched.at(folder / "whole", environment)
    for made in ("build", "dvc.lock", ".dvc/cache/runs", ".cloze/mlflow", ".cloze/prefect", ".cloze/leaderboard"):
        path = clone.root / made
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def change(content: dict[str, Any]) -> None:
        content["mirror"] = {"url": "s3://cloze/mirror"}
        recipe = content["pretrain"]["recipe"]
        recipe["phases"][0]["num_steps"] = NUM_STEPS
        recipe |= {"checkpoint_every_steps": 50, "validate_every_steps": 200, "log_every_steps": 2}
        content["finetune"] |= {"benchmarks": dict.fromkeys(BENCHMARKS), "num_workers": NUM_JOBS}

    clone.params(change)
    clone.run("dvc", "remote", "add", "-q", "-d", "s3", "s3://cloze/dvc")
    clone.run("dvc", "remote", "modify", "-q", "s3", "verify", "true")
    commit(clone)
    process = clone.start("cloze", "run")
    clone.wait_for(lambda: len(site.s3.names("mirror/.*/digests.json")) > 0 and num_lines(clone) > 20, process)
    before = num_lines(clone)
    for server in (site.mlflow, site.s3.server, site.prefect):
        server.end(signal.SIGKILL)
    site.prefect.start(wait_seconds=0)
    time.sleep(OUTAGE_SECONDS)
    assert num_lines(clone) > before + 5, "training went on"
    log = clone.root / "test.log"  # one request is repeated for some seconds before it counts as failed
    clone.wait_for(lambda: "is not uploaded yet" in log.read_text(), process)
    site.s3.server.start()
    site.mlflow.start()
    assert process.wait(400) == 0, (clone.root / "test.log").read_text()[-5000:]
    commit(clone)
    return clone


def num_lines(clone: Clone) -> int:
    """Return the entries of the metrics log of pre-training."""
    return sum(path.read_bytes().count(b"\n") for path in clone.root.glob("build/runs/pretrain/*/journal.jsonl"))


def test_a_run_with_outages_loses_and_duplicates_nothing(whole: Watched, site: Site) -> None:
    there, here = stored(site.postgres), written(whole.root)
    assert len(here) == 1 + 2 + NUM_JOBS + 2, "the pipeline, two encoders, the jobs, two systems"
    for key, rows in here.items():
        runs, found = there[key]
        assert len(runs) == 1, f"{key} has {len(runs)} runs"
        assert found == rows, key
    assert sum(sum(rows.values()) for rows in here.values()) > 2000
    statuses = site.postgres.query("SELECT status, count(*) FROM mlflow.runs GROUP BY status")
    assert statuses == [("FINISHED", len(here))]
    states = site.postgres.query("SELECT name, state_type FROM prefect.flow_run WHERE parent_task_run_id IS NULL")
    assert [state for _, state in states] == ["COMPLETED"]
    newest = site.s3.names(f"mirror/pretrained-[^/]*/step-{NUM_STEPS:08d}/.*")
    assert len(newest) == 4, "the last checkpoint has arrived"
    log = (whole.root / "test.log").read_text()
    assert "is not uploaded yet" in log and "is uploaded" in log
    assert len(whole.job_times("finetune")) == NUM_JOBS
    assert most_at_a_time(whole.root / "build/runs/finetune") >= NUM_JOBS - 2


def most_at_a_time(runs: Path) -> int:
    """Return the largest number of concurrent jobs."""
    events = []
    for log in runs.glob("*/log.txt"):
        lines = [line for line in log.read_text().splitlines() if line.startswith("started as process")]
        events.append((datetime.fromisoformat(lines[-1].split(" at ")[1]).timestamp(), 1))
        events.append(((log.parent / "result.json").stat().st_mtime, -1))
    count = most = 0
    for _, change in sorted(events):
        count += change
        most = max(most, count)
    return most


def test_artifacts_come_through_mlflow_without_keys_of_s3(whole: Watched, site: Site, tmp_path: Path) -> None:
    runs = site.postgres.query("SELECT run_uuid, artifact_uri FROM mlflow.runs WHERE name LIKE 'pretrain/pretrained'")
    [(run, uri)] = runs
    assert uri.startswith("mlflow-artifacts:/")
    assert site.s3.names(f"mlflow/.*{run}/artifacts/model/model.safetensors")
    program = "import sys, mlflow.artifacts as a; a.download_artifacts(run_id=sys.argv[1], dst_path=sys.argv[2])"
    clone = Watched.at(whole.root, {"MLFLOW_TRACKING_URI": site.tracking_uri()})
    clone.run(sys.executable, "-c", program, run, str(tmp_path))
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        published = whole.root / "build/pretrain/pretrained" / name
        assert (tmp_path / "model" / name).read_bytes() == published.read_bytes()


def test_sixteen_concurrent_senders_lose_nothing(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like sixteen runs in separate workspaces, all of which find no experiment."""
    from tasks.tracking import tracking

    monkeypatch.setattr(tracking, "EXPERIMENT", "sixteen")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    senders = []
    for number in range(16):
        folder = tmp_path / f"{number}"
        journal = MetricsLog(folder / "journal.jsonl")
        for step in range(100):
            journal.log(step, {"loss": 1 / (step + 1), "rate": step / 100})
        journal.close()
        entry = {"key": f"sixteen-{number}", "name": "one", "status": "FINISHED", "journal": str(journal.path)}
        entry |= {"metrics": {"final": 1.0}, "metrics_ms": {"final": 5}, "changed_ms": 1}
        write_json(folder / "entries" / "one.json", entry)
        senders.append(tracking.Forwarder(site.tracking_uri(), tmp_path, folder / "entries"))
    monkeypatch.setattr(tracking, "EVERY_SECONDS", 0.1)
    for sender in senders:
        sender.start()
    left = [0] * len(senders)

    def drain(place: int) -> None:
        time.sleep(1)
        left[place] = senders[place].drain()

    threads = [threading.Thread(target=drain, args=(place,)) for place in range(len(senders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(left), [sender.reason for sender in senders if sender.reason]
    there = stored(site.postgres)
    for number in range(16):
        runs, rows = there[f"sixteen-{number}"]
        assert len(runs) == 1 and sum(rows.values()) == len(rows) == 201


def fresh(whole: Watched, target: Path, environment: dict[str, str]) -> Watched:
    """A git clone, without the files that git ignores."""
    whole.run("git", "clone", "-q", str(whole.root), str(target))
    return Watched.at(target, environment)


@pytest.fixture(scope="module")
def pushed(whole: Watched) -> Watched:
    whole.run("dvc", "push", "-q")
    return whole


def test_restored_in_another_folder_from_s3_alone(pushed: Watched, folder: Path, environment: dict[str, str]) -> None:
    other = fresh(pushed, folder / "restored", environment)
    hidden = pushed.root.with_name("hidden")
    pushed.root.rename(hidden)
    try:
        other.run("dvc", "pull", "-q")
        assert "Everything is up to date" in other.run("cloze", "run")
        assert "Data and pipelines are up to date" in other.run("dvc", "status")
    finally:
        hidden.rename(pushed.root)
    assert other.board() == pushed.board()
    assert (other.root / ENCODER).read_bytes() == (pushed.root / ENCODER).read_bytes()


def object_of(clone: Clone, path: str) -> str:
    """Return the MD5 that names an output file in the cache and in the remote."""
    lock = yaml.safe_load((clone.root / "dvc.lock").read_text())
    stage = path.split("/")[1]
    [out] = lock["stages"][stage]["outs"]
    listing = read_json(clone.root / ".dvc" / "cache" / "files" / "md5" / out["md5"][:2] / out["md5"][2:])
    [found] = [file["md5"] for file in listing if f"build/{stage}/{file['relpath']}" == path]
    return str(found)


def place_of(clone: Clone, path: str) -> Path:
    """Return its path in the cache."""
    md5 = object_of(clone, path)
    return clone.root / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]


def flip(path: Path) -> None:
    """Flip one bit, but keep size, time and mode."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(bytes(content))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    path.chmod(before.st_mode & 0o777)


def test_a_bit_flipped_in_the_remote(pushed: Watched, site: Site, folder: Path, environment: dict[str, str]) -> None:
    md5 = object_of(pushed, ENCODER)
    key = f"dvc/files/md5/{md5[:2]}/{md5[2:]}"
    site.s3.flip(key)
    try:
        other = fresh(pushed, folder / "from-damaged", environment)
        said = other.run("dvc", "pull", "build/pretrain", code=1)
        assert "build/pretrain" in said, "DVC names the output, `cloze verify` the file"
        assert not (other.root / ENCODER).exists()
        said = pushed.run("cloze", "verify", "--remote", "s3", code=1)
        assert f"the object of {ENCODER} is damaged in the remote 's3'" in said
    finally:
        site.s3.flip(key)


def test_a_remote_that_does_not_verify_is_a_fault(pushed: Watched, folder: Path, environment: dict[str, str]) -> None:
    other = fresh(pushed, folder / "careless", environment)
    other.run("dvc", "remote", "modify", "-q", "s3", "verify", "false")
    config = other.root / ".dvc" / "config.local"
    config.write_text(f"['remote \"s3\"']\n    secret_access_key = {SECRET}\n")
    said = other.run("cloze", "verify", "--remote", "s3", code=2)
    assert "`dvc remote modify s3 verify true`" in said and SECRET not in said
    said = " ".join(other.run("cloze", "doctor", code=1).split())
    assert "remote s3" in said and "secret_access_key is in" in said and SECRET not in said
    config.unlink()


def test_a_bit_flipped_in_the_cache(pushed: Watched, folder: Path) -> None:
    """For a persistent and a non-persistent output, when the cache is read or written."""
    clone = pushed.copy(folder / "cache")
    vocabulary = "build/tokenizer/vocab.txt"
    places = {path: place_of(clone, path) for path in (vocabulary, ENCODER)}
    lines = {
        path: f"{place.relative_to(clone.root)}: the cached object of {path} is damaged"
        for path, place in places.items()
    }
    for path, place in places.items():
        flip(place)  # DVC trusts what is read-only
        shutil.rmtree(clone.root / "/".join(path.split("/")[:2]))
    said = clone.run("cloze", "verify", code=1)
    assert all(line in said for line in lines.values())
    assert lines[vocabulary] in clone.run("cloze", "run", code=2)
    flip(places[vocabulary])
    assert lines[ENCODER] in clone.run("cloze", "run", code=2)
    places[ENCODER].unlink()
    clone.run("dvc", "fetch", "-q", "build/pretrain")
    said = clone.run("cloze", "run")
    assert "[4/6] pretrain: restored from the DVC cache" in said and "pretrain: done" not in said
    assert (clone.root / ENCODER).read_bytes() == (pushed.root / ENCODER).read_bytes()

    flip(places[ENCODER])  # the good file is to be kept where the damaged object is
    clone.params(lambda content: content["pretrain"].update(num_parallel=2))
    said = clone.run("cloze", "run")
    assert lines[ENCODER].replace(" is damaged", " was damaged") in said
    assert (clone.root / ENCODER).read_bytes() == (pushed.root / ENCODER).read_bytes()
    clone.run("cloze", "verify")


def test_a_bit_flipped_in_a_published_encoder(pushed: Watched, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Size and time are unchanged, so DVC does not notice, but every command that uses the encoder does."""
    from flows.cli import predict_commands, registry_commands
    from tasks.project.project import Project
    from tasks.registry.mlflow_registry import register

    clone = pushed.copy(folder / "flipped")
    flip(clone.root / ENCODER)
    line = f"{ENCODER}: its MD5 is"
    assert f"{ENCODER} differs from its record" in clone.run("cloze", "verify", code=1)
    said = clone.run("cloze", "finetune", code=2)
    assert (
        line in said
        and "remove build/pretrain/pretrained, and restore it with `dvc checkout --force build/pretrain`" in said
    )
    assert line in clone.run("cloze", "pretrain", code=2), "it would be taken over"
    assert line in clone.run("cloze", "fill-mask", "a [MASK]", code=2)
    project = Project(clone.root, clone.root)
    monkeypatch.chdir(clone.root)
    monkeypatch.setattr(registry_commands, "project_here", lambda: project)
    monkeypatch.setattr(predict_commands, "project_for_inference", lambda: project)
    texts, use = clone.root / "params.yaml", {"output": None, "device": "auto", "threads": 0, "precision": "auto"}
    embed = functools.partial(
        predict_commands.embed.callback, texts, pooling=None, normalize=None, max_length=None, **use
    )
    acts: list[Callable[[], object]] = [
        lambda: embed(encoder="pretrained"),
        lambda: embed(encoder=str((clone.root / ENCODER).parent)),
        lambda: registry_commands.export.callback("pretrained", folder / "out", None, None, False, False),
        lambda: register(project, "pretrained"),
    ]
    for act in acts:
        with pytest.raises(UserError, match=line):
            act()
    shutil.rmtree((clone.root / ENCODER).parent)  # as the line says: DVC sees no change in the file
    clone.run("dvc", "checkout", "-q", "--force", "build/pretrain")
    assert "Everything is up to date" in clone.run("cloze", "run")
    model = clone.root / "build/finetune/pretrained/rte/model/model.safetensors"
    flip(model)
    given: dict[str, Any] = {"model_dir": None, "encoder": "pretrained", "format_": "auto", "as_text": False}
    with pytest.raises(UserError, match="build/finetune/pretrained/rte/model/model.safetensors: its MD5 is"):
        predict_commands.predict.callback("rte", texts, window=1, skip_bad=False, **given, **use)


def test_pre_training_resumes_on_another_machine(
    finished: Clone, site: Site, folder: Path, environment: dict[str, str], refusing: str
) -> None:
    """A machine is lost (kill -9) in mid-training; another folder with the same inputs and the mirror ends at the bytes
    of a run that nobody disturbed."""

    def begin(name: str) -> Watched:
        shutil.copytree(finished.root, folder / name, symlinks=True)
        clone = Watched.at(folder / name, environment)
        for made in ("build/pretrain", "build/runs", ".dvc/cache"):  # DVC's cache has the encoder, too
            shutil.rmtree(clone.root / made)
        clone.params(lambda content: content.update(mirror={"url": "s3://cloze/machines"}))
        return clone

    first = begin("first")
    process = first.start("cloze", "pretrain")
    runs = first.root / "build/runs/pretrain"
    first.wait_for(lambda: any(runs.glob("pretrained-*/checkpoints/step-*/digests.json")), process)
    [job] = runs.glob("pretrained-*")
    trainer = re.findall(r"started as process (\d+)", (job / "log.txt").read_text())[-1]
    os.kill(int(trainer), signal.SIGSTOP)  # it would end in a second
    first.wait_for(lambda: bool(site.s3.names("machines/.*/digests.json")), process)
    first.lose()
    process.wait()
    assert not (job / "result.json").exists()

    second = begin("second")
    second.environment["MLFLOW_TRACKING_URI"] = refusing  # keeps no training from its end
    said = second.run("cloze", "pretrain")
    assert f"from s3://cloze/machines/{job.name}" in said
    assert "MLflow at 127.0.0.1" in said and "did not accept" in said
    assert (second.root / ENCODER).read_bytes() == (finished.root / ENCODER).read_bytes()
    assert "resuming from step-" in (second.root / "build/runs/pretrain" / job.name / "log.txt").read_text()
    second.environment["MLFLOW_TRACKING_URI"] = site.tracking_uri()
    assert "did not accept" not in second.run("cloze", "tokenizer")  # what was kept is sent by the next run
    here, there = written(second.root), stored(site.postgres)
    assert all(not rows - there[key][1] for key, rows in here.items())
    key = job.name.partition("-")[2]
    losses = {(name, step, value) for name, _, step, value in there[key][1] if name.startswith("train/loss")}
    assert len(losses) == len({(name, step) for name, step, _ in losses}), "both machines have measured alike"
    assert max(step for _, step, _ in losses) == 60


def test_refusals_say_why_and_contain_no_secret(
    finished: Clone, site: Site, folder: Path, environment: dict[str, str], refusing: str
) -> None:
    shutil.copytree(finished.root, folder / "refused", symlinks=True)
    clone = Watched.at(folder / "refused", environment)
    right = dict(clone.environment)
    clone.environment["AWS_SECRET_ACCESS_KEY"] = WRONG

    def change(content: dict[str, Any]) -> None:
        content["mirror"] = {"url": "s3://cloze/refused"}
        content["pretrain"]["seed"] = 2

    clone.params(change)
    assert "the secret key does not fit" in clone.run("cloze", "pretrain", code=2)
    with (clone.root / ".dvc" / "config").open("a") as file:
        file.write("['remote \"s3\"']\n    url = s3://cloze/refused\n    verify = true\n")
    assert "Forbidden" in clone.run("dvc", "push", "-r", "s3", "build/tokenizer", code=255)
    clone.environment = {**right, "MLFLOW_TRACKING_URI": refusing}
    assert "MLflow at 127.0.0.1" in clone.run("cloze", "board", "--from-mlflow", code=2)
    clone.environment = {**right, "PREFECT_API_AUTH_STRING": f"admin:{WRONG}"}
    assert "rejects the request (401); set PREFECT_API_AUTH_STRING" in clone.run("cloze", "tokens", code=2)
    clone.environment = {**right, "CLOZE_DATABASE": site.postgres.url.replace(DATABASE_PASSWORD, WRONG)}
    assert "password authentication failed" in clone.run("cloze", "up", code=2)


def test_no_file_contains_a_secret(whole: Watched, site: Site, folder: Path, environment: dict[str, str]) -> None:
    """Runs last, and reads the files of all other tests."""
    plain = [KEY, SECRET, TOKEN, WRONG, DATABASE_PASSWORD, HTTP_PASSWORD, PREFECT_PASSWORD]
    pairs = [f"admin:{password}" for password in (HTTP_PASSWORD, PREFECT_PASSWORD, WRONG)]
    forms = [*plain, *(base64.b64encode(text.encode()).decode() for text in (*plain, *pairs))]
    wanted = [text.encode() for text in {*forms, *(quote(text, safe="") for text in forms)}]
    allowed = {site.postgres.folder / "password"}  # where the server has it from
    site.postgres.query("CHECKPOINT; SELECT 1")
    places = [path for root in (folder, site.folder, site.postgres.folder) for path in root.rglob("*")]
    files = [path for path in places if path.is_file() and not path.is_symlink() and path not in allowed]
    assert len(files) > 3000
    for path in files:
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # the servers are up, and delete what has expired
            continue
        assert not [text for text in wanted if text in content], path
    said = "\n".join([*Watched.said, site.postgres.dump()]).encode()
    assert not [text for text in wanted if text in said]


def test_training_processes_have_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.jobs.local_launcher import start

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    program = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
    for with_secrets in (True, False):
        path = tmp_path / f"{with_secrets}.json"
        start([sys.executable, "-c", program, str(path)], tmp_path / "log.txt", with_secrets=with_secrets).wait(60)
        environment = json.loads(path.read_text())
        assert ("AWS_SECRET_ACCESS_KEY" in environment) is with_secrets
        assert environment["PATH"] == os.environ["PATH"]
