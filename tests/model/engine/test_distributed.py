"""An encoder whose parts lie on two ranks learns what it learns on one, and goes on there."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from model.common.errors import UserError
from model.common.files import read_json, write_json
from model.config.hardware import Hardware, HardwareOptions, is_compiled, resolve
from tests.model.pretraining import MakeRun, command, one_thread, outputs, result_of, train


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["bert_adamw", "lamb", "muon"])
def test_sharded_over_two_ranks_and_on_one_again(make_run: MakeRun, optimizer: str) -> None:
    one = make_run("one", optimizer=optimizer)
    train(one)
    two = make_run("two", optimizer=optimizer, machine={"num_devices": 2, "strategy": "sharded"})
    subprocess.run(command(two, num_ranks=2), check=True, timeout=300, env=one_thread())
    # Muon makes its update orthogonal in bf16, whose roundings differ with the order of the sums.
    tolerance = 2e-3 if optimizer == "muon" else 2e-5
    expected, found = result_of(one), result_of(two)
    for name in ("curve", "heldout"):
        for first, second in zip(expected[name], found[name], strict=True):
            assert second["mlm_loss"] == pytest.approx(first["mlm_loss"], rel=tolerance)
    assert found["num_tokens_seen"] == expected["num_tokens_seen"]
    shutil.rmtree(two.run_dir / "checkpoints" / "step-00000024")
    (two.run_dir / "result.json").unlink()
    train(make_run("two", optimizer=optimizer))
    assert result_of(two)["curve"][-1]["loss"] == pytest.approx(expected["curve"][-1]["loss"], rel=tolerance)


NODES = """
import os, sys
from model.pretrain.__main__ import main
sys.exit(main([sys.argv[1] if os.environ["RANK"] == "0" else sys.argv[1].replace(".json", "-2.json")]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "sharded"])
def test_ranks_resume_where_the_first_one_does(make_run: MakeRun, tmp_path: Path, strategy: str) -> None:
    """Rank 1 sees an older checkpoint directory, or none, and all end with the bits of the undisturbed run."""
    machine = {"num_devices": 2, "strategy": strategy, "num_threads": 1}
    (tmp_path / "nodes.py").write_text(NODES)
    whole = make_run("whole", machine=machine)
    subprocess.run(command(whole, num_ranks=2), check=True, timeout=300, env=one_thread())
    steps = sorted(path.name for path in (whole.run_dir / "checkpoints").iterdir())
    assert len(steps) >= 2
    for name, seen in (("older", steps[:1]), ("none", [])):
        run = make_run(name, machine=machine)
        second = run.model_copy(update={"run_dir": tmp_path / f"{name}-elsewhere"})
        shutil.copytree(whole.run_dir, run.run_dir)
        shutil.rmtree(run.run_dir / "checkpoints" / steps[-1])
        (run.run_dir / "result.json").unlink()
        for step in seen:
            shutil.copytree(whole.run_dir / "checkpoints" / step, second.run_dir / "checkpoints" / step)
        write_json(run.run_dir.with_name(f"{name}-2.json"), second.model_dump(mode="json"))
        program = (str(tmp_path / "nodes.py"),)
        subprocess.run(command(run, program=program, num_ranks=2), check=True, timeout=300, env=one_thread())
        expected, found = outputs(whole), outputs(run)
        assert {name for name in expected if expected[name] != found[name]} <= {"state.json", "digests.json"}


@pytest.mark.slow
@pytest.mark.disruption
@pytest.mark.parametrize("victim", ["0", "1"])
def test_a_dead_rank_ends_the_job_in_seconds(make_run: MakeRun, victim: str) -> None:
    phases = [{"sequence_length": 32, "batch_size": 16, "num_steps": 50_000, "learning_rate": 1e-3}]
    run = make_run(phases=phases, machine={"num_devices": 2}, validate_every_steps=10**6)
    job = subprocess.Popen(command(run, num_ranks=2), env=one_thread(), stderr=subprocess.DEVNULL)
    path, deadline = run.run_dir / "status.json", time.monotonic() + 120
    while not path.exists() or read_json(path)["step"] < 20:
        assert job.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    ranks = {one.environ().get("RANK"): one for one in psutil.Process(job.pid).children(recursive=True)}
    ranks[victim].kill()
    assert job.wait(45) == 1  # torchrun gives the others 30 s at most
    status = read_json(path)
    if victim == "1":
        assert (status["state"], status["fault"], status["message"]) == ("failed", "lost", "a rank exited or timed out")
    else:
        assert (
            status["state"] == "running"
        )  # nobody was left to say it; tasks.jobs.supervision.supervise knows what that means
    assert not any(one.is_running() for one in ranks.values())


def test_a_strategy_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="several processes"):
        resolve(HardwareOptions(strategy="sharded"))
    with pytest.raises(UserError, match="cannot be compiled"):
        resolve(HardwareOptions(strategy="sharded", num_devices=2, compile="on"))
    sharded = Hardware("gpu", "sharded", "bf16", 1, "cuda")
    assert not is_compiled(HardwareOptions(strategy="sharded", num_devices=2), sharded, 1e9)
    with pytest.raises(UserError, match="set it to ddp"):
        resolve(HardwareOptions(strategy="single", num_devices=2))
