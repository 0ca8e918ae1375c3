"""Debian's Slurm on hosts of `tests.cluster.hosts`: a login host with the controller, and nodes with two GPUs each."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from pathlib import Path

import psutil

from tests.cluster.hosts import Host, Hosts, why_no_hosts
from tests.waiting import wait_for

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
SLURMD_TIMEOUT = 30
"""Seconds after which Slurm gives up a node that does not answer (Slurm's default: 300)."""
REQUEUE_DELAY = int(os.environ.get("CLUSTER_REQUEUE_DELAY", "10"))
"""Seconds that Slurm waits before it starts a requeued job again (Slurm's default: 120)."""
NODES = ("node1", "node2", "node3")
_CONF = f"""ClusterName=trial
SlurmctldHost=login({{login}})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire={REQUEUE_DELAY}
CredType=cred/munge
StateSaveLocation={{folder}}/state
SlurmdSpoolDir={{folder}}/spool-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
ReturnToService=2
SlurmdTimeout={SLURMD_TIMEOUT}
SlurmdParameters=config_overrides
KillWait=10
MessageTimeout=5
JobRequeue=1
SchedulerParameters=sched_interval=2,batch_sched_delay=0
MpiDefault=none
SwitchType=switch/none
{{nodes}}
PartitionName=main Nodes={",".join(NODES)} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:2
"""


def why_not() -> str | None:
    """Return why Slurm cannot run here; None if it can."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"{missing[0]} is not installed (bash tests/install.sh)" if missing else why_no_hosts()


class Slurm:
    """A cluster of a login host and three nodes, whose state is in `folder`. Jobs use the third node last.

    `environment` makes Slurm's commands use it, on its hosts. Use as a context manager.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.hosts = Hosts(folder, ["login", *NODES])
        self.login = self.hosts["login"]
        self._slurmd: dict[str, psutil.Process] = {}

    def __enter__(self) -> Slurm:
        (self.folder / "state").mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        with contextlib.ExitStack() as opened:
            opened.enter_context(self.hosts)
            nodes = (
                f"NodeName={name} NodeAddr={self.hosts[name].address} CPUs=2 Gres=gpu:2 Weight={weight} State=UNKNOWN"
                for weight, name in zip((1, 1, 9), NODES, strict=True)
            )
            conf = _CONF.format(login=self.login.address, folder=self.folder, nodes="\n".join(nodes))
            (self.folder / "slurm.conf").write_text(conf)
            (self.folder / "gres.conf").write_text("Name=gpu File=/run/gpu[0-1]\n")
            self._start_munged(self.login)
            self._start(self.login, "slurmctld", "-D", "-f", self.environment["SLURM_CONF"])
            for name in NODES:
                (self.folder / f"spool-{name}").mkdir()
                self.boot(name)
            self.wait_for_nodes()
            opened.callback(self.clear)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def clear(self) -> None:
        """Kill all jobs."""
        for line in self.jobs():
            self.ask("scancel", "--signal=KILL", "--full", line.split()[0])
            self.ask("scancel", line.split()[0])

    def boot(self, name: str) -> None:
        """Start a node's daemons; it is a host that was just booted."""
        self._start_munged(self.hosts[name])
        self.hosts[name].sh("mknod /run/gpu0 c 1 3 && mknod /run/gpu1 c 1 3")
        self.start_slurmd(name)

    def start_slurmd(self, name: str) -> None:
        """Start a node's slurmd."""
        command = ("slurmd", "-D", "-N", name, "-f", self.environment["SLURM_CONF"])
        self._slurmd[name] = self._start(self.hosts[name], *command)

    def kill_slurmd(self, name: str) -> None:
        """Kill a node's slurmd with SIGKILL; its steps live on."""
        self._slurmd[name].send_signal(signal.SIGKILL)
        wait_for(lambda: not self._slurmd[name].is_running(), 10)

    def reboot(self, name: str) -> None:
        """Boot a node that was killed."""
        self.hosts[name].start()
        self.boot(name)

    def ask(self, *command: str) -> str:
        """Output of one of Slurm's commands; empty if it fails."""
        return self.login.run(*command, environment=self.environment)

    def jobs(self) -> list[str]:
        """Lines of squeue: id, state, name, comment."""
        return self.ask("squeue", "-h", "-o", "%i %T %j %k").splitlines()

    def job_nodes(self) -> list[str]:
        """Nodes of the only job, its first one first."""
        return self.ask("scontrol", "show", "hostnames", self.ask("squeue", "-h", "-o", "%N").strip()).split()

    def restarts(self) -> int:
        """How often Slurm has started the only job again."""
        [line] = self.jobs()
        found = re.search(r"Restarts=(\d+)", self.ask("scontrol", "show", "job", line.split()[0]))
        return int(found[1]) if found else 0

    def wait_for_nodes(self, seconds: float = 120) -> None:
        """Wait until all nodes are idle."""
        wait_for(lambda: self._idle_nodes() == list(NODES), seconds)

    def _idle_nodes(self) -> list[str]:
        return sorted(set(self.ask("sinfo", "-h", "-N", "-r", "-t", "idle", "-o", "%N").split()))

    def repair(self) -> None:
        """Boot nodes again that are not idle within 30 s, for the next test."""
        with contextlib.suppress(AssertionError):
            self.wait_for_nodes(30)
        for name in set(NODES) - set(self._idle_nodes()):
            if self.hosts[name].is_up:
                self.hosts[name].kill()
            self.reboot(name)
        self.wait_for_nodes()

    def wait_until_up(self, seconds: float = 120) -> None:
        """Wait until all nodes answer, with or without jobs."""
        states = "idle,alloc,mix,comp"
        wait_for(lambda: self.ask("sinfo", "-h", "-r", "-t", states, "-o", "%D").split() == [str(len(NODES))], seconds)

    def _start_munged(self, host: Host) -> None:
        host.sh("mkdir -p /run/munge")
        files = [f"--{one}=/run/munge/{one}" for one in ("pid-file", "log-file", "seed-file")]
        self._start(host, "munged", "--foreground", "--force", f"--key-file={self.folder / 'munge.key'}", *files)
        wait_for(lambda: host.run("munge", "-n"), 30)

    def _start(self, host: Host, *command: str) -> psutil.Process:
        log = self.folder / f"{host.name}-{command[0]}.log"
        return host.start_daemon(command, log, env={**os.environ, **self.environment})
