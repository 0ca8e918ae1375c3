"""Digests of all jobs of the shipped parameter files, as they were when recorded.

A digest names a job, so a changed one trains the job again for everybody. When this fails after a deliberate change,
bump the stage's number in tasks/versions.py, then run `python -m tests.test_job_digests`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from model.benchmarks.table import BENCHMARKS
from model.common.files import read_json, write_json
from model.tokenizer.wordpiece import SPECIAL_TOKENS, make_tokenizer, save_tokenizer, tokenizer_digest
from tasks import versions
from tasks.finetune.plan import Planner, find_encoders
from tasks.params.root import Params, load_params
from tasks.pretrain.pretrain import plan_encoders

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("job_digests.json")
SHIPPED = sorted(
    path.relative_to(ROOT).as_posix() for path in [ROOT / "params.yaml", *(ROOT / "params").glob("*.yaml")]
)
CUSTOM_TASK = {"head": "classes", "train": "films.csv", "dev": "films-dev.csv", "columns": {"first": "text"}}
EXTRA: dict[str, Any] = {
    "tasks": ["tasks/films.yaml"],
    "seeds": [1, 2],
    "benchmarks": {
        "rte": {"after": "mnli"},
        "mnli": None,
        "squad2": {"after": "squad1", "start": "same-seed", "keep_head": True},
        "squad1": None,
        "films": None,
    },
    "machine": {"precision": "bf16"},
}
"""Chains of benchmarks, a custom task, a precision: what no shipped file has."""


def make_inputs(folder: Path) -> None:
    """Inputs of a few bytes that no code of ours computes, so that they are the same on every machine."""
    tokenizer = make_tokenizer([*SPECIAL_TOKENS, "a", "b"])
    save_tokenizer(tokenizer, folder / "tokenizer")
    index = {"tokenizer_digest": tokenizer_digest(tokenizer), "vocab_size": tokenizer.get_vocab_size()}
    write_json(folder / "tokens" / "index.json", index)
    for row in BENCHMARKS.values():
        for name in [row.train, *row.dev.values()]:
            (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "data" / name).write_text(f"{name}\n-DOCSTART-\n")
    (folder / "data" / "tasks").mkdir()
    (folder / "data" / "tasks" / "films.yaml").write_text(yaml.safe_dump(CUSTOM_TASK))
    for name in ("films.csv", "films-dev.csv"):
        (folder / "data" / "tasks" / name).write_text("id,text,label\n1,good,a\n2,bad,b\n")


def digests(params: Params, folder: Path) -> dict[str, str]:
    """Digests of pre-training jobs by encoder, and of fine-tuning jobs by their place in the plan."""
    pretraining = plan_encoders(
        params.pretrain, folder / "tokens", folder / "tokenizer", folder / "data", folder / "runs", versions.pretrain
    )
    found = {f"pretrain {planned.name}": planned.digest for planned in pretraining}
    pretrained = folder / "pretrain"
    for planned in pretraining:
        write_json(pretrained / planned.name / "metrics.json", {"num_steps": planned.recipe.num_steps})
        (pretrained / planned.name / "model.safetensors").write_bytes(planned.name.encode())
    encoders = [one for one in find_encoders([], pretrained, folder / "data") if f"pretrain {one.name}" in found]
    planner = Planner(params.finetune, encoders, folder / "data", folder / "runs", versions.finetune)
    score = lambda one: {  # noqa: E731
        "digest": one.digest,
        "seed": one.job.seed,
        "recipe": one.job.recipe.model_dump(mode="json"),
        "degenerate": False,
        "headline": {"metric": "accuracy", "value": int(one.digest, 16) / 16**16},  # no two are equal
    }
    for group in planner.groups(score):
        for number, one in enumerate([*group.jobs, *group.pruned]):
            found[f"finetune {one.job.encoder_name} {one.job.benchmark} {number} seed {one.job.seed}"] = one.digest
    return found


def all_digests(folder: Path) -> dict[str, dict[str, str]]:
    make_inputs(folder)
    found = {}
    for name in SHIPPED:
        found[name] = digests(load_params(ROOT / name), folder)
    values = yaml.safe_load((ROOT / "params.yaml").read_text())
    values["finetune"] = {**values["finetune"], **EXTRA}
    found["chains and a custom task"] = digests(Params.parse(values, "test"), folder)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    return all_digests(tmp_path_factory.mktemp("digests"))


@pytest.mark.parametrize("name", [*SHIPPED, "chains and a custom task"])
def test_jobs_have_the_recorded_digests(found: dict[str, dict[str, str]], name: str) -> None:
    assert found[name] == read_json(TABLE)[name]


def test_the_table_is_of_these_files_alone() -> None:
    assert set(read_json(TABLE)) == {*SHIPPED, "chains and a custom task"}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_json(TABLE, all_digests(Path(folder)))
