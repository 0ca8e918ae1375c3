"""The flow of each stage in dvc.yaml, and the pipeline flow, which runs stale stages as subflows and records them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

from prefect import Flow, flow
from prefect.artifacts import create_markdown_artifact

from flows import links
from flows.stage_flow import (
    StageRun,
    cancelled_when_stopped,
    counted,
    fan_out,
    name_flow_run,
    note_outputs,
    say,
    stage_flow,
    stage_run,
    tracked,
)
from model.benchmarks.sources import files_of, train_source
from model.common.errors import UserError
from model.common.files import read_json, write_json
from model.common.run_dir import RunDir
from model.config.pretraining import PretrainRun
from model.finetune.job import dev_metrics
from tasks.cluster.dask_cluster import is_remote, stage_cluster
from tasks.cluster.node_pool import MOST_JOBS, Node, NodePool
from tasks.corpus.build_corpus import build_corpus
from tasks.corpus.data_card import PAGE_NAME, REPORT_NAME, one_line, summary_lines
from tasks.corpus.executors import DaskCluster
from tasks.dvc.earlier_outputs import EarlierOutputs
from tasks.dvc.graph import Graph
from tasks.dvc.integrity import pinned_data
from tasks.dvc.stage_snapshot import Snapshot
from tasks.finetune.plan import Planner, find_encoders, weight_bytes
from tasks.finetune.results import PlannedEnsemble, Work, run_ensemble, run_one, summary
from tasks.finetune.scheduler import JobQueue, JobScheduler, MemoryEstimator, assemble, describe
from tasks.jobs.local_launcher import WorkerPool, worker_pool
from tasks.jobs.resources import Allocation, Resources, find_resources, num_cores
from tasks.jobs.supervision import JobsFailed
from tasks.leaderboard import history
from tasks.leaderboard.board import build_leaderboard, flat_metrics, flat_params, flat_tags
from tasks.leaderboard.inputs import Inputs
from tasks.leaderboard.page import render_page
from tasks.leaderboard.schema import Leaderboard, RunSystem, SystemCost
from tasks.params.root import load_params
from tasks.prefect_tasks import cached, job, packed_job, record, step
from tasks.pretrain import pretrain as pretraining
from tasks.project import signals
from tasks.project.progress import echo, shortened, warn, working
from tasks.project.project import Project
from tasks.project.workspace import folder_bytes, require_space, run_id
from tasks.sample import NO_GAIN_EXPECTED, is_sample, read_sample_record
from tasks.tokens.tokenizer import train_tokenizer
from tasks.tokens.tokens import build_tokens, example_pair
from tasks.tracking import tracking


@stage_flow("corpus")
def corpus() -> Mapping[str, Any]:
    """Read every source in params.yaml, extract its prose, and write one document per row."""
    with stage_run("corpus") as run:
        require_space(run.project.build, 2 * folder_bytes(run.project.data), "the corpus")
        bar = run.add_bar("corpus")
        # On corpus.scheduler, each partition is a task that copies this context, so the build itself is no task there.
        has_tasks = run.params.corpus.scheduler is not None
        build = build_corpus if has_tasks else step(build_corpus, name="build-corpus")
        with contextlib.ExitStack() as stack:
            cluster = stage_cluster("corpus", run.params, run.project.runs, signals.requested)
            as_task = step(name="clean-unit") if has_tasks else None
            executor = DaskCluster(lambda: stack.enter_context(cluster), as_task)
            summary: Mapping[str, Any] = build(
                run.params.corpus,
                run.project.data,
                run.out_dir,
                bar.update,
                num_workers=num_cores(),
                partitions_dir=run.runs_dir,
                executor=executor if is_remote("corpus", run.params) else None,
            )
        say(f"  {one_line(summary)}")
        counts = {f"corpus/{name}": value for name, value in summary.items() if isinstance(value, int)}
        run.tracking.note(metrics=counts)
        if summary["missing"]:
            warn(f"corpus: not checked for contamination, because files are missing: {', '.join(summary['missing'])}")
        run.artifacts.extend((name, "corpus") for name in (PAGE_NAME, REPORT_NAME))
        page = links.page_of(run.project, links.CORPUS_CARD)
        card = summary_lines(read_json(run.out_dir / REPORT_NAME), page)
        create_markdown_artifact(key="corpus-card", markdown=card)
    return summary


@stage_flow("tokenizer")
def tokenizer() -> None:
    """Train the vocabulary, or copy an existing one."""
    with stage_run("tokenizer") as run:
        bar = run.add_bar("tokenizer")
        train = step(train_tokenizer, name="train-tokenizer")
        train(run.params.tokenizer, run.project.build / "corpus", run.out_dir, bar.update)
        run.artifacts.append(("vocab.txt", "tokenizer"))


@stage_flow("tokens")
def tokens() -> None:
    """Tokenize every document and split off the held-out documents."""
    with stage_run("tokens") as run:
        build = run.project.build
        require_space(build, 3 * folder_bytes(build / "corpus"), "the tokens")
        bar = run.add_bar("tokens")
        tokenize = step(build_tokens, name="build-tokens")
        summary = tokenize(run.params.tokens, build / "corpus", build / "tokenizer", run.out_dir, bar.update)
        example = example_pair(run.out_dir, build / "tokenizer")
        write_json(run.out_dir / "example.json", example)
        echo(shortened(f"  {example['pair'] or 'packed'}: {example['text']}"))
        echo(shortened(f"  answers: {' '.join(example['answers'])}"))
        num_tokens = {f"tokens/{part}": float(counts["num_tokens"]) for part, counts in summary["parts"].items()}
        run.tracking.note(metrics=num_tokens)


@stage_flow("pretrain")
def pretrain() -> None:
    """Train every encoder in params.yaml that has no result yet."""
    with stage_run("pretrain") as run:
        build = run.project.build
        params = run.params.pretrain
        planned = pretraining.plan_encoders(
            params,
            build / "tokens",
            build / "tokenizer",
            run.project.data,
            run.runs_dir,
            run.snapshot.version,
            run.params.fetch.models,
            run.params.pretrain_machine,
        )
        todo = {one.name: one for one in planned if pretraining.finished(one, run.published) is None}
        earlier = EarlierOutputs(run.project, "pretrain")
        for name in [name for name, one in todo.items() if pretraining.take_result(one, earlier)]:
            say(f"  {pretraining.job_name(todo.pop(name))}: restored from the DVC cache")
        has_mirror = run.params.mirror is not None
        num_bytes = sum(pretraining.required_bytes(one, has_mirror) for one in todo.values())
        require_space(build, num_bytes, "pre-training")

        @job(name="train-encoder", task_run_name="pretrain/{name}")
        def train_encoder(name: str) -> None:
            _train(run, todo[name], pool)

        queue = pretraining.EncoderQueue(todo.values(), params.num_parallel)
        with worker_pool(run.project.runs) as pool:
            fan_out("pretrain", train_encoder, queue, queue.num_slots)
        pretraining.assemble(planned, run.published, run.out_dir)
    for one in planned:
        RunDir(one.run_dir).remove_artifacts()


def _train(run: StageRun, planned: PretrainRun, pool: WorkerPool) -> None:
    run_dir, name = RunDir(planned.run_dir), pretraining.job_name(planned)
    tags = {"encoder": planned.name, "seed": str(planned.seed)}
    bar = run.add_bar(planned.name)
    artifacts = [(run_dir.pretrain_config, "config"), (run_dir.log, "log"), (run_dir.timing, "log")]
    with run.track_job(
        planned.digest,
        name,
        planned,
        tags,
        run_dir,
        artifacts,
        {"build/corpus": "training", "build/tokens": "training"},
    ) as metrics:
        result = pretraining.train(
            planned,
            pool,
            signals.requested,
            lambda status: bar.update(*pretraining.progress(status)),
            run.params.mirror,
            run.params.cluster,
        )
        metrics.update({f"final/{metric}": value for metric, value in result["final"].items()})
    bar.close()
    say(f"  {name}: {pretraining.summary(result, run_dir)}")


@stage_flow("finetune")
def finetune(allow_missing: bool = False) -> None:
    """Fine-tune every encoder on every benchmark in params.yaml; jobs that have a result are skipped.

    Args:
        allow_missing: Publish the finished jobs even if others failed; the failure is raised afterwards.
    """
    with stage_run("finetune") as run:
        params = run.params.finetune
        encoders = find_encoders(params.encoders, run.project.build / "pretrain", run.project.data)
        planner = Planner(params, encoders, run.project.data, run.runs_dir, run.snapshot.version)
        scheduler = JobScheduler(planner, run.runs_dir, run.published, EarlierOutputs(run.project, "finetune"))
        failure: JobsFailed | None = None
        try:
            _run_jobs(run, scheduler)
        except JobsFailed as error:
            if not allow_missing:
                raise
            failure = error
        assemble(scheduler, run.out_dir)
        write_json(run.out_dir / "plan.json", describe(scheduler))
    for one in scheduler.jobs():
        one.run_dir.remove_artifacts(keep_model=planner.wants_seeds_of(one.job.benchmark))
    if failure is not None:
        raise failure


def _run_jobs(run: StageRun, scheduler: JobScheduler) -> None:
    scheduler.tidy()
    if not scheduler.ready():
        return
    params = run.params.finetune
    with contextlib.ExitStack() as stack:
        resources: Resources
        place_of: Callable[[str], WorkerPool | Node]
        if not is_remote("finetune", run.params):
            pool = stack.enter_context(worker_pool(run.project.runs))
            resources = find_resources(params.machine, params.num_workers, params.memory_bytes, params.jobs_per_device)
            num_slots, place_of = resources.num_jobs, lambda _: pool
        else:
            cluster = stage_cluster("finetune", run.params, run.project.runs, signals.requested)
            endpoint = stack.enter_context(cluster)
            client = stack.enter_context(endpoint.client())
            resources = nodes = stack.enter_context(NodePool(endpoint, client, params, signals.requested))
            num_slots, place_of = MOST_JOBS, nodes.node_of
        largest = max((weight_bytes(encoder.folder) for encoder in scheduler.planner.encoders), default=0)
        require_space(run.project.build, largest * (len(scheduler.groups) + resources.num_jobs), "fine-tuning")
        queue = JobQueue(scheduler, resources, MemoryEstimator())
        run.add_bar("finetune", poll=lambda bar: queue.progress.show(bar))

        @packed_job(name="fine-tune", task_run_name="{name}")
        def fine_tune(name: str) -> dict[str, Any]:
            work, allocation = queue.work(name)
            return _run_job(run, work, allocation, place_of(name))

        fan_out("finetune", fine_tune, queue, num_slots)


def _run_job(run: StageRun, work: Work, allocation: Allocation, pool: WorkerPool | Node) -> dict[str, Any]:
    planned = work.members[0].job if isinstance(work, PlannedEnsemble) else work.job
    seed = "ensemble" if isinstance(work, PlannedEnsemble) else str(planned.seed)
    tags = {"encoder": planned.encoder_name, "benchmark": planned.benchmark, "seed": seed}
    files = work.run_dir
    artifacts = [(files.finetune_config, "config"), (files.result, ""), (files.log, "log")]
    artifacts += [(files.predictions, "predictions"), (files.errors, "predictions")]
    train = train_source(planned.row, planned.data_dir).paths
    inputs = {
        run.project.relative(path): "training" if path in train else "validation"
        for _, path in files_of(planned.row, planned.data_dir)
    }
    with run.track_job(work.digest, work.name, planned, tags, files, artifacts, inputs) as metrics:
        if isinstance(work, PlannedEnsemble):
            result = run_ensemble(work, run.published, pool, signals.requested)
        else:
            result = run_one(work, run.published, pool, allocation.device, signals.requested)
        metrics.update(dev_metrics(result))
    say(f"  {work.name}: {summary(result, files)}")
    return result


@stage_flow("leaderboard")
def leaderboard(allow_missing: bool = False) -> None:
    """Build the leaderboard of the published fine-tuning jobs, and record it in the project's history."""
    with stage_run("leaderboard") as run:
        finetune_dir = run.project.build / "finetune"
        plan = read_json(finetune_dir / "plan.json")
        run.add_bar("leaderboard", "comparing systems")
        build = step(build_leaderboard, name="build-leaderboard")
        settings = run.params.leaderboard
        synthetic = is_sample(run.project.data, read_sample_record(run.project.sample_record))
        board = build(
            finetune_dir,
            run.project.build / "pretrain",
            plan["encoders"],
            plan["benchmarks"],
            run.out_dir,
            allow_missing=allow_missing,
            notes=run.params.leaderboard.notes,
            reference=run.params.leaderboard.reference,
            paper_scores=not synthetic if settings.paper_scores is None else settings.paper_scores,
            controls=NO_GAIN_EXPECTED if synthetic else {},
        )
        links.show_leaderboard(run.project, board, links.leaderboard_page(run.project))
        cost = history.costs(run.project.runs, [one for one in board.systems if isinstance(one, RunSystem)])
        _track(run, board, cost)
        run.artifacts.append(("", "leaderboard"))
        run.when_published.append(lambda: _record(run, board, cost))


def _track(run: StageRun, board: Leaderboard, cost: Mapping[str, SystemCost]) -> None:
    scored = [system for system in board.measured if system.scores]
    averages = {f"average/{system.name}": system.average for system in scored if system.average is not None}
    run.tracking.note(metrics=averages)
    pinned = pinned_data(run.project)
    data = [tracking.DataInput(run.project.data.name, pinned, "validation")] if pinned else []
    for system in sorted(scored, key=lambda one: one.average or 0):  # MLflow lists the newest first
        key = f"system-{system.digest}"
        name = f"{system.name} @{run_id(run.tracking.parent.key)}"
        tags = flat_tags(board, system) | {"mlflow.source.name": "cloze leaderboard"}
        tags["mlflow.note.content"] = links.system_description(run.project, system)
        params = flat_params(system)
        run.tracking.begin(key, name, tags, params, inputs=data, nested=False, model=system.name)
        run.tracking.end(key, "FINISHED", flat_metrics(board, system, cost.get(system.name)))


def _record(run: StageRun, board: Leaderboard, cost: Mapping[str, SystemCost]) -> None:
    project = run.project
    record = history.record_of(board, cost, history.present_run(project))
    page = render_page(board, record)
    path = history.keep(project.leaderboards, record, page, Inputs(project.build / "finetune"))
    run.tracking.note(artifacts=[(path, "leaderboard")])


STAGE_FLOWS: dict[str, Flow[Any, Any]] = {
    stage.name: stage for stage in (corpus, tokenizer, tokens, pretrain, finetune, leaderboard)
}


def run_stale_stages(allow_missing: bool = False, name: str = "") -> list[str]:
    """Bring every stage of dvc.yaml up to date.

    Args:
        allow_missing: Publish a leaderboard even if fine-tuning jobs failed; neither stage is recorded then.
        name: Name of the run; by default, the one that it had before.

    Returns:
        The stages that ran.
    """
    project = Project.find()
    params = load_params(project.params_path)
    with (
        contextlib.closing(Graph(project)) as graph,
        tracked(project, name=name) as tracker,
        worker_pool(project.runs) as pool,
    ):
        name_flow_run(tracker)
        say(f"run {tracker.parent.name}")
        ran: list[str] = []
        failure: JobsFailed | None = None
        for stage in graph.stages:
            if stage not in STAGE_FLOWS:
                raise UserError(f"dvc.yaml: unknown stage '{stage}'; expected one of {', '.join(STAGE_FLOWS)}")
            with working(f"checking {stage}"):
                status = graph.status(stage, after=frozenset(ran))
                restored = bool(status.reasons) and failure is None and graph.restore(status)
            if not status.reasons and failure is None:
                say(f"{counted(stage)}: up to date")
                note_outputs(tracker, project, [stage])
                cached(stage)
                continue
            if restored:
                say(f"{counted(stage)}: restored from the DVC cache")
                note_outputs(tracker, project, [stage])
                ran.append(stage)
                continue
            snapshot = Snapshot.take(project, stage)  # before the line that says that the stage begins
            say(f"{counted(stage)}: {'; '.join(status.reasons[:3])}{' …' if len(status.reasons) > 3 else ''}")
            if stage != "leaderboard" and not is_remote(stage, params):
                pool.warm_up()  # while earlier stages leave a core idle
            options = {"allow_missing": allow_missing} if stage in ("finetune", "leaderboard") else {}
            try:
                STAGE_FLOWS[stage](**options)
            except JobsFailed as error:
                if not allow_missing:
                    raise
                failure = error
            ran.append(stage)
            if failure is None:
                with working(f"recording {stage}"):
                    record(stage, functools.partial(_commit, graph, project, snapshot))
                note_outputs(tracker, project, [stage])
        if failure is not None:
            raise failure
        return ran


pipeline = flow(name="cloze", flow_run_name="cloze run")(cancelled_when_stopped(run_stale_stages))


def _commit(graph: Graph, project: Project, snapshot: Snapshot) -> None:
    """Record the stage with DVC, and undo that if its parameters were edited at the same moment."""
    lock_file = project.root / "dvc.lock"
    before = lock_file.read_bytes() if lock_file.exists() else None
    graph.record(snapshot.stage)
    try:
        snapshot.verify(project)
    except UserError:
        if before is None:
            lock_file.unlink()
        else:
            lock_file.write_bytes(before)
        raise
