"""An encoder with several pre-training seeds: one job, directory and fine-tuning per seed, and one system."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.common.errors import UserError
from model.common.files import read_json, write_json
from model.common.run_dir import RunDir
from model.tokenizer.wordpiece import SPECIAL_TOKENS, make_tokenizer, save_tokenizer, tokenizer_digest
from tasks.finetune.plan import find_encoders
from tasks.params.root import PretrainParams
from tasks.pretrain.pretrain import EncoderQueue, assemble, plan_encoders

PHASES = [{"sequence_length": 32, "batch_size": 8, "num_steps": 6, "learning_rate": 1e-3}]


def params_of(*encoders: dict[str, object]) -> PretrainParams:
    return PretrainParams.parse(
        {"recipe": {"phases": PHASES, "warmup_steps": 2}, "encoders": list(encoders)}, "pretrain"
    )


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[Path, Path]:
    tokenizer = make_tokenizer([*SPECIAL_TOKENS, "word"])
    save_tokenizer(tokenizer, tmp_path / "tokenizer")
    index = {"vocab_size": len(SPECIAL_TOKENS) + 1, "tokenizer_digest": tokenizer_digest(tokenizer)}
    write_json(tmp_path / "tokens" / "index.json", index)
    return tmp_path / "tokens", tmp_path / "tokenizer"


def test_each_seed_is_a_job_that_an_encoder_of_the_same_seed_shares(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    params = params_of({"name": "base", "seeds": [3, 7]}, {"name": "single", "seed": 7})
    planned = plan_encoders(params, *inputs, tmp_path / "data", tmp_path / "runs", version=1)
    assert [(one.name, one.system, one.seed) for one in planned] == [
        ("base-seed3", "base", 3),
        ("base-seed7", "base", 7),
        ("single", "single", 7),
    ]
    assert planned[1].digest == planned[2].digest != planned[0].digest
    for one in planned:
        run_dir = RunDir(one.run_dir)
        write_json(run_dir.encoder / "config.json", {})
        write_json(run_dir.result, {"digest": one.digest, "name": "another", "num_steps": 6})
    assemble(planned, tmp_path / "before", tmp_path / "published")
    found = {one.name: (one.system, one.seed) for one in find_encoders([], tmp_path / "published", tmp_path / "data")}
    assert found == {"base-seed3": ("base", 3), "base-seed7": ("base", 7), "single": ("", None)}
    # Published encoders that become pre-trainings of a system, or stop to be, are not trained again.
    for one in planned:
        RunDir(one.run_dir).result.unlink()
    renamed = [one.model_copy(update={"system": one.name}) for one in planned]
    assemble(renamed, tmp_path / "published", tmp_path / "again")
    assert read_json(RunDir(tmp_path / "again" / "base-seed3").metrics).keys() == {"digest", "name", "num_steps"}
    assert all(one.system == "" for one in find_encoders([], tmp_path / "again", tmp_path / "data"))


@pytest.mark.parametrize(
    ("encoders", "message"),
    [
        ([{"name": "base", "seeds": [1, 1]}], r"base: seeds: expected different numbers, not \[1, 1\]"),
        ([{"name": "base", "seeds": [-1]}], "encoders.0.seeds.0: Input should be greater than or equal to 0, got -1"),
        ([{"name": "base", "seeds": [1, 2], "seed": 3}], "base: remove seed or seeds"),
        ([{"name": "base", "seeds": [1, 2]}, {"name": "base-seed2"}], "two encoders are named 'base-seed2'"),
    ],
)
def test_mistakes_in_seeds(encoders: list[dict[str, object]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        params_of(*encoders)


def test_an_untrained_encoder_starts_next_to_the_others(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    untrained = {"recipe": {"phases": []}}
    params = params_of({"name": "a"}, {"name": "b"}, {"name": "c", **untrained}, {"name": "d", **untrained})
    planned = plan_encoders(params, *inputs, tmp_path / "data", tmp_path / "runs", version=1)
    queue = EncoderQueue(planned, num_parallel=1)
    assert queue.num_slots == 2
    assert [queue.take() for _ in range(3)] == ["a", "c", None]
    assert queue.ended("c", "done") == "done"
    assert [queue.take() for _ in range(2)] == ["d", None]
    queue.ended("a", "done")
    assert [queue.take() for _ in range(2)] == ["b", None]
    both = EncoderQueue(planned, num_parallel=2)
    assert [both.take() for _ in range(4)] == ["a", "b", "c", None]
