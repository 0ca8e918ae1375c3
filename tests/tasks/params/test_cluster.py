"""Validation of the section `cluster`, and what it submits for the workers of a stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from model.common.errors import UserError
from tasks.cluster.dask_cluster import is_remote, workers_job
from tasks.cluster.slurm import SlurmLauncher
from tasks.params.root import Params

NODES = {"nodes": 3, "cpus": 8, "devices": 2, "time_minutes": 60}


def params(root: Path, cluster: dict[str, Any], **sections: dict[str, Any]) -> Params:
    content = yaml.safe_load((root / "params.yaml").read_text())
    for name, values in sections.items():
        content[name].update(values)
    return Params.parse(content | {"cluster": cluster}, "params.yaml")


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"finetune": {"nodes": 2}}, r"cluster.finetune: launcher: local starts nothing on other nodes; set launcher"),
        ({"corpus": {"nodes": 2}}, r"cluster.corpus: launcher: local starts nothing on other nodes"),
        (
            {"launcher": "slurm", "pool": "tcp://a:1", "finetune": {}},
            r"cluster.finetune: the stage runs on cluster.pool; remove one of the two",
        ),
        ({"pool": "host:8786"}, r"cluster.pool: String should match pattern"),
        ({"launcher": "slurm", "finetune": {"options": ["--array=1"]}}, r"Cloze sets --array; remove it"),
    ],
)
def test_mistakes_are_one_line(root: Path, cluster: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        params(root, cluster)
    assert "\n" not in str(caught.value)


def test_the_corpus_has_one_cluster(root: Path) -> None:
    corpus = {"scheduler": "tcp://a:1"}
    with pytest.raises(UserError, match="cluster.corpus: the corpus is cleaned on corpus.scheduler; remove one"):
        params(root, {"launcher": "slurm", "corpus": {}}, corpus=corpus)
    found = params(root, {"pool": "tcp://b:1"}, corpus=corpus)
    assert is_remote("corpus", found) and is_remote("finetune", found) and not is_remote("pretrain", found)


def test_workers_are_an_array_of_jobs(root: Path, tmp_path: Path) -> None:
    found = params(root, {"launcher": "slurm", "finetune": NODES, "corpus": NODES}, finetune={"machine": {}})
    jobs = {stage: workers_job(stage, found, tmp_path) for stage in ("corpus", "finetune")}
    scripts = {stage: SlurmLauncher(found.cluster).manifest(job) for stage, job in jobs.items() if job is not None}
    for stage, kind in (("corpus", "cores"), ("finetune", "node")):
        lines = scripts[stage].splitlines()
        assert {"#SBATCH --array=0-2", "#SBATCH --nodes=1", "#SBATCH --cpus-per-task=8", "#SBATCH --requeue"} <= {
            *lines
        }
        assert f"#SBATCH --job-name={stage}-workers" in lines and "#SBATCH --signal=B:USR1@300" in lines
        assert f"-m tasks.cluster.dask_worker {tmp_path}/nodes/{stage}/connection.json {kind} &" in scripts[stage]
    assert "#SBATCH --gpus-per-node=2" in scripts["finetune"] and "gpus" not in scripts["corpus"]
    assert workers_job("finetune", params(root, {"pool": "tcp://a:1"}), tmp_path) is None
