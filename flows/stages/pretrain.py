"""The pre-training stage: one job, in its own process, for each encoder."""

from __future__ import annotations

from flows.fanout import NameQueue, fan_out
from flows.stage_flow import StageRun, stage_flow, stage_run
from model.common.run_dir import RunDir
from model.config.pretrain_run import PretrainRun
from tasks import prefect_tasks
from tasks.pretrain.pretrain import assemble, finished, plan_encoders, required_bytes, train
from tasks.project import signals
from tasks.project.workspace import require_space


@stage_flow("pretrain")
def pretrain() -> None:
    """Train every encoder in params.yaml that has no result yet."""
    with stage_run("pretrain") as run:
        build = run.project.build
        params = run.params.pretrain
        planned = plan_encoders(
            params, build / "tokens", build / "tokenizer", run.project.data, run.runs_dir, run.snapshot.version
        )
        todo = {one.name: one for one in planned if finished(one, run.published) is None}
        require_space(
            build, sum(required_bytes(one, run.params.mirror is not None) for one in todo.values()), "pre-training"
        )

        @prefect_tasks.job(name="train-encoder", task_run_name="{name}")
        def train_encoder(name: str) -> None:
            _train(run, todo[name])

        fan_out("pretrain", train_encoder, NameQueue(list(todo), params.num_parallel), params.num_parallel)
        assemble(planned, run.published, run.out_dir)
    for one in planned:
        RunDir(one.run_dir).remove_artifacts()


def _train(run: StageRun, job: PretrainRun) -> None:
    run_dir = RunDir(job.run_dir)
    tags = {"cloze.stage": "pretrain", "cloze.encoder": job.name, "cloze.seed": str(job.seed)}
    bar = run.add_bar(f"pretrain {job.name}")
    artifacts = [(run_dir.pretrain_config, "config"), (run_dir.log, "log"), (run_dir.timing, "log")]
    artifacts += [(run_dir.encoder / name, "encoder") for name in ("config.json", "vocab.txt")]
    config = job.model_dump(mode="json")
    with run.track_job(job.digest, f"pretrain {job.name}", tags, config, run_dir.metrics_log, artifacts) as metrics:
        result = train(
            job,
            signals.requested,
            lambda state: bar.update(state.get("step", 0), state.get("num_steps", 0), state.get("message") or ""),
            run.params.mirror,
        )
        metrics.update({f"final/{name}": value for name, value in result["final"].items()})
