"""Going on: the same batches and the same weights after any end, on other ranks too; damage and other data refused."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from model.common.errors import Paused, UserError
from model.common.files import read_json
from model.common.state_files import read_state
from model.config.pretraining import PretrainRun
from model.data.loader import PretrainLoader
from model.data.token_store import TokenStoreWriter
from tests.model import watched_pretrain
from tests.model.pretraining import MakeRun, command, journal_steps, one_thread, outputs, result_of, train
from tests.model.watched_pretrain import seen, watched


def phases(first_steps: int, second_steps: int = 0) -> list[dict[str, Any]]:
    both = [
        {"sequence_length": 32, "batch_size": 16, "num_steps": first_steps, "learning_rate": 3e-3},
        {"sequence_length": 48, "batch_size": 8, "num_steps": second_steps, "learning_rate": 1e-3},
    ]
    return both if second_steps else both[:1]


def train_watched(run: PretrainRun, seen_dir: Path, name: str = "NONE", step: int = 0, *, num_ranks: int = 1) -> int:
    """Train in a process of its own that gets a signal at `step`; its exit code."""
    program = (watched_pretrain.__file__, str(seen_dir), name, str(step))
    return subprocess.run(
        command(run, program=program, num_ranks=num_ranks), timeout=550, env=one_thread(), check=False
    ).returncode


def train_watched_here(monkeypatch: pytest.MonkeyPatch, run: PretrainRun, seen_dir: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(PretrainLoader, "at", watched(seen_dir))
        train(run)


@pytest.mark.parametrize(("stop_at", "accumulate"), [(1, 1), (7, 2), (8, 1), (10, 2), (15, 1)])
def test_a_stopped_run_goes_on_to_the_last_bit(make_run: MakeRun, stop_at: int, accumulate: int) -> None:
    recipe = {"phases": phases(10, 8), "accumulate": accumulate}
    whole, stopped = make_run("whole", **recipe), make_run("stopped", **recipe)
    train(whole)
    with pytest.raises(Paused, match=f"at step {stop_at} of 18"):
        train(stopped, stop_at)
    assert not (stopped.run_dir / "result.json").exists()
    train(stopped)
    assert outputs(stopped) == outputs(whole)
    assert journal_steps(stopped, "train") == [5, 10, 15, 18]


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
def test_every_optimiser_goes_on_to_the_last_bit(make_run: MakeRun, optimizer: str) -> None:
    recipe = {"optimizer": optimizer, "schedule": {"kind": "stable"}, "skip_spikes_above": 1.2}
    whole, stopped = make_run("whole", **recipe), make_run("stopped", **recipe)
    train(whole)
    with pytest.raises(Paused):
        train(stopped, 22)
    train(stopped)
    assert outputs(stopped) == outputs(whole)


@pytest.mark.slow
@pytest.mark.parametrize("compile", ["off", pytest.param("on", marks=pytest.mark.disruption)])
def test_killed_at_any_step_it_sees_the_same_batches_and_ends_with_the_same_bits(
    make_run: MakeRun, tmp_path: Path, compile: str
) -> None:
    seed = time.time_ns() % 100_000
    kill_at = random.Random(seed).randrange(21, 60)  # the save of step 20 waits for the one of step 10
    print(f"seed {seed}: killed at step {kill_at}")
    recipe: dict[str, Any] = {"phases": phases(70, 50), "accumulate": 2}
    layers = 2
    if compile == "on":  # every other shape, and every layer, would take the compiler a quarter of a minute or more
        layers = 1
        recipe = {"phases": phases(120), "validation_batches": 0}
    recipe |= {"checkpoint_every_steps": 10, "log_every_steps": 7}
    whole, killed = (
        make_run(name, layers=layers, machine={"compile": compile}, **recipe) for name in ("whole", "killed")
    )
    assert train_watched(whole, tmp_path / "seen whole") == 0
    assert train_watched(killed, tmp_path / "seen before", "KILL", kill_at) == -signal.SIGKILL
    assert not (killed.run_dir / "result.json").exists()
    assert train_watched(killed, tmp_path / "seen after") == 0
    expected, before, after = (seen(tmp_path / f"seen {part}") for part in ("whole", "before", "after"))
    assert 0 < min(after) <= max(before) + 1 and max(before) >= kill_at - 1  # it may be killed before it wrote
    assert min(after) <= 69 and max(after) == 119  # 50 steps and more
    for part in (before, after):
        assert part == {step: expected[step] for step in part}
    assert before | after == expected
    assert outputs(killed) == outputs(whole)
    assert journal_steps(killed, "train") == journal_steps(whole, "train")
    if compile == "on":  # compiled training is the same training
        train(make_run("eager", layers=layers, **recipe))
        eager = result_of(make_run("eager", layers=layers, **recipe))
        for one, other in zip(result_of(whole)["curve"], eager["curve"], strict=True):
            assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 1e-3)])
def test_from_one_rank_to_two_and_back_the_batches_and_the_losses_are_the_same(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, tolerance: float
) -> None:
    recipe = {
        "phases": phases(60, 40),
        "accumulate": 2,
        "log_every_steps": 1,
        "validate_every_steps": 50,
        "checkpoint_every_steps": 1_000,
    }
    machine = {"precision": precision}
    one, moving = (make_run(name, machine=machine, **recipe) for name in ("one", "moving"))
    on_two = make_run("moving", machine={**machine, "num_devices": 2}, **recipe)
    train_watched_here(monkeypatch, one, tmp_path / "seen one")
    with pytest.raises(Paused):
        train(moving, 35)
    assert train_watched(on_two, tmp_path / "seen two", "TERM", 75, num_ranks=2) == 0
    status = read_state(on_two.run_dir / "status.json")
    assert (status["state"], status["step"]) == ("to be continued", 75)
    train_watched_here(monkeypatch, moving, tmp_path / "seen again")
    expected = seen(tmp_path / "seen one")
    for part, first, end in (("two", 35, 76), ("again", 75, 100)):  # the data of step 75 were asked for twice
        assert seen(tmp_path / f"seen {part}") == {step: expected[step] for step in range(first, end)}
    results = [result_of(run) for run in (one, moving)]
    assert results[0]["num_tokens_seen"] == results[1]["num_tokens_seen"]
    for name, num in (("curve", 100), ("heldout", 2)):
        pairs = list(zip(*(result[name] for result in results), strict=True))
        relative = [abs(second["loss"] / first["loss"] - 1) for first, second in pairs]
        print(f"{name}: worst {max(relative):.1e}")
        assert len(pairs) == num and max(relative) <= tolerance


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[:-1])
    else:
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


@pytest.mark.parametrize(
    ("name", "how"),
    [("model.safetensors", "truncated"), ("optimizer.safetensors", "flipped"), ("state.json", "flipped")],
)
def test_a_damaged_checkpoint_is_refused_and_the_end_is_the_same(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], name: str, how: str
) -> None:
    whole, damaged = make_run("whole"), make_run("damaged")
    train(whole)
    with pytest.raises(Paused):
        train(damaged, 19)
    damage(damaged.run_dir / "checkpoints" / "step-00000019" / name, how)
    capsys.readouterr()
    train(damaged)
    said = capsys.readouterr().out
    assert f"checkpoint step-00000019: {name}" in said and "resuming from step-00000016" in said
    assert outputs(damaged) == outputs(whole)


def test_with_all_checkpoints_damaged_it_starts_over_and_says_so(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, damaged = make_run("whole"), make_run("damaged")
    train(whole)
    with pytest.raises(Paused):
        train(damaged, 5)
    damage(damaged.run_dir / "checkpoints" / "step-00000005" / "model.safetensors", "flipped")
    capsys.readouterr()
    train(damaged)
    assert "step-00000005: model.safetensors does not match its digest; refused, training starts over" in (
        capsys.readouterr().out
    )
    assert outputs(damaged) == outputs(whole)


def test_other_data_and_other_recipes_are_refused(make_run: MakeRun, text_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(Paused):
        train(make_run(), 3)
    with pytest.raises(UserError, match="another recipe"):
        train(make_run(weight_decay=0.5))
    with pytest.raises(UserError, match="another seed"):
        train(make_run(seed=5))
    index = read_json(text_dir / "tokens" / "index.json")
    writer = TokenStoreWriter(tmp_path / "other", index["vocab_size"], tokenizer_digest=index["tokenizer_digest"])
    for _ in range(3):
        writer.add_document([[7, 8, 9, 10], [11, 12]])
    writer.close()
    with pytest.raises(UserError, match="another tokens"):
        train(make_run().model_copy(update={"tokens_dir": tmp_path / "other"}))
