"""Pre-training jobs as files, for a cluster to run: the stage takes their results over (docs/cluster.md)."""

from __future__ import annotations

from pathlib import Path

from model.errors import UserError
from model.files import write_json
from tasks.params import load_params
from tasks.pretrain import finished, plan_encoders
from tasks.progress import say
from tasks.project import Project
from tasks.stage import Snapshot


def write_here(project: Project) -> list[Path]:
    """Write RUN.json of every encoder that has no result yet, and say where.

    Raises:
        UserError: tokens or tokenizer are missing.
    """
    build = project.build
    if not (build / "tokens" / "index.json").exists() or not (build / "tokenizer" / "tokenizer.json").exists():
        raise UserError("build/tokens or build/tokenizer is missing; `dvc repro tokens` makes them")
    params = load_params(project.params_path).pretrain
    version = Snapshot.take(project, "pretrain").version
    planned = plan_encoders(
        params, build / "tokens", build / "tokenizer", project.data, project.runs / "pretrain", version
    )
    written = []
    for one in planned:
        if finished(one, build / "pretrain") is None:
            path = one.run_dir / "RUN.json"
            write_json(path, one.job.model_dump(mode="json"))
            machine = one.job.machine
            say(f"{project.relative(path)}  ({machine.num_nodes} nodes of {machine.num_devices} devices)")
            written.append(path)
    if not written:
        say("every encoder has its result; nothing is to be trained")
    return written
