"""Pre-training jobs: one process per encoder of params.yaml, with its checkpoints mirrored to S3.

The newest checkpoint is downloaded before a job starts. A background thread uploads new ones; S3 errors never reach
training.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from model.common.background import lower_priority
from model.common.checkpoint_files import DIGESTS, FILE, Damaged, check_files, content_of, folder_name
from model.common.errors import Paused, UserError
from model.common.files import atomic_directory, digest_of, digest_of_file, read_json, write_json
from model.common.ownership import Owner, claim, newest_owner
from model.common.run_dir import RunDir
from model.common.state_files import read_state
from model.config.hardware import HardwareOptions
from model.config.pretraining import KEEPING, PretrainRun
from model.tokenizer.wordpiece import load_tokenizer, tokenizer_digest
from tasks.cluster.cluster_job import ClusterJob, JobKey, LauncherUnavailable
from tasks.cluster.launchers import find_patiently, follow, launcher_named
from tasks.dvc.earlier_outputs import EarlierOutputs
from tasks.dvc.integrity import Recorded
from tasks.jobs.local_launcher import JobEnd, WorkerPool
from tasks.jobs.supervision import copy_tree, run_attempt, supervise
from tasks.params.cluster import ClusterSettings
from tasks.params.root import CheckpointSyncSettings, PretrainParams
from tasks.pretrain.start import start_of
from tasks.project.progress import amount, duration, echo, warn
from tasks.s3.client import S3Client, S3Refused, S3Unavailable
from tasks.tokens.tokens import check_fit

EVERY_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
_SILENT_SECONDS = 600.0  # of a job on another machine, whose process cannot be looked at
_STEP = re.compile(r"step-\d{8,}")


def plan_encoders(
    params: PretrainParams,
    tokens_dir: Path,
    tokenizer_dir: Path,
    data_dir: Path,
    runs_dir: Path,
    version: int,
    models: Mapping[str, str] | None = None,
    machine: HardwareOptions | None = None,
) -> list[PretrainRun]:
    """Plan one job per encoder, or one per seed if it has several.

    Args:
        models: directory below data/ of each model of the hub that `cloze fetch` downloads.
        machine: the machine of jobs with steps; by default, params.machine.

    Raises:
        UserError: the tokens were made with another vocabulary, or an encoder cannot continue from its checkpoint.
    """
    check_fit(tokens_dir, tokenizer_dir)
    inputs = [digest_of_file(tokens_dir / "index.json"), digest_of_file(tokenizer_dir / "tokenizer.json")]
    text_digest = tokenizer_digest(load_tokenizer(tokenizer_dir))
    planned = []
    for encoder in params.encoders:
        recipe = params.recipe_of(encoder)
        start = start_of(encoder, data_dir, models or {}, text_digest)
        for name, seed in params.seeds_of(encoder).items():
            content: dict[str, Any] = {
                "inputs": inputs,
                "machine": params.machine.model_dump(include={"precision", "compile"}),
                "recipe": recipe.model_dump(mode="json", exclude=KEEPING),
                "seed": seed,
                "shape": encoder.full_shape.model_dump() if start is None else start.config.model_dump(),
                "version": version,
            }
            if start is not None:
                content["start"] = start.digest
            digest = digest_of(content)
            run = PretrainRun(
                name=name,
                system=encoder.name,
                digest=digest,
                tokens_dir=tokens_dir,
                tokenizer_dir=tokenizer_dir,
                data_dir=data_dir,
                run_dir=runs_dir / f"{name}-{digest}",
                shape=encoder.full_shape,
                start=start,
                recipe=recipe,
                seed=seed,
                machine=(machine or params.machine) if recipe.phases else params.machine,
            )
            planned.append(run)
    return planned


def job_name(job: PretrainRun) -> str:
    """Name of a pre-training job in logs, pages and messages."""
    return f"pretrain/{job.name}"


def progress(status: Mapping[str, Any]) -> tuple[float, float, str]:
    """Return the step, the number of steps and a short text from the status of a training process."""
    step, num_steps = status.get("step", 0), status.get("num_steps", 0)
    if status.get("state") == "queued":
        reason = status.get("reason", "")
        return 0, 0, f"queued ({reason})" if reason else "queued"
    if not step:
        return 0, 0, "loading"
    parts = [f"step {step:,}/{num_steps:,}"]
    if "loss" in status:
        parts += [f"loss {status['loss']:.2f}", f"{amount(status['tokens_per_second'])} tokens/s"]
    return step, num_steps, "  ".join(parts)


def summary(result: Mapping[str, Any], run_dir: RunDir) -> str:
    """Describe a finished job in one line."""
    if not result["num_steps"]:
        return "initial weights, no training"
    final = result["final"]
    loss = (
        f"held-out loss {final['heldout/loss']:.2f}" if "heldout/loss" in final else f"loss {final['train/loss']:.2f}"
    )
    took = f", {duration(seconds)}" if (seconds := read_state(run_dir.timing).get("seconds")) is not None else ""
    return f"{result['num_steps']:,} steps, {loss}{took}"


def finished(job: PretrainRun, published_dir: Path) -> dict[str, Any] | None:
    """Return a job's result from its run directory or the published output, if it has one."""
    run_dir, path = RunDir(job.run_dir), RunDir(published_dir / job.name).metrics
    found = run_dir.read_result(job.digest, with_files=True)
    if found is not None and run_dir.encoder.is_dir():
        return found
    published = read_json(path) if path.exists() else {}
    return published if published.get("digest") == job.digest else None


def earlier_files(job: PretrainRun, earlier: EarlierOutputs) -> dict[str, Recorded] | None:
    """Return the files that an earlier output has of this job, if one does."""
    return earlier.find(job.name, f"{job.name}/metrics.json", lambda metrics: metrics["digest"] == job.digest)


def take_result(job: PretrainRun, earlier: EarlierOutputs) -> bool:
    """Copy a job's encoder and last checkpoint from an earlier output to its run directory; False if none has them."""
    files = earlier_files(job, earlier)
    if files is None:
        return False
    run_dir, result = RunDir(job.run_dir), earlier.read(files.pop("metrics.json"))
    inner = f"{run_dir.last_checkpoint.name}/"
    checkpoint = {name.removeprefix(inner): files.pop(name) for name in list(files) if name.startswith(inner)}
    for found, target in (
        (checkpoint, run_dir.checkpoints / folder_name(result["num_steps"])),
        (files, run_dir.encoder),
    ):
        if found:
            with atomic_directory(target) as partial:
                earlier.copy(found, partial)
    run_dir.write_result(result)
    return True


class EncoderQueue:
    """Encoders in the order of params.yaml: at most `num_parallel` train at a time.

    An encoder that keeps its initial weights starts next to them, because its process does little but import torch.
    """

    def __init__(self, jobs: Iterable[PretrainRun], num_parallel: int) -> None:
        self._waiting = {job.name: bool(job.recipe.phases) for job in jobs}
        self._running: dict[str, bool] = {}
        self._limits = {True: num_parallel, False: 1}
        self.num_slots = sum(self._limits.values())

    def is_waiting(self) -> bool:
        """Slots become free only when an encoder has ended."""
        return False

    def take(self) -> str | None:
        """Return the next encoder that may start now, if any."""
        running = list(self._running.values())
        for name, trains in self._waiting.items():
            if running.count(trains) < self._limits[trains]:
                self._running[name] = self._waiting.pop(name)
                return name
        return None

    def ended(self, name: str, outcome: Any) -> Any:
        """Let another one start; the outcome counts."""
        del self._running[name]
        return outcome


def train(
    job: PretrainRun,
    pool: WorkerPool,
    stop: threading.Event,
    on_status: Callable[[dict[str, Any]], None],
    mirror: CheckpointSyncSettings | None = None,
    cluster: ClusterSettings | None = None,
) -> dict[str, Any]:
    """Train one encoder where `cluster` says, resuming from its newest checkpoint, local or on S3.

    If an earlier process submitted the job to a cluster and it is still there, follow it instead.

    Raises what `tasks.jobs.supervision.supervise`, `mirrored` and `tasks.cluster.launchers` raise.
    """
    run_dir, key, settings = RunDir(job.run_dir), JobKey.of(job.digest, job.run_dir), cluster or ClusterSettings()

    def attempt() -> JobEnd:
        with mirrored(mirror if job.recipe.phases else None, run_dir.path.name, run_dir.checkpoints, stop):
            owner = newest_owner(run_dir.path)
            launcher = launcher_named(owner.launcher if owner else "", settings)
            if launcher is not None and find_patiently(launcher, key, stop) is not None:
                echo(f"  {job_name(job)}: follows the {launcher.title} job that an earlier run submitted")
                return follow(launcher, key, run_dir, stop, on_status)
            _refuse_if_it_runs(job, owner)
            launcher = launcher_named(settings.launcher, settings) if job.recipe.phases else None
            claimed = (settings.launcher, "") if launcher is not None else ("local", _this_process())
            mine = claim(run_dir.path, owner.attempt if owner else 0, *claimed)
            if mine is None:
                raise Paused(f"{job_name(job)}: another process has just started it; run the same command again")
            run = job.model_copy(update={"attempt": mine.attempt})
            write_json(run_dir.pretrain_config, run.model_dump(mode="json"))
            run_dir.status.unlink(missing_ok=True)
            if launcher is not None:
                number = launcher.submit(ClusterJob.of_pretraining(run, settings.pretrain, Path.cwd()))
                echo(f"  {job_name(job)}: {launcher.title} job {number} on {job.machine.num_nodes} nodes")
                return follow(launcher, key, run_dir, stop, on_status)
            return run_attempt(
                "model.pretrain",
                job.digest,
                run_dir.pretrain_config,
                run_dir,
                pool,
                stop,
                num_ranks=job.machine.num_devices,
                on_status=on_status,
            )

    try:
        return supervise(job_name(job), job.digest, run_dir, attempt, stop)
    except LauncherUnavailable as reason:
        raise Paused(f"{job_name(job)}: {reason}; run the same command again") from None


def _this_process() -> str:
    return f"{os.getpid()}@{psutil.Process().create_time()}"


def _refuse_if_it_runs(job: PretrainRun, owner: Owner | None) -> None:
    """Refuse a job that a process on this or another machine trains.

    Raises:
        UserError: it does.
    """
    if owner is None or owner.launcher != "local" or owner.id == _this_process():
        return
    number, _, created = owner.id.partition("@")
    status = RunDir(job.run_dir).read_status()
    if owner.host == socket.gethostname():
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(int(number)).create_time() == float(created):
                raise UserError(f"{job_name(job)}: process {number} trains it; wait for it, or stop it")
    elif status.get("state") == "running" and abs(time.time() - status["time"]) < _SILENT_SECONDS:  # clocks may jump
        raise UserError(
            f"{job_name(job)}: process {number} on {owner.host} trains it; wait for it, or stop it "
            f"(if it was killed, run this command again in {_SILENT_SECONDS / 60:.0f} minutes)"
        )


def required_bytes(job: PretrainRun, is_mirrored: bool = False) -> int:
    """Upper bound of a job's disk usage: its checkpoints (fp32 weights and two moments), one being written, one being
    uploaded, and the encoder."""
    vocab_size = read_json(job.tokens_dir / "index.json")["vocab_size"]
    config = job.encoder_config(vocab_size)
    hidden, layers = config.hidden_size, config.num_hidden_layers
    num_parameters = hidden * (vocab_size + 1024) + layers * (4 * hidden**2 + 2 * hidden * config.intermediate_size)
    return 4 * num_parameters * (3 * (job.recipe.checkpoints_kept + 1 + is_mirrored) + 1)


def assemble(jobs: Sequence[PretrainRun], published_dir: Path, out_dir: Path) -> None:
    """Write out_dir/<encoder>/ with the encoder, metrics.json and the last checkpoint."""
    for job in jobs:
        run_dir, target = RunDir(job.run_dir), RunDir(out_dir / job.name)
        result = run_dir.read_result(job.digest)
        if result is None or not run_dir.encoder.is_dir():
            copy_tree(published_dir / job.name, target.path)
            result = read_json(target.metrics)
        else:
            copy_tree(run_dir.encoder, target.path)
            checkpoints = sorted(run_dir.checkpoints.glob("step-*"))
            if checkpoints:
                copy_tree(checkpoints[-1], target.last_checkpoint)
        # Encoders with equal settings share a result, which therefore does not say whose it is.
        kept = {key: value for key, value in result.items() if key not in ("system", "seed")}
        member = {"system": job.system, "seed": job.seed} if job.system != job.name else {}
        write_json(target.metrics, {**kept, "name": job.name, **member})


class CheckpointBucket:
    """The checkpoints of one job, below settings.url/`name`. For one thread at a time.

    Every method raises S3Refused or S3Unavailable.
    """

    def __init__(self, settings: CheckpointSyncSettings, name: str) -> None:
        self.location = f"{settings.url.rstrip('/')}/{name}"
        # Few attempts: the uploader waits and tries again.
        self._client = S3Client(settings.endpoint_url, attempts=2, connect_timeout=5, read_timeout=30)

    def steps(self) -> dict[str, bool]:
        """Folder name → True if the checkpoint is whole, newest first."""
        return {step: _is_whole(names) for step, names in self._files().items()}

    def _files(self, step: str = "") -> dict[str, set[str]]:
        """Folder name → names of the files of a checkpoint in it, of one step or of all, newest first."""
        found: dict[str, set[str]] = {}
        for entry in self._client.list(f"{self.location}/{step and f'{step}/'}"):
            folder, _, name = entry.location.removeprefix(f"{self.location}/").partition("/")
            if _STEP.fullmatch(folder) and FILE.fullmatch(name):
                found.setdefault(folder, set()).add(name)
        return dict(sorted(found.items(), reverse=True))

    def has(self, path: Path) -> bool:
        """Check whether S3 holds exactly this checkpoint."""
        try:
            remote = self._client.read(self._file(path.name, DIGESTS))
            return bool(json.loads(remote) == json.loads((path / DIGESTS).read_bytes()))
        except (S3Refused, ValueError, FileNotFoundError):  # no such object, or a damaged one
            return False

    def send(self, path: Path) -> bool:
        """Upload a checkpoint; DIGESTS is deleted first and written last, so an incomplete upload is never whole.

        Returns:
            False if training has removed the checkpoint, so that a newer one exists.
        """
        with contextlib.ExitStack() as opened:
            try:  # open files outlive their names: training may remove the checkpoint in the meantime
                content = content_of([file.name for file in path.iterdir()])
                streams = {name: opened.enter_context((path / name).open("rb")) for name in [*content, DIGESTS]}
            except FileNotFoundError:
                return False
            if not content:
                return False
            left = self._files(path.name).get(path.name, set())  # by an upload of other parts
            self._remove(path.name, {DIGESTS} | left.difference(content))
            for name, stream in streams.items():  # in this thread, which has a low priority
                self._client.upload(stream, self._file(path.name, name), use_threads=False)
        return True

    def keep(self, num_kept: int) -> None:
        """Remove all but the newest whole checkpoints, and incomplete ones that are older than those."""
        found = self._files()
        whole = [step for step, names in found.items() if _is_whole(names)][:num_kept]
        for step, names in found.items():
            if whole and step not in whole and step < whole[0]:
                self._remove(step, names)

    def fetch(self, step: str, directory: Path) -> None:
        """Download a checkpoint into `directory`, whole or not at all.

        Raises:
            Damaged: the files differ from their digests.
        """
        with atomic_directory(directory / step) as partial:
            for name in self._files(step)[step]:
                self._client.download(self._file(step, name), partial / name)
            try:
                check_files(partial)
            except Damaged as error:
                raise Damaged(str(error).replace(partial.name, step)) from None

    def _remove(self, step: str, names: Collection[str]) -> None:
        for name in sorted(names, key=lambda name: name != DIGESTS):  # a kill leaves no folder that looks whole
            self._client.delete(self._file(step, name))

    def _file(self, step: str, name: str) -> str:
        return f"{self.location}/{step}/{name}"


def _is_whole(names: Collection[str]) -> bool:
    return DIGESTS in names and bool(content_of(names))


@contextlib.contextmanager
def mirrored(
    settings: CheckpointSyncSettings | None, name: str, directory: Path, stop: threading.Event
) -> Iterator[None]:
    """Sync the checkpoints in `directory` with S3 while the block runs; without settings, do nothing.

    Args:
        name: name of the job with its digest, used as the folder on S3.
        directory: checkpoint directory of the training run.
        stop: set when the run was asked to stop.

    Raises:
        UserError: S3 refuses the request: no such bucket, no access, no credentials.
        Paused: S3 does not respond, and there is no local checkpoint to resume from.
    """
    if settings is None:
        yield
        return
    job = CheckpointBucket(settings, name)
    _restore(job, directory, settings.patience_seconds, stop)
    uploader = _Uploader(job, directory, settings.num_kept)
    uploader.start()
    try:
        yield
    finally:
        if left := uploader.drain(settings.stop_seconds if stop.is_set() else settings.drain_seconds):
            why = f" ({uploader.reason})" if uploader.reason else ""
            warn(
                f"cloze: mirror: {left} was not uploaded in time{why}; it is kept locally, and the next run uploads it"
            )


def _restore(job: CheckpointBucket, directory: Path, patience_seconds: float, stop: threading.Event) -> None:
    """Download the newest whole checkpoint, if it is newer than the local one."""
    local = _newest_whole(directory)
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            _fetch_newer(job, directory, local)
            return
        except S3Refused as fault:
            raise UserError(f"mirror: {fault}") from None
        except S3Unavailable as fault:
            if local:
                warn(f"cloze: mirror: {fault}; resuming from the local checkpoint {local}")
                return
            if time.monotonic() >= deadline or stop.is_set():
                raise Paused(
                    f"mirror: {fault}; there is no local checkpoint, but S3 may hold one: run again when S3 responds,"
                    " or remove `mirror` from params.yaml to start from the beginning"
                ) from None
        stop.wait(1.0)


def _newest_whole(directory: Path) -> str:
    for path in sorted(directory.glob("step-*"), reverse=True):
        with contextlib.suppress(Damaged):
            check_files(path)
            return path.name
    return ""


def _fetch_newer(job: CheckpointBucket, directory: Path, local: str) -> None:
    steps = [step for step, whole in job.steps().items() if whole and step > local]
    for step in steps:
        try:
            job.fetch(step, directory)
        except Damaged as fault:
            is_last = step == steps[-1] and not local
            then = "training starts from the beginning" if is_last else "trying the previous checkpoint"
            warn(f"cloze: mirror: {fault} (in {job.location}); skipped, {then}")
            continue
        echo(f"cloze: mirror: downloaded {step} from {job.location}")
        return


class _Uploader(threading.Thread):
    """Watches a checkpoint directory and uploads the newest checkpoint.

    An upload in progress is completed even if newer checkpoints appear, so a slow connection uploads some of them;
    after a failure, the newest checkpoint is next.
    """

    def __init__(self, job: CheckpointBucket, directory: Path, num_kept: int) -> None:
        super().__init__(daemon=True, name="mirror")
        self._job, self._directory, self._num_kept = job, directory, num_kept
        self._ending = threading.Event()
        self._deadline = float("inf")
        self._sent = ""  # the newest checkpoint on S3
        self.reason = ""
        """Reason why the last attempt failed; empty after a success."""

    def run(self) -> None:
        """Upload until `drain` was called and everything is uploaded, or its time is over."""
        lower_priority()
        failures = 0
        while time.monotonic() < self._deadline:
            path = self._unsent()
            if path is None:
                if self._ending.wait(EVERY_SECONDS) and self._unsent() is None:
                    return
                continue
            failures = 0 if self._try(path) else failures + 1
            if failures and self._ending.wait(min(2.0 ** (failures - 1), LONGEST_WAIT_SECONDS)):
                time.sleep(min(1.0, max(0.0, self._deadline - time.monotonic())))

    def drain(self, seconds: float) -> str:
        """Finish within `seconds`; the name of a checkpoint that was not uploaded, or an empty string."""
        self._deadline = time.monotonic() + seconds
        self._ending.set()
        self.join(seconds)
        path = self._unsent()
        return path.name if path is not None else ""

    def _unsent(self) -> Path | None:
        """The newest checkpoint, unless S3 has it; training renames complete checkpoints into place."""
        newest = max((path for path in self._directory.glob("step-*") if (path / DIGESTS).is_file()), default=None)
        return newest if newest is not None and newest.name != self._sent else None

    def _try(self, path: Path) -> bool:
        try:
            if not self._job.has(path) and not self._job.send(path):
                return True
            self._sent = path.name
            self._job.keep(self._num_kept)
        except (S3Refused, S3Unavailable, OSError) as fault:
            reason = str(fault) if isinstance(fault, S3Refused | S3Unavailable) else type(fault).__name__
            if reason != self.reason:
                warn(f"cloze: mirror: {path.name} is not uploaded yet ({reason}); training continues, retrying")
            self.reason = reason
            return False
        if self.reason:
            echo(f"cloze: mirror: {path.name} is uploaded")
        self.reason = ""
        return True
