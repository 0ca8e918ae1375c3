"""Pre-training jobs as files, for a cluster to run: the stage takes their results over (docs/cluster.md)."""

from __future__ import annotations

from pathlib import Path

from model.common.files import write_json
from tasks.dvc.stage_snapshot import code_version
from tasks.params.root import load_params
from tasks.pretrain.pretrain import finished, plan_encoders
from tasks.project.progress import say
from tasks.project.project import Project


def write_here(project: Project) -> list[Path]:
    """Write RUN.json of every encoder that has no result yet, and print where.

    Raises:
        UserError: tokens or tokenizer are missing, or do not belong together.
    """
    build = project.build
    params = load_params(project.params_path).pretrain
    version = code_version(project, "pretrain")
    planned = plan_encoders(
        params, build / "tokens", build / "tokenizer", project.data, project.runs / "pretrain", version
    )
    written = []
    for one in planned:
        if finished(one, build / "pretrain") is None:
            path = one.run_dir.pretrain_config
            write_json(path, one.job.model_dump(mode="json"))
            print(project.relative(path))
            written.append(path)
    if not written:
        say("every encoder has its result; nothing is to be trained")
    return written
