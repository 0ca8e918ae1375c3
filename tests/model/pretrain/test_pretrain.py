"""Pre-training from RUN.json to result.json: learning, equal runs, and refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from model.common.errors import Diverged, Paused, UserError
from model.common.files import read_json
from model.common.state_files import read_state
from model.config.pretraining import read_run
from model.formats.hf_folder import load_encoder
from model.objectives.masked_lm import PretrainingModule
from tests.model.pretraining import MakeRun, command, journal_steps, outputs, result_of, train


def test_a_run_learns_and_leaves_what_is_promised(make_run: MakeRun) -> None:
    phases = [{"sequence_length": 32, "batch_size": 32, "num_steps": 60, "learning_rate": 1e-2}]
    run = make_run(phases=phases, log_every_steps=25, checkpoint_every_steps=40, validate_every_steps=25)
    train(run)
    result = result_of(run)
    assert result["digest"] == run.digest and result["num_steps"] == 60
    # ln 120 = 4.8 at first; ln 24 = 3.2 is what frequencies alone reach
    assert result["curve"][0]["mlm_loss"] > 3.6 > result["curve"][-1]["mlm_loss"]
    assert result["final"]["heldout/mlm_loss"] < 3.6
    assert [entry["step"] for entry in result["curve"]] == [25, 50, 60] == journal_steps(run, "train")
    assert [entry["step"] for entry in result["heldout"]] == [25, 50, 60] == journal_steps(run, "heldout")
    assert 0.6 * 60 * 32 * 32 < result["num_tokens_seen"] < 60 * 32 * 32
    status = read_state(run.run_dir / "status.json")
    assert (status["state"], status["step"], status["fault"]) == ("done", 60, None)
    assert "time" not in result and read_state(run.run_dir / "timing.json")["seconds"] > 0
    assert [path.name for path in sorted((run.run_dir / "checkpoints").iterdir())] == ["step-00000040", "step-00000060"]
    theirs = transformers.BertForPreTraining.from_pretrained(run.run_dir / "encoder")
    assert theirs.config.hidden_size == 32 and (run.run_dir / "encoder" / "vocab.txt").is_file()


def test_equal_runs_give_equal_bytes_and_seeds_differ(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b"), make_run("c", seed=2)]
    for run in runs:
        train(run)
    first, again, other = (outputs(run) for run in runs)
    assert first == again
    assert first["encoder/model.safetensors"] != other["encoder/model.safetensors"]


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
    curve = result_of(run)["curve"]
    assert [entry.get("skipped_steps", 0) for entry in curve] == [0, 1, 0, 0, 0]
    assert curve[1]["mlm_loss"] == pytest.approx(curve[0]["mlm_loss"], rel=0.3)


def test_accumulated_parts_add_up(make_run: MakeRun) -> None:
    one, parts = make_run("one"), make_run("parts", accumulate=4)
    train(one)
    train(parts)
    curves = [result_of(run)["curve"] for run in (one, parts)]
    for first, second in zip(*curves):
        assert second["loss"] == pytest.approx(first["loss"], rel=1e-5)


def test_no_steps_leave_the_first_weights(make_run: MakeRun) -> None:
    run = make_run(phases=[])
    train(run)
    result = result_of(run)
    assert (run.run_dir / "timing.json").is_file()
    assert result["num_steps"] == 0 and result["curve"] == [] and result["num_tokens_seen"] == 0
    table = transformers.BertModel.from_pretrained(run.run_dir / "encoder").embeddings.word_embeddings.weight
    assert table.abs().max() <= 0.04
    train(make_run("again", phases=[]))
    again = transformers.BertModel.from_pretrained(run.run_dir.parent / "again" / "encoder")
    assert torch.equal(again.embeddings.word_embeddings.weight, table)


@pytest.mark.parametrize(
    ("changes", "architecture", "objective"),
    [
        ({}, "BertForPreTraining", "next_sentence"),
        ({"sentence_objective": "sentence_order"}, "BertForPreTraining", "sentence_order"),
        ({"sentence_objective": "pair_without_loss"}, "BertForMaskedLM", None),
        ({"sentence_objective": "none"}, "BertForMaskedLM", None),
        ({"phases": []}, "BertModel", None),
    ],
)
def test_only_what_was_trained_is_published(
    make_run: MakeRun, changes: dict[str, Any], architecture: str, objective: str | None
) -> None:
    run = make_run(**changes)
    train(run)
    folder = run.run_dir / "encoder"
    config, tensors = read_json(folder / "config.json"), load_file(folder / "model.safetensors")
    assert config["architectures"] == [architecture] and config.get("sentence_objective") == objective
    assert any("seq_relationship" in name for name in tensors) == (objective is not None)
    assert any("cls.predictions" in name for name in tensors) == (architecture != "BertModel")
    assert load_encoder(folder).has_pooler == (architecture != "BertForMaskedLM")
    _, report = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    if objective == "sentence_order":
        assert config["sentence_labels"] == {"0": "in_order", "1": "swapped"}


def test_energy_is_noted_over_a_resume(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.common.energy.EnergyMeter.joules", lambda _meter: 5.0)
    run = make_run()
    with pytest.raises(Paused):
        train(run, stop_at=20)
    assert read_state(run.run_dir / "timing.json")["energy_joules"] == 5.0
    train(run)
    assert read_state(run.run_dir / "timing.json")["energy_joules"] == 10.0
    monkeypatch.setattr("model.common.energy.EnergyMeter.joules", lambda _meter: None)
    silent = make_run("silent")
    train(silent)
    assert "energy_joules" not in read_state(silent.run_dir / "timing.json")


def test_masked_tokens_alone_without_next_sentence(make_run: MakeRun) -> None:
    run = make_run(sentence_objective="none")
    train(run)
    final = result_of(run)["final"]
    assert final["train/loss"] == final["train/mlm_loss"] and "train/nsp_loss" not in final


def test_a_loss_that_is_no_number_ends_the_run(make_run: MakeRun) -> None:
    phases = [{"sequence_length": 32, "batch_size": 16, "num_steps": 20, "learning_rate": 1000.0}]
    with pytest.raises(Diverged, match="lower the learning rate"):
        train(make_run(phases=phases, warmup_steps=0))


def test_a_run_that_has_not_learnt_enough_is_given_up(make_run: MakeRun) -> None:
    with pytest.raises(Diverged, match="at step 10; give_up_above allows 0.5"):
        train(make_run(give_up_above=[{"step": 2, "mlm_loss": 90.0}, {"step": 7, "mlm_loss": 0.5}]))
    phases = [{"sequence_length": 32, "batch_size": 16, "num_steps": 60, "learning_rate": 3.0}]
    with pytest.raises(Diverged, match=r"a uniform guess has 4\.787"):
        train(make_run("wild", phases=phases, warmup_steps=1, max_grad_norm=1e6))


def test_a_budget_of_time_is_kept_and_the_rate_falls_to_its_end(make_run: MakeRun) -> None:
    phases = [
        {"sequence_length": 32, "batch_size": 16, "num_steps": 90_000, "learning_rate": 1e-3},
        {"sequence_length": 48, "batch_size": 16, "num_steps": 10_000, "learning_rate": 1e-3},
    ]
    run = make_run(phases=phases, finish_within_seconds=3.0, validate_every_steps=10**6, checkpoint_every_steps=10**6)
    with pytest.raises(Paused):
        train(run, stop_at=20)
    train(run)
    result = result_of(run)
    assert 20 < result["num_steps"] < 5_000
    assert result["curve"][-1]["learning_rate"] < 1.5e-4  # the last of its steps begins within the last tenth or so
    assert read_state(run.run_dir / "timing.json")["seconds"] < 6.0
    newest = sorted((run.run_dir / "checkpoints").glob("step-*"))[-1]
    lengths = read_json(newest / "state.json")["phase_lengths"]
    assert sum(lengths) == result["num_steps"] and 0 < lengths[1] < lengths[0]


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
    status = read_state(run.run_dir / "status.json")
    assert (status["state"], status["fault"]) == ("failed", "user") and "torchrun" in status["message"]
