"""The corpus stage: extracts documents of sentences from raw dumps, tables and books."""

from __future__ import annotations

from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from flows.stage_flow import stage_flow, stage_run
from model.benchmarks.custom_task import is_custom
from model.common.files import read_json
from tasks.corpus.build_corpus import build_corpus
from tasks.corpus.data_card import PAGE_NAME, REPORT_NAME, summary_lines
from tasks.corpus.executors import DaskCluster
from tasks.dvc.stage_snapshot import check_declared
from tasks.jobs.resources import num_cores
from tasks.prefect_tasks import step
from tasks.project.progress import echo
from tasks.project.workspace import folder_bytes, require_space


@stage_flow("corpus")
def corpus() -> dict[str, Any]:
    """Read every source in params.yaml, extract its prose, and write one document per row."""
    with stage_run("corpus") as run:
        require_space(run.project.build, 2 * folder_bytes(run.project.data), "the corpus")
        for name in filter(is_custom, run.params.corpus.contamination.benchmarks):
            check_declared(run.project, "corpus", run.project.data / name)
        bar = run.add_bar("corpus")
        scheduler = run.params.corpus.scheduler
        # On a cluster, each partition is a task that copies this context, so the build itself is no task there.
        build = build_corpus if scheduler else step(build_corpus, name="build-corpus")
        summary = dict(
            build(
                run.params.corpus,
                run.project.data,
                run.out_dir,
                bar.update,
                num_workers=num_cores(),
                partitions_dir=run.runs_dir,
                executor=DaskCluster(scheduler, step(name="clean-unit")) if scheduler else None,
            )
        )
        run.tracking.note(
            metrics={f"corpus/{name}": value for name, value in summary.items() if isinstance(value, int)}
        )
        if summary["missing"]:
            echo(f"corpus: not checked for contamination, because files are missing: {', '.join(summary['missing'])}")
        run.artifacts.extend((name, "corpus") for name in (PAGE_NAME, REPORT_NAME))
        create_markdown_artifact(key="corpus-card", markdown=summary_lines(read_json(run.out_dir / REPORT_NAME)))
        create_table_artifact(
            key="corpus", table=[{"what": name, "value": str(value)} for name, value in summary.items()]
        )
    return summary
