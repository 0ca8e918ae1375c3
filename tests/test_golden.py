"""Outputs of each stage as they were when its number in tasks/versions.py was last bumped.

When one of these fails after a deliberate change of behavior: bump the stage's number, then run
`python -m tests.test_golden`. (After a change of the sample world: only the latter.)
Texts are compared by digest; training, which differs in the last bits between machines, by its numbers.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.benchmarks.table import BENCHMARKS
from model.common.files import digest_of, digest_of_file, read_json, write_json
from model.common.state_files import read_state
from tasks import versions
from tasks.corpus.build_corpus import build_corpus
from tasks.corpus.shards import read_documents, shard_paths
from tasks.finetune.plan import Planner, find_encoders
from tasks.jobs.local_launcher import worker_pool
from tasks.params.corpus import CorpusSettings
from tasks.params.finetune import FinetuneParams
from tasks.params.root import PretrainParams, TokenizerSettings, TokensSettings
from tasks.pretrain.pretrain import assemble, plan_encoders, train
from tasks.sample import SMALL, SampleSettings, make_sample
from tasks.tokens.tokenizer import train_tokenizer
from tasks.tokens.tokens import build_tokens

GOLDEN = Path(__file__).with_name("golden.json")
SOURCES = [
    {"name": "wikipedia", "kind": "mediawiki", "path": "wikipedia"},
    {"name": "books", "kind": "books", "path": "books"},
]
PHASES = [{"sequence_length": 32, "batch_size": 8, "num_steps": 6, "learning_rate": 1e-3}]
MACHINE = {"accelerator": "cpu", "precision": "fp32", "num_threads": 1, "compile": "off"}


class World:
    """A small sample and the stages that have run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_sample(folder / "data", SampleSettings(**SMALL))
        build_corpus(CorpusSettings(sources=SOURCES), folder / "data", self.fresh("corpus"))
        train_tokenizer(TokenizerSettings(vocab_size=800), folder / "corpus", self.fresh("tokenizer"), num_workers=1)
        settings = TokensSettings(heldout_fraction=0.1)
        build_tokens(settings, folder / "corpus", folder / "tokenizer", self.fresh("tokens"), num_workers=1)

    def fresh(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir()
        return path


def corpus(world: World) -> Any:
    return digest_of(list(read_documents(shard_paths(world.folder / "corpus"))))


def tokenizer(world: World) -> Any:
    return digest_of_file(world.folder / "tokenizer" / "vocab.txt")


def tokens(world: World) -> Any:
    return read_json(world.folder / "tokens" / "index.json")["parts"]


def pretrain(world: World) -> Any:
    params = PretrainParams.model_validate(
        {
            "recipe": {"phases": PHASES, "warmup_steps": 2, "log_every_steps": 2, "validate_every_steps": 6},
            "encoders": [{"name": "golden", "shape": {"preset": "tiny"}}],
            "machine": MACHINE,
        }
    )
    [planned] = plan_encoders(
        params, world.folder / "tokens", world.folder / "tokenizer", world.folder / "data", world.folder / "runs", 1
    )
    with worker_pool(world.folder / "runs") as pool:
        result = train(planned, pool, threading.Event(), lambda status: None)
    assemble([planned], world.folder / "pretrain", world.folder / "pretrain")
    return result["curve"]


def finetune(world: World) -> Any:
    from model.finetune.run import run_job

    if not (world.folder / "pretrain").exists():
        pretrain(world)
    params = FinetuneParams.model_validate(
        {"recipe": {"num_epochs": 1, "max_train_rows": 48}, "benchmarks": dict.fromkeys(BENCHMARKS), "machine": MACHINE}
    )
    encoders = find_encoders([], world.folder / "pretrain", world.folder / "data")
    planner = Planner(params, encoders, world.folder / "data", world.folder / "runs", 1)
    losses = {}
    for planned in (one for group in planner.groups(lambda _: None) for one in group.jobs):
        run_job(planned.job)
        losses[planned.job.benchmark] = [point["loss"] for point in read_state(planned.job.result_path)["curve"]]
    return losses


STAGES: dict[str, Callable[[World], Any]] = {
    function.__name__: function for function in (corpus, tokenizer, tokens, pretrain, finetune)
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("stage", STAGES)
def test_outputs_are_those_of_the_version(world: World, stage: str) -> None:
    golden = read_json(GOLDEN)[stage]
    advice = f"the outputs of {stage} changed: bump tasks/versions.py and run `python -m tests.test_golden`"
    assert golden["version"] == getattr(versions, stage), "run `python -m tests.test_golden` after a bump"
    found = json.loads(json.dumps(STAGES[stage](world)))
    assert close(found, golden["output"]), advice


def close(one: Any, other: Any) -> bool:
    """Equal, numbers to 1 part in 1,000: sums are made in another order on another machine."""
    if isinstance(one, float) and isinstance(other, float | int):
        return one == pytest.approx(other, rel=1e-3, abs=1e-3)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(close(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(close, one, other))
    return one == other


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        made = World(Path(folder))
        content = {name: {"version": getattr(versions, name), "output": stage(made)} for name, stage in STAGES.items()}
    write_json(GOLDEN, content)
