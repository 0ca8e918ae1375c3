"""The supervisor of a node: its command, its exit codes, and a stop that is handed on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from model.common.errors import UserError
from model.common.files import write_json
from model.common.state_files import read_state
from model.config.pretraining import PretrainRun
from tasks.cluster import node_supervisor
from tests.servers import free_port


def run_of(tmp_path: Path, num_nodes: int = 1, num_devices: int = 1) -> PretrainRun:
    return PretrainRun.parse(
        {
            "name": "small",
            "digest": "0123456789abcdef",
            "tokens_dir": tmp_path / "tokens",
            "tokenizer_dir": tmp_path / "tokenizer",
            "run_dir": tmp_path / "run",
            "shape": {"preset": "tiny"},
            "machine": {"num_nodes": num_nodes, "num_devices": num_devices},
        },
        "test",
    )


def test_one_process_needs_no_torchrun(tmp_path: Path) -> None:
    command = node_supervisor.node_command(run_of(tmp_path), Path("RUN.json"), {})
    assert command == [sys.executable, "-P", "-m", "model.pretrain", "RUN.json"]
    command = node_supervisor.node_command(run_of(tmp_path, num_devices=4), Path("RUN.json"), {})
    assert "--nproc-per-node=4" in command and "--standalone" in command


@pytest.mark.parametrize("name", ["NODE_RANK", "JOB_COMPLETION_INDEX", "SLURM_NODEID"])
def test_a_node_is_told_by_whoever_started_it_which_one_it_is(tmp_path: Path, name: str) -> None:
    environment = {name: "1", "MASTER_ADDR": "pretrain-0.pretrain"}
    command = node_supervisor.node_command(run_of(tmp_path, 2, 8), Path("RUN.json"), environment)
    wanted = {"--nnodes=2", "--node-rank=1", "--nproc-per-node=8", "--master-addr=pretrain-0.pretrain"}
    assert wanted | {"--master-port=29500"} <= set(command)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "set MASTER_ADDR to the first node's name and NODE_RANK"),
        ({"NODE_RANK": "1"}, "set MASTER_ADDR"),
        ({"NODE_RANK": "2", "MASTER_ADDR": "a"}, "node rank 2 is not valid for 2 nodes; ranks start at 0"),
    ],
)
def test_a_node_that_does_not_know_its_place_is_refused(
    tmp_path: Path, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        node_supervisor.node_command(run_of(tmp_path, 2, 8), Path("RUN.json"), environment)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"state": "to be continued"}, 75),
        ({"state": "failed", "fault": "user"}, 2),
        ({"state": "failed", "fault": "lost"}, 1),
        ({"state": "running"}, 1),
        ({}, 1),
    ],
)
def test_files_say_how_it_ended(tmp_path: Path, status: dict[str, str], code: int) -> None:
    run = run_of(tmp_path)
    write_json(run.run_dir / "status.json", status)
    assert node_supervisor.exit_code_of(run) == code
    write_json(run.run_dir / "result.json", {"digest": "another job's"})
    assert node_supervisor.exit_code_of(run) == code
    write_json(run.run_dir / "result.json", {"digest": run.digest})
    assert node_supervisor.exit_code_of(run) == 0


def test_a_mistake_is_one_line_and_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert node_supervisor.main([str(tmp_path / "RUN.json")]) == 2
    assert "missing; give the path of a RUN.json" in capfd.readouterr().err


STAND_IN = """
import json, os, pathlib, signal, sys, time
run = json.loads(pathlib.Path(sys.argv[1]).read_text())["run_dir"]
def save(*_):
    time.sleep(0.3)
    rank = os.environ.get("RANK", "0")
    pathlib.Path(run, f"saved-{rank}").touch()
    if rank == "0":
        pathlib.Path(run, "status.json").write_text(json.dumps({"state": "to be continued", "time": time.time()}))
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
pathlib.Path(run, f"up-{os.environ.get('RANK', '0')}").touch()
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_request_to_stop_reaches_every_rank_and_becomes_75(tmp_path: Path, num_ranks: int) -> None:
    run = run_of(tmp_path, num_devices=num_ranks)
    run.run_dir.mkdir()
    write_json(tmp_path / "RUN.json", run.model_dump(mode="json"))
    stand_in = tmp_path / "stand_in.py"
    stand_in.write_text(STAND_IN)
    program = (
        "import sys; from tasks.cluster import node_supervisor as node; ask = node.node_command\n"
        "def command(*given):\n"
        "    words = ask(*given); at = words.index('model.pretrain')\n"
        f"    return [*words[:at - 1], {str(stand_in)!r}, *words[at + 1:]]\n"
        "node.node_command = command\n"
        "sys.exit(node.main(sys.argv[1:]))"
    )
    process = subprocess.Popen([sys.executable, "-P", "-c", program, str(tmp_path / "RUN.json")], env=os.environ)
    try:
        deadline = time.monotonic() + 120
        while len(list(run.run_dir.glob("up-*"))) < num_ranks and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 75
    finally:
        process.kill()
    assert len(list(run.run_dir.glob("saved-*"))) == num_ranks
    assert read_state(run.run_dir / "status.json")["state"] == "to be continued"


def test_a_request_to_stop_ends_a_node_that_waits_for_another(tmp_path: Path) -> None:
    run = run_of(tmp_path, 2)
    write_json(tmp_path / "RUN.json", run.model_dump(mode="json"))
    program = (
        "import sys; from tasks.cluster import node_supervisor as node; node._MOST_IDLE_ROUNDS = 4\n"
        "sys.exit(node.main(sys.argv[1:]))"
    )
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "NODE_RANK": "0"}
    command = [sys.executable, "-P", "-c", program, str(tmp_path / "RUN.json")]
    process = subprocess.Popen(command, env=environment)
    try:
        time.sleep(3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == node_supervisor.FAILED
    finally:
        process.kill()
