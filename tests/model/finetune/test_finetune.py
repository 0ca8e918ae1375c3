"""Fine-tuning jobs: they learn, repeat to the byte, go on where they were stopped, and say what went
wrong."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.benchmarks.scoring import squad_scores
from model.benchmarks.scoring.score_files import score_files
from model.common.errors import Diverged, UserError
from model.common.files import read_json, write_json
from model.common.metrics_log import read_metrics
from model.common.state_files import read_state
from model.config.finetuning import judge_share_of
from model.engine.process import run_guarded
from model.engine.trainer import Trainer
from model.finetune import run
from model.finetune.data import DevResult, DevSet
from model.finetune.job import Job, read_work
from model.finetune.run import FinetuneRun, run_job
from tests.model.benchmarks.official import VARIABLE, official

MakeJob = Callable[..., Job]


@pytest.fixture(autouse=True)
def _as_it_was() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def bytes_of(job: Job) -> dict[str, bytes]:
    names = ["result.json", "predictions.jsonl", "errors.json"]
    names += [f"model/{name}" for name in ("config.json", "model.safetensors", "head.json", "vocab.txt")]
    return {name: (job.run_dir / name).read_bytes() for name in names}


@pytest.mark.parametrize("name", ["sst2", "stsb", "swag", "squad1", "squad2", "ner"])
def test_every_kind_of_head_learns_what_can_be_learnt(make_job: MakeJob, name: str) -> None:
    job = make_job(name, num_epochs=10)
    run_job(job)
    result = read_state(job.result_path)
    metric, value = result["headline"]["metric"], result["headline"]["value"]
    assert value > 90, result["scores"]
    assert value > result["majority"][metric] + 20
    assert not result["degenerate"]
    assert result["curve"][-1]["loss"] < result["curve"][0]["loss"]
    rows = [json.loads(line) for line in (job.run_dir / "predictions.jsonl").open()]
    assert len(rows) == result["num_dev_rows"] and {"id", "prediction", "label"} <= rows[0].keys()


def test_a_cut_says_how_many_rows_there_are_and_which_it_was_judged_on(make_job: MakeJob) -> None:
    whole, cut, same = (
        make_job(num_epochs=1, folder=name, **limits)
        for name, limits in (
            ("whole", {}),
            ("cut", {"max_train_rows": 32, "max_dev_rows": 20}),
            ("same", {"max_train_rows": 48, "max_dev_rows": 20}),
        )
    )
    results = []
    for job in (whole, cut, same):
        run_job(job)
        results.append(read_state(job.result_path))
    assert (results[1]["num_train_rows"], results[1]["num_all_train_rows"]) == (32, 240)
    assert (results[1]["num_dev_rows"], results[1]["num_all_dev_rows"]) == (20, 60)
    assert results[1]["dev_digest"] == results[2]["dev_digest"] != results[0]["dev_digest"]


def predictions_of(job: Job, *, selection: bool = False) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (job.run_dir / "predictions.jsonl").open()]
    return [record for record in records if record.get("selection", False) == selection]


def test_dev_rows_that_select_are_not_reported(make_job: MakeJob) -> None:
    whole = make_job(num_epochs=2, folder="whole")
    split = make_job(num_epochs=2, folder="split", judge_share=0.4)
    for job in (whole, split):
        run_job(job)
    one, other = (read_state(job.result_path) for job in (whole, split))
    assert (one["num_dev_rows"], one["num_selection_rows"]) == (60, 0)
    assert "selection_scores" not in one
    assert other["num_dev_rows"] + other["num_selection_rows"] == other["num_all_dev_rows"] == 60
    assert other["dev_digest"] != one["dev_digest"]
    halves = {
        half: predictions_of(split, selection=half == "selection_scores") for half in ("scores", "selection_scores")
    }
    for half, records in halves.items():
        correct = sum(record["prediction"] == record["label"] for record in records)
        assert other[half]["accuracy"] == pytest.approx(100 * correct / len(records))
    assert other["headline"]["value"] == other["scores"]["accuracy"]
    ids = [{record["id"] for record in records} for records in halves.values()]
    assert not ids[0] & ids[1]
    assert len(ids[0]) == other["num_dev_rows"]
    weights = [(job.run_dir / "model" / "model.safetensors").read_bytes() for job in (whole, split)]
    assert weights[0] == weights[1], "the split selects among models; it does not change their training"


def test_the_epoch_is_selected_on_the_rows_for_selection(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([(50.0, 90.0), (70.0, 40.0), (60.0, 95.0)])

    def evaluate(self: DevSet, outputs: Any) -> DevResult:
        found = evaluated(self, outputs)
        selection, reported = next(scores)
        assert found.selection is not None
        return DevResult(
            replace(found.reported, scores={"accuracy": reported}),
            replace(found.selection, scores={"accuracy": selection}),
        )

    evaluated = DevSet.evaluate
    monkeypatch.setattr(DevSet, "evaluate", evaluate)
    job = make_job(num_epochs=3, evaluate_every_epoch=True, judge_share=0.5)
    run_job(job)
    result = read_state(job.result_path)
    assert (result["best_epoch"], result["headline"]["value"]) == (2, 40.0)
    assert [record["selection_scores"]["accuracy"] for record in result["evaluations"]] == [50.0, 70.0, 60.0]


def test_the_threshold_is_chosen_on_the_rows_for_selection(make_job: MakeJob) -> None:
    job = make_job("squad2", num_epochs=1, judge_share=0.5)
    run_job(job)
    chosen = read_json(job.run_dir / "model" / "head.json")["null_threshold"]
    reported, selection = (predictions_of(job, selection=half) for half in (False, True))
    spans, odds, gold = ([record[key] for record in selection] for key in ("best_span", "null_odds", "label"))
    assert chosen == squad_scores.best_threshold(spans, odds, gold)
    for record in reported:
        assert record["prediction"] == ("" if record["null_odds"] > chosen else record["best_span"])
    documents = read_json(job.run_dir / "model" / "dev" / "predictions.json")
    assert len(documents) == len(reported) + len(selection), "the official scripts want all rows"


def test_too_few_rows_to_split_are_a_users_mistake(make_job: MakeJob) -> None:
    with pytest.raises(UserError, match="finetune.judge_share: 0.001 leaves no rows to report on in .*dev.tsv"):
        run_job(make_job(judge_share=0.001))


@pytest.mark.parametrize(
    ("setting", "num_rows", "share"), [("auto", 999, 0.0), ("auto", 1000, 0.5), (0.0, 5000, 0.0), (0.3, 10, 0.3)]
)
def test_the_default_splits_large_dev_sets(setting: Any, num_rows: int, share: float) -> None:
    assert judge_share_of(setting, num_rows) == share


@pytest.mark.parametrize(("name", "version"), [("squad1", "1.1"), ("squad2", "2.0")])
def test_official_files_give_the_jobs_own_score_to_the_last_digit(make_job: MakeJob, name: str, version: str) -> None:
    job = make_job(name, num_epochs=4, seed=3)
    run_job(job)
    result = read_state(job.result_path)
    folder, gold = job.run_dir / "model" / "dev", job.data_dir / job.row.dev[""]
    report = score_files(job.row, gold, folder / "predictions.json")
    assert report["scores"] == result["scores"]
    assert score_files(job.row, gold, job.run_dir / "predictions.jsonl")["scores"] == result["scores"]
    best_lists = read_json(folder / "nbest_predictions.json")
    predictions = read_json(folder / "predictions.json")
    assert best_lists.keys() == predictions.keys() and len(predictions) == result["num_dev_rows"]
    assert all(predictions[question] in [entry["text"] for entry in best_lists[question]] for question in predictions)
    arguments = [str(gold), str(folder / "predictions.json")]
    if name == "squad2":
        odds = folder / "null_odds.json"
        threshold = read_json(job.run_dir / "model" / "head.json")["null_threshold"]
        thresholded = score_files(job.row, gold, folder / "predictions.json", odds, threshold)
        assert thresholded["scores"] == result["scores"]
        assert thresholded["official"]["best_f1"] == pytest.approx(result["scores"]["f1"])
        assert thresholded["official"]["best_f1_thresh"] == thresholded["best"]["null_threshold"] == threshold
    if VARIABLE in os.environ:
        assert official(Path(os.environ[VARIABLE]), version, arguments) == report["official"]


@pytest.mark.parametrize("name", ["sst2", "stsb", "swag", "ner"])
def test_a_jobs_predictions_score_as_the_job_says(make_job: MakeJob, name: str) -> None:
    job = make_job(name, num_epochs=2)
    run_job(job)
    gold = job.data_dir / next(iter(job.row.dev.values()))
    found = score_files(job.row, gold, job.run_dir / "predictions.jsonl")["scores"]
    assert found == read_state(job.result_path)["scores"]
    assert not (job.run_dir / "model" / "dev").exists()


def test_a_result_holds_what_the_leaderboard_reads_and_nothing_of_time(make_job: MakeJob) -> None:
    job = make_job(num_epochs=1)
    run_job(job)
    result = read_state(job.result_path)
    expected = """benchmark best_epoch curve degenerate dev_digest dev_files digest encoder evaluations headline
    majority num_all_dev_rows num_all_train_rows num_dev_rows num_selection_rows num_skipped_rows num_train_rows
    parameters recipe scores seed"""
    assert sorted(result) == expected.split()
    assert (result["encoder"], result["num_train_rows"], result["num_dev_rows"]) == ("small", 240, 60)
    assert (result["num_all_train_rows"], result["num_all_dev_rows"]) == (240, 60)
    errors = read_json(job.run_dir / "errors.json")
    predictions = [json.loads(line) for line in (job.run_dir / "predictions.jsonl").open()]
    assert errors["num_wrong"] == sum(row["prediction"] != row["label"] for row in predictions)
    timing = read_state(job.run_dir / "timing.json")
    assert {"seconds", "train_seconds", "cpu_seconds", "peak_memory_bytes"} <= timing.keys()
    assert timing["peak_memory_bytes"] > 2**20
    status = read_state(job.status_path)
    assert (status["state"], status["step"], status["num_steps"], status["fault"]) == ("done", 15, 15, None)
    metrics: dict[str, float] = {}
    for line, _ in read_metrics(job.run_dir / "journal.jsonl"):
        metrics |= line["metrics"]
    assert metrics["dev/accuracy"] == result["scores"]["accuracy"]
    assert {"train/loss", "train/learning_rate", "train/grad_norm"} <= metrics.keys()


def test_the_same_job_gives_the_same_bytes_and_another_seed_does_not(make_job: MakeJob) -> None:
    jobs = [
        make_job(folder=name, num_epochs=1, dropout=0.1, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    for job in jobs:
        run_job(job)
    first, again, other = map(bytes_of, jobs)
    assert first == again
    assert first["model/model.safetensors"] != other["model/model.safetensors"]


def interrupt(after: int) -> Callable[[], bool]:
    """A stop request that comes when it was asked for `after` times."""
    asked = itertools.count()
    return lambda: next(asked) >= after


@pytest.mark.parametrize("after", [7, 15, 16, 40])
def test_a_stopped_job_goes_on_to_the_same_bytes(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    recipe = {"num_epochs": 3, "dropout": 0.1, "evaluate_every_epoch": True}
    whole, stopped = make_job(folder="whole", **recipe), make_job(folder="stopped", **recipe)
    stopped = stopped.model_copy(update={"checkpoint_every_seconds": 0.0})
    run_job(whole)
    assert run_guarded(lambda: stopped, lambda job, status: run_job(job, interrupt(after), status)) == 0
    assert not stopped.result_path.exists()
    [checkpoint] = (stopped.run_dir / "checkpoints").iterdir()
    status = read_state(stopped.status_path)
    assert status["state"] == "to be continued"
    assert int(checkpoint.name.removeprefix("step-")) == status["step"] > 0
    restored = []
    restore = Trainer.restore
    monkeypatch.setattr(Trainer, "restore", lambda *given: restored.append(restore(*given)))
    run_job(stopped)
    assert len(restored) == 1
    assert bytes_of(whole) == bytes_of(stopped)
    assert not (stopped.run_dir / "checkpoints").exists()
    lines = [line["step"] for line, _ in read_metrics(stopped.run_dir / "journal.jsonl") if line["stream"] == "train"]
    assert lines == sorted(set(lines)), "no step is written twice"


def test_checkpoints_of_long_jobs_survive_a_kill_and_damage(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, killed = make_job(folder="whole", num_epochs=2), make_job(folder="killed", num_epochs=2)
    killed = killed.model_copy(update={"checkpoint_every_seconds": 0.0})
    run_job(whole)
    monkeypatch.setattr(FinetuneRun, "_write", _die)
    with pytest.raises(KeyboardInterrupt):
        run_job(killed)
    monkeypatch.undo()
    [checkpoint] = (killed.run_dir / "checkpoints").iterdir()
    assert checkpoint.name == "step-00000030"
    content = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(content[: len(content) // 2])
    run_job(killed)
    assert bytes_of(whole) == bytes_of(killed)


def test_a_job_whose_directory_is_deleted_has_no_result(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(num_epochs=1)
    save = run.save_model

    def delete_and_save(*given: Any) -> None:
        shutil.rmtree(job.run_dir)
        save(*given)

    monkeypatch.setattr(run, "save_model", delete_and_save)
    with pytest.raises(UserError, match="deleted while the job worked"):
        run_job(job)
    assert not job.result_path.exists()


def _die(*_: Any) -> None:
    raise KeyboardInterrupt


def test_best_on_dev_keeps_the_best_epoch(make_job: MakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    job = make_job(num_epochs=4, evaluate_every_epoch=True, learning_rate=2e-3)
    run_job(job)
    result = read_state(job.result_path)
    values = [record["scores"]["accuracy"] for record in result["evaluations"]]
    assert len(values) == 4
    assert result["headline"]["value"] == max(values)
    assert result["best_epoch"] == values.index(max(values)) + 1
    num_steps = result["curve"][-1]["step"]
    losses = [point["loss"] for point in result["curve"] if point["step"] <= num_steps / 4]
    log = capsys.readouterr().out
    assert f"\nepoch 1/4  loss {sum(losses) / len(losses):.3f}  dev accuracy {values[0]:.1f}\n" in log
    assert [line.split()[1] for line in log.splitlines() if line.startswith("epoch")] == ["1/4", "2/4", "3/4", "4/4"]
    assert f"\ndev accuracy {max(values):.1f} (epoch {result['best_epoch']}), done at " in log


def test_a_model_that_learns_nothing_is_flagged(make_job: MakeJob) -> None:
    for name in ("sst2", "stsb", "ner"):
        job = make_job(name, folder=name, num_epochs=1, learning_rate=1e-9)
        run_job(job)
        result = read_state(job.result_path)
        if name != "stsb":  # an untrained regression still varies a little; a constant one is a unit test
            assert result["degenerate"] or result["headline"]["value"] < 70


def test_fewer_training_rows(make_job: MakeJob) -> None:
    job = make_job(num_epochs=1, max_train_rows=50)
    run_job(job)
    assert read_state(job.result_path)["num_train_rows"] == 50


def test_a_job_with_a_result_is_not_run_again(make_job: MakeJob) -> None:
    job = make_job(num_epochs=1)
    run_job(job)
    before = job.result_path.stat().st_mtime_ns
    run_job(job)
    assert job.result_path.stat().st_mtime_ns == before


def test_a_loss_that_is_no_number_is_a_fault_of_its_own(make_job: MakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    job = make_job(learning_rate=1000.0)
    with pytest.raises(Diverged, match="lower the learning rate"):
        run_job(job)
    assert run_guarded(lambda: job, lambda job, _: run_job(job)) == 1
    status = read_state(job.status_path)
    assert (status["state"], status["fault"]) == ("failed", "non-finite")
    assert not job.result_path.exists()
    assert capsys.readouterr().err.count("\n") == 1


def test_users_mistakes_are_one_line_and_two(
    make_job: MakeJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for job, message in (
        (make_job(max_length=65), "max_length 65 is more than the 64 positions of encoder 'small'"),
        (make_job(data_dir=tmp_path / "none"), "no such file"),
        (make_job(encoder_dir=tmp_path / "none"), "missing"),
        (make_job("squad1", max_length=8), "leaves no space for a context"),
    ):
        assert run_guarded(lambda job=job: job, lambda job, _: run_job(job)) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
        status = read_state(job.status_path)
        assert status["fault"] == "user" and message in status["message"]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 1 bytes")])
def test_running_out_of_memory_is_a_fault_of_its_own(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Trainer, "_optimize", fail)
    job = make_job()
    assert run_guarded(lambda: job, lambda job, _: run_job(job)) == 1
    assert read_state(job.status_path)["fault"] == "memory"


def test_a_job_file_is_checked(make_job: MakeJob, tmp_path: Path) -> None:
    document = make_job().model_dump(mode="json")
    write_json(tmp_path / "JOB.json", document)
    assert read_work(tmp_path / "JOB.json") == make_job()
    for change, message in (
        ({"benchmark": "sst-2"}, "did you mean 'sst2'"),
        ({"sead": 1}, "did you mean 'seed'"),
        ({"recipe": {"learning_rat": 1}}, "did you mean 'learning_rate'"),
        ({"recipe": {"batch_size": 0}}, "recipe.batch_size"),
    ):
        write_json(tmp_path / "JOB.json", {**document, **change})
        with pytest.raises(UserError, match=message):
            read_work(tmp_path / "JOB.json")


@pytest.mark.disruption
def test_as_a_process_it_stops_on_sigterm_and_finishes_the_next_time(make_job: MakeJob) -> None:
    job = make_job(num_epochs=200)
    path = job.run_dir / "JOB.json"
    write_json(path, job.model_dump(mode="json"))
    command = [sys.executable, "-P", "-m", "model.finetune", str(path)]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 60
    while not job.status_path.exists() or read_state(job.status_path)["step"] == 0:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert read_state(job.status_path)["state"] == "to be continued"
    write_json(path, {**job.model_dump(mode="json"), "recipe": {**job.recipe.model_dump(), "num_epochs": 1}})
    assert subprocess.run(command, check=False).returncode == 0
    assert job.result_path.exists()
