"""Debian's Slurm on this machine, with two slurmd that are two nodes to it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
_CONF = """ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldPort={ports[0]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout=10
KillWait=10
MessageTimeout=5
JobRequeue=1
SchedulerParameters=sched_interval=2,batch_sched_delay=0
MpiDefault=none
SwitchType=switch/none
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=main Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:2
"""


def why_not() -> str | None:
    """Return why Slurm cannot run here; None if it can."""
    if os.geteuid():
        return "Slurm's daemons need root"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"{missing[0]} is not installed (Debian: slurm-wlm, munge)" if missing else None


class Slurm:
    """A cluster of two nodes, whose state is in `folder`. `environment` makes Slurm's commands use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all daemons, and wait until both nodes are idle."""
        (self.folder / "state").mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        sockets = [socket.socket() for _ in range(3)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in sockets]
        for one in sockets:
            one.close()
        conf = _CONF.format(host=socket.gethostname(), folder=self.folder, ports=ports)
        (self.folder / "slurm.conf").write_text(conf)
        files = [
            f"--{name}={self.folder}/munge.{name.partition('-')[0]}" for name in ("socket", "pid-file", "log-file")
        ]
        self._start("munged", "--foreground", "--force", f"--key-file={key}", f"--seed-file={self.folder}/seed", *files)
        self._wait_for((self.folder / "munge.socket").exists)
        self._start("slurmctld", "-D", "-f", self.environment["SLURM_CONF"])
        for node in ("node1", "node2"):
            (self.folder / f"spool-{node}").mkdir()
            self.boot(node)
        self._wait_for(lambda: self.ask("sinfo", "-h", "-o", "%t %D").strip() == "idle 2")

    def boot(self, node: str) -> None:
        """Start a node's slurmd."""
        self._start("slurmd", "-D", "-N", node, "-f", self.environment["SLURM_CONF"], name=node)

    def kill(self, node: str) -> None:
        """Kill a node's slurmd with SIGKILL; its steps live on."""
        self._daemons[node].kill()
        self._daemons[node].wait()

    def ask(self, *command: str) -> str:
        """Output of one of Slurm's commands; empty if it fails."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
        )
        return done.stdout

    def jobs(self) -> list[str]:
        """Lines of squeue: id, state, name, comment."""
        return self.ask("squeue", "-h", "-o", "%i %T %j %k").splitlines()

    def close(self) -> None:
        """Cancel all jobs and stop all daemons, with what they started."""
        for line in self.jobs():
            self.ask("scancel", "--signal=KILL", "--full", line.split()[0])
        for daemon in reversed(self._daemons.values()):
            below = psutil.Process(daemon.pid).children(recursive=True) if daemon.poll() is None else []
            for process in below:
                process.kill()
            daemon.send_signal(signal.SIGKILL)
            daemon.wait()
        for process in psutil.process_iter(["cmdline"]):  # slurmstepd leaves its parent
            if any(str(self.folder) in word for word in process.info["cmdline"] or []):
                process.kill()

    def _start(self, *command: str, name: str = "") -> None:
        log = (self.folder / f"{name or command[0]}.log").open("ab")
        self._daemons[name or command[0]] = subprocess.Popen(
            command, env={**os.environ, **self.environment}, stdout=log, stderr=log, start_new_session=True
        )

    def _wait_for(self, condition: object, seconds: float = 30) -> None:
        assert callable(condition)
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"Slurm does not come up; see the logs in {self.folder}"
            time.sleep(0.2)
