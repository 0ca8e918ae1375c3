"""An encoder whose parts lie on two ranks learns what it learns on one, and goes on there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from model.common.errors import UserError
from model.common.files import read_json, write_json
from model.common.state_files import read_state
from model.config.hardware import Hardware, HardwareOptions, is_compiled, resolve
from model.config.pretraining import PretrainRun
from model.engine.checkpoint import Checkpoint, load_checkpoint
from tests.model.pretraining import MakeRun, command, one_thread, result_of, train


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
        for file in ("result.json", "encoder/model.safetensors"):
            assert (run.run_dir / file).read_bytes() == (whole.run_dir / file).read_bytes()
        expected, found = (load_checkpoint(one.run_dir / "checkpoints" / steps[-1]) for one in (whole, run))
        assert same_tensors(found, expected)
        # Ranks without a common directory cannot write parts of one checkpoint: the first one writes all of it.
        assert [path.name for path in found.path.glob("model*")] == ["model.safetensors"]


RESAVE = """
import sys
from pathlib import Path
from model.common.status import Status
from model.config.pretraining import read_run
from model.engine.callbacks import Checkpointing
from model.pretrain.training import Pretraining
run = read_run(Path(sys.argv[1]))
trainer = Pretraining(run, Status.of_job(run.run_dir), lambda: False).make_trainer()
[saving] = [callback for callback in trainer.callbacks if isinstance(callback, Checkpointing)]
saving.on_train_start(trainer)
saving.save(trainer)
saving.on_train_end(trainer)
"""


@pytest.mark.slow
def test_any_number_of_ranks_reads_the_parts_to_the_same_bits(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "resave.py").write_text(RESAVE)
    phases = [{"sequence_length": 32, "batch_size": 12, "num_steps": 24, "learning_rate": 3e-3}]

    def run_on(num_ranks: int, strategy: str) -> PretrainRun:
        machine = {"num_devices": num_ranks, "strategy": strategy}
        return make_run(f"{num_ranks} {strategy}", machine=machine, phases=phases, skip_spikes_above=5.0)

    two = run_on(2, "sharded")
    subprocess.run(command(two, num_ranks=2), check=True, timeout=300, env=one_thread())
    step = "checkpoints/step-00000024"
    expected = load_checkpoint(two.run_dir / step)
    assert sorted(path.name for path in expected.path.iterdir()) == [
        "digests.json",
        *(f"model-0000{part}-of-00002.safetensors" for part in (1, 2)),
        *(f"optimizer-0000{part}-of-00002.safetensors" for part in (1, 2)),
        "state.json",
    ]
    sizes = [path.stat().st_size for path in sorted(expected.path.glob("optimizer*"))]
    assert max(sizes) < 1.1 * min(sizes), "each rank wrote its share"
    encoder = load_file(two.run_dir / "encoder" / "model.safetensors")
    assert torch.equal(
        expected.weights["encoder.embeddings.token.weight"], encoder["bert.embeddings.word_embeddings.weight"]
    )
    for num_ranks, strategy in ((1, "auto"), (3, "sharded"), (2, "ddp")):
        run = run_on(num_ranks, strategy)
        shutil.copytree(two.run_dir, run.run_dir)
        program = (str(tmp_path / "resave.py"),)
        subprocess.run(command(run, program=program, num_ranks=num_ranks), check=True, timeout=300, env=one_thread())
        found = load_checkpoint(run.run_dir / step)
        assert same_tensors(found, expected)
        parts = [path.name for path in sorted(found.path.glob("model*"))]
        assert parts == (
            [f"model-0000{part}-of-00003.safetensors" for part in (1, 2, 3)]
            if strategy == "sharded"
            else ["model.safetensors"]
        )


MEMORY = """
import os, re, sys
from pathlib import Path
from model.data.loader import PretrainLoader
from model.pretrain.__main__ import main

def peak() -> int:
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

def at(self, step, real=PretrainLoader.at):
    with open(Path(sys.argv[1]).with_name(f"peaks-{os.environ['RANK']}"), "a") as file:
        print(step, peak(), file=file)
    return real(self, step)

PretrainLoader.at = at
sys.exit(main([sys.argv[1]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory of a process from /proc")
def test_saving_takes_no_memory_of_other_ranks_and_is_reused_on_the_first(make_run: MakeRun, tmp_path: Path) -> None:
    """A row of peaks is a step's: checkpoints are saved after steps 6, 9 and 12 (of 14)."""
    (tmp_path / "memory.py").write_text(MEMORY)
    phases = [{"sequence_length": 32, "batch_size": 4, "num_steps": 14, "learning_rate": 1e-3}]
    small = make_run(phases=phases, machine={"num_devices": 2}, checkpoint_every_steps=3, validation_batches=0)
    content = small.model_dump(mode="json")
    content["shape"] |= {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6}
    run = PretrainRun.parse(content, "test")
    program = (str(tmp_path / "memory.py"),)
    subprocess.run(command(run, program=program, num_ranks=2), check=True, timeout=300, env=one_thread())
    size = sum(path.stat().st_size for path in (run.run_dir / "checkpoints" / "step-00000012").glob("*.safetensors"))
    assert size > 60 * 2**20
    for rank, least in ((0, 0.8), (1, 0.0)):
        rows = [list(map(int, line.split())) for line in (tmp_path / f"peaks-{rank}").read_text().splitlines()]
        peaks = dict(rows)
        first, later = peaks[5] - peaks[2], peaks[13] - peaks[8]
        print(f"rank {rank}: {first / size:+.2f} checkpoints by the first save, {later / size:+.2f} by later ones")
        assert least * size <= first < (least + 0.2) * size + 0.2 * size * (rank == 0)
        assert later < 0.1 * size


def same_tensors(one: Checkpoint, other: Checkpoint) -> bool:
    """Check that two checkpoints have the same tensors to the last bit."""
    return all(
        mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
        for mine, theirs in ((one.weights, other.weights), (one.moments, other.moments))
    )


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
    status = read_state(path)
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
