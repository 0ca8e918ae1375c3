"""Pre-training from RUN.json to result.json: learning, stopping, resuming to the last bit, and refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForPreTraining

from model.errors import Paused, UserError
from model.files import read_json, write_json
from model.journal import read_journal
from model.module import PretrainingModule
from model.pretrain import pretrain
from model.pretrain_report import NonFinite
from model.pretrain_run import PretrainRun, read_run
from model.status import Status
from model.token_store import TokenStoreWriter

MakeRun = Callable[..., PretrainRun]


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def train(run: PretrainRun, stop_at: int | None = None) -> None:
    """Train in this process; stop (and raise Paused) after `stop_at` steps of this call."""
    asked = iter(range(1, 1_000_000))
    pretrain(run, Status(run.run_dir / "status.json"), lambda: next(asked) == stop_at)


def outputs(run: PretrainRun) -> dict[str, bytes]:
    names = ("result.json", "encoder/model.safetensors", "encoder/config.json")
    newest = sorted((run.run_dir / "checkpoints").glob("step-*"))[-1]
    found = {name: (run.run_dir / name).read_bytes() for name in names}
    return found | {file.name: file.read_bytes() for file in newest.iterdir()}


def journal_steps(run: PretrainRun, stream: str) -> list[int]:
    entries = [entry for entry, _ in read_journal(run.run_dir / "journal.jsonl")]
    return [entry["step"] for entry in entries if entry["stream"] == stream]


def command(run: PretrainRun) -> list[str]:
    path = run.run_dir.with_suffix(".json")
    write_json(path, run.model_dump(mode="json"))
    return [sys.executable, "-P", "-m", "model.pretrain", str(path)]


def test_a_run_learns_and_leaves_what_is_promised(make_run: MakeRun) -> None:
    phases = [{"sequence_length": 32, "batch_size": 32, "num_steps": 60, "learning_rate": 1e-2}]
    run = make_run(phases=phases, log_every_steps=25, checkpoint_every_steps=40, validate_every_steps=25)
    train(run)
    result = read_json(run.run_dir / "result.json")
    assert result["digest"] == run.digest and result["num_steps"] == 60
    # ln 120 = 4.8 at first; ln 24 = 3.2 is what frequencies alone reach
    assert result["curve"][0]["mlm_loss"] > 3.6 > result["curve"][-1]["mlm_loss"]
    assert result["final"]["heldout/mlm_loss"] < 3.6
    assert [entry["step"] for entry in result["curve"]] == [25, 50, 60] == journal_steps(run, "train")
    assert [entry["step"] for entry in result["heldout"]] == [25, 50, 60] == journal_steps(run, "heldout")
    assert 0.6 * 60 * 32 * 32 < result["num_tokens_seen"] < 60 * 32 * 32
    status = read_json(run.run_dir / "status.json")
    assert (status["state"], status["step"], status["fault"]) == ("done", 60, None)
    assert "time" not in result and read_json(run.run_dir / "timing.json")["seconds"] > 0
    assert [path.name for path in sorted((run.run_dir / "checkpoints").iterdir())] == ["step-00000040", "step-00000060"]
    theirs = BertForPreTraining.from_pretrained(run.run_dir / "encoder")
    assert theirs.config.hidden_size == 32 and (run.run_dir / "encoder" / "vocab.txt").is_file()


def test_equal_runs_give_equal_bytes_and_seeds_differ(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b"), make_run("c", seed=2)]
    for run in runs:
        train(run)
    first, again, other = (outputs(run) for run in runs)
    assert first == again
    assert first["encoder/model.safetensors"] != other["encoder/model.safetensors"]


@pytest.mark.parametrize("stop_at", [1, 7, 8, 15])
def test_a_stopped_run_goes_on_to_the_last_bit(make_run: MakeRun, stop_at: int) -> None:
    phases = [
        {"sequence_length": 32, "batch_size": 16, "num_steps": 10, "learning_rate": 3e-3},
        {"sequence_length": 48, "batch_size": 8, "num_steps": 8, "learning_rate": 1e-3},
    ]
    whole, stopped = make_run("whole", phases=phases), make_run("stopped", phases=phases)
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


def test_a_spoilt_gradient_costs_one_step_and_is_counted(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(1_000))
    forward = PretrainingModule.forward

    def spoilt(self: PretrainingModule, *arguments: Any) -> Any:
        loss, sums = forward(self, *arguments)
        if self.training and next(calls) == 7:
            return loss * float("nan"), sums * float("nan")
        return loss, sums

    monkeypatch.setattr(PretrainingModule, "forward", spoilt)
    run = make_run()
    train(run)
    curve = read_json(run.run_dir / "result.json")["curve"]
    assert [entry.get("skipped_steps", 0) for entry in curve] == [0, 1, 0, 0, 0]
    assert curve[1]["mlm_loss"] == pytest.approx(curve[0]["mlm_loss"], rel=0.3)


def test_accumulated_parts_add_up(make_run: MakeRun) -> None:
    one, parts = make_run("one"), make_run("parts", accumulate=4)
    train(one)
    train(parts)
    curves = [read_json(run.run_dir / "result.json")["curve"] for run in (one, parts)]
    for first, second in zip(*curves):
        assert second["loss"] == pytest.approx(first["loss"], rel=1e-5)


def test_no_steps_leave_the_first_weights(make_run: MakeRun) -> None:
    run = make_run(phases=[])
    train(run)
    result = read_json(run.run_dir / "result.json")
    assert (run.run_dir / "timing.json").is_file()
    assert result["num_steps"] == 0 and result["curve"] == [] and result["num_tokens_seen"] == 0
    table = BertForPreTraining.from_pretrained(run.run_dir / "encoder").bert.embeddings.word_embeddings.weight
    assert table.abs().max() <= 0.04
    train(make_run("again", phases=[]))
    again = BertForPreTraining.from_pretrained(run.run_dir.parent / "again" / "encoder")
    assert torch.equal(again.bert.embeddings.word_embeddings.weight, table)


def test_masked_tokens_alone_without_next_sentence(make_run: MakeRun) -> None:
    run = make_run(sentence_objective="none")
    train(run)
    final = read_json(run.run_dir / "result.json")["final"]
    assert final["train/loss"] == final["train/mlm_loss"] and "train/nsp_loss" not in final


def test_a_damaged_checkpoint_is_refused_and_the_end_is_the_same(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, damaged = make_run("whole"), make_run("damaged")
    train(whole)
    with pytest.raises(Paused):
        train(damaged, 19)
    victim = damaged.run_dir / "checkpoints" / "step-00000019" / "model.safetensors"
    victim.write_bytes(victim.read_bytes()[:-1])
    capsys.readouterr()
    train(damaged)
    said = capsys.readouterr().out
    assert "checkpoint step-00000019: model.safetensors" in said and "going on from step-00000016" in said
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


def test_a_loss_that_is_no_number_ends_the_run(make_run: MakeRun) -> None:
    phases = [{"sequence_length": 32, "batch_size": 16, "num_steps": 20, "learning_rate": 1e30}]
    with pytest.raises(NonFinite, match="lower the learning rate"):
        train(make_run(phases=phases, warmup_steps=0))


def test_mistakes_are_one_line(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="missing"):
        read_run(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text(json.dumps({**make_run().model_dump(mode="json"), "sead": 3}))
    with pytest.raises(UserError, match="did you mean 'seed'"):
        read_run(tmp_path / "bad.json")
    long = [{"sequence_length": 64, "batch_size": 16, "num_steps": 2, "learning_rate": 1e-3}]
    with pytest.raises(UserError, match="max_position_embeddings"):
        train(make_run(phases=long, warmup_steps=0))
    with pytest.raises(UserError, match="torchrun"):
        train(make_run(machine={"num_devices": 2}))
    with pytest.raises(UserError, match="another vocabulary"):
        run = make_run()
        shutil.copytree(run.tokenizer_dir, tmp_path / "tokenizer")
        text = (tmp_path / "tokenizer" / "tokenizer.json").read_text()
        (tmp_path / "tokenizer" / "tokenizer.json").write_text(text.replace('"w7"', '"x7"'))
        train(run.model_copy(update={"tokenizer_dir": tmp_path / "tokenizer"}))


def test_the_process_says_how_it_ended(make_run: MakeRun) -> None:
    run = make_run(phases=[], machine={"num_devices": 2})
    ended = subprocess.run(command(run), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2 and "torchrun" in ended.stderr and "Traceback" not in ended.stderr
    status = read_json(run.run_dir / "status.json")
    assert (status["state"], status["fault"]) == ("failed", "user") and "torchrun" in status["message"]


@pytest.mark.slow
def test_killed_and_told_to_stop_it_ends_as_if_nothing_had_been(make_run: MakeRun) -> None:
    phases = [{"sequence_length": 48, "batch_size": 64, "num_steps": 120, "learning_rate": 1e-3}]
    settings: dict[str, Any] = {"phases": phases, "checkpoint_every_steps": 10, "log_every_steps": 7}
    whole, killed = make_run("whole", **settings), make_run("killed", **settings)
    subprocess.run(command(whole), check=True, timeout=300)

    def start_and_send(number: signal.Signals, after_step: int) -> int:
        process = subprocess.Popen(command(killed), stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and process.poll() is None:
            status = killed.run_dir / "status.json"
            if status.exists() and read_json(status)["step"] >= after_step:
                process.send_signal(number)
                break
            time.sleep(0.01)
        return process.wait(60)

    assert start_and_send(signal.SIGKILL, 15) == -signal.SIGKILL
    assert list((killed.run_dir / "checkpoints").glob("step-*"))
    assert start_and_send(signal.SIGTERM, 45) == 0
    assert read_json(killed.run_dir / "status.json")["state"] == "to be continued"
    subprocess.run(command(killed), check=True, timeout=300)
    assert outputs(killed) == outputs(whole)
    assert journal_steps(killed, "train") == journal_steps(whole, "train")


@pytest.mark.slow
def test_two_ranks_see_the_same_batches_and_learn_alike(make_run: MakeRun) -> None:
    one, two = make_run("one"), make_run("two", machine={"num_devices": 2})
    train(one)
    script = command(two)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*script[:2], *torchrun, *script[2:]], check=True, timeout=300, env=environment)
    results = [read_json(run.run_dir / "result.json") for run in (one, two)]
    assert results[0]["num_tokens_seen"] == results[1]["num_tokens_seen"]
    for name in ("curve", "heldout"):
        for first, second in zip(*(result[name] for result in results), strict=True):
            assert second["mlm_loss"] == pytest.approx(first["mlm_loss"], rel=2e-5)
    # and on one rank again, from where two ranks were stopped
    shutil.rmtree(two.run_dir / "checkpoints" / "step-00000024")
    (two.run_dir / "result.json").unlink()
    train(make_run("two"))
    last = read_json(two.run_dir / "result.json")
    assert last["curve"][-1]["loss"] == pytest.approx(results[0]["curve"][-1]["loss"], rel=2e-5)


@pytest.mark.slow
def test_compiled_training_is_the_same_training(make_run: MakeRun) -> None:
    phases = [{"sequence_length": 32, "batch_size": 16, "num_steps": 6, "learning_rate": 3e-3}]
    eager, compiled = (
        make_run(mode, phases=phases, warmup_steps=1, machine={"compile": mode}) for mode in ("off", "on")
    )
    train(eager)
    subprocess.run(command(compiled), check=True, timeout=550)
    curves = [read_json(run.run_dir / "result.json")["curve"] for run in (eager, compiled)]
    for first, second in zip(*curves, strict=True):
        assert second["loss"] == pytest.approx(first["loss"], rel=1e-5)
