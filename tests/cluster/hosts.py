"""Several hosts on this machine: namespaces with their own network, mounts, processes and name, joined by a bridge.

The bridge is in a namespace as well, so nothing is added to the machine's own network, and tests that run side by side
cannot collide. All of it ends with the processes that hold the namespaces, which end with this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from model.common import process_guard

_Result = TypeVar("_Result")
_PROGRAMS = ("unshare", "nsenter", "ip", "tc", "mount", "env")
_CLONE_NEWNET = 0x40000000  # <linux/sched.h>
_SUBNET = "10.0.0."
_TBF = "tbf rate {} burst 256kb latency 50ms"
FULL_RATE = "10gbit"


def why_no_hosts() -> str | None:
    """Return why there can be no hosts here; None if there can be."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed (Debian: util-linux, iproute2, mount)"
    if os.geteuid():
        return "making hosts needs root"
    script = (
        "ip link add one0 type veth peer name two0 && tc qdisc add dev one0 root tbf rate 1gbit burst 1mb latency 50ms"
    )
    command = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-c", script]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"no namespaces or no tc here: {tried.stderr.strip()}" if tried.returncode else None


def _network(pid: int | str = "self") -> Path:
    """Network namespace of a process."""
    return Path(f"/proc/{pid}/ns/net").readlink()


class Host:
    """One host. Make it with `Hosts`.

    Args:
        number: its place on the bridge, from 1.
        has_processes: it has a PID namespace, so that `kill` ends all that runs on it at once. On a host without one,
            the process that `enter` starts is the command itself, with the pid that others see.
    """

    def __init__(self, hosts: Hosts, name: str, number: int, has_processes: bool) -> None:
        self._hosts, self.name, self._has_processes = hosts, name, has_processes
        self.address = f"{_SUBNET}{number}"
        self._port = f"port{number}"
        self._holder: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Boot the host, with a fresh /run and a link at the full rate."""
        spaces = ["--net", "--mount", "--uts", *(["--pid", "--fork", "--mount-proc"] if self._has_processes else [])]
        # PID 1 inherits orphans; a shell that waits for a child reaps them.
        init = ["sh", "-c", "while :; do sleep 1000; done"] if self._has_processes else ["sleep", "infinity"]
        command = ["unshare", *spaces, *init]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._holder = subprocess.Popen(command, preexec_fn=process_guard.die_with_parent, **quiet)
        while not (pid := self._find_init()) or _network(pid) == _network():
            assert self._holder.poll() is None, "unshare failed"
            time.sleep(0.01)
        self.pid = pid
        self._hosts.on_switch(f"ip link del {self._port} 2> /dev/null || true")  # of the time before a kill
        self._hosts.on_switch(
            f"ip link add {self._port} type veth peer name eth0 netns {pid} "
            f"&& ip link set {self._port} master bridge up"
        )
        self.sh(
            f"hostname {self.name} && mount -t tmpfs tmpfs /run && mount --bind {self._hosts.names} /etc/hosts "
            f"&& ip link set lo up && ip address add {self.address}/24 dev eth0 && ip link set eth0 up"
        )
        self.shape(FULL_RATE)

    def _find_init(self) -> int | None:
        assert self._holder is not None
        if not self._has_processes:
            return self._holder.pid
        children = psutil.Process(self._holder.pid).children()
        return children[0].pid if children else None

    @property
    def is_up(self) -> bool:
        """Check whether the host was started and not killed."""
        return self._holder is not None and self._holder.poll() is None

    def enter(self, folder: Path | str = "/") -> tuple[str, ...]:
        """Words to put before a command, which then runs on this host, in `folder`."""
        spaces = ["--net", "--mount", "--uts", *(["--pid"] if self._has_processes else [])]
        nsenter, env = (str(shutil.which(name)) for name in ("nsenter", "env"))  # also for commands without a PATH
        return (nsenter, f"--target={self.pid}", *spaces, env, "-C", str(folder))

    def run(self, *command: str, environment: Mapping[str, str] = {}) -> str:
        """Run a command on this host and return its standard output; empty if it fails."""
        done = subprocess.run(
            [*self.enter(), *command],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return "" if done.returncode else done.stdout

    def sh(self, script: str) -> None:
        """Run a shell script on this host.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        subprocess.run([*self.enter(), "sh", "-c", script], check=True, timeout=60)

    def start_daemon(self, command: Sequence[str], log: Path, **popen: Any) -> psutil.Process:
        """Start a command on this host, and return its process as it is seen from here."""
        with log.open("ab") as output:
            options: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": output,
                "stderr": output,
                "start_new_session": True,
                "preexec_fn": process_guard.die_with_parent,
            }
            outer = subprocess.Popen([*self.enter(), *command], **options | popen)
        self._hosts.started.append(outer)
        process = psutil.Process(outer.pid)
        if not self._has_processes:
            return process
        while not (children := process.children()):
            assert outer.poll() is None, log.read_text()
            time.sleep(0.01)
        return children[0]

    def inside(self, function: Callable[[], _Result]) -> _Result:
        """Call a function whose sockets are this host's, and return its result."""
        results: list[_Result] = []

        def run() -> None:
            with Path(f"/proc/{self.pid}/ns/net").open() as space:
                assert ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _CLONE_NEWNET) == 0
            results.append(function())

        thread = threading.Thread(target=run)  # the namespace is that of a thread
        thread.start()
        thread.join()
        [result] = results
        return result

    def cut(self) -> None:
        """Cut the host's link."""
        self._hosts.on_switch(f"ip link set {self._port} down")

    def restore(self) -> None:
        """Restore the link."""
        self._hosts.on_switch(f"ip link set {self._port} up")

    def shape(self, rate: str) -> None:
        """Limit the link to a rate such as 20mbit, in each direction."""
        self.sh(f"tc qdisc replace dev eth0 root {_TBF.format(rate)}")
        self._hosts.on_switch(f"tc qdisc replace dev {self._port} root {_TBF.format(rate)}")

    def lose(self, other: Host) -> None:
        """Send what is meant for another host nowhere."""
        self.sh(f"ip neigh replace {other.address} lladdr 02:00:00:00:00:99 dev eth0 nud permanent")

    def find(self, other: Host) -> None:
        """Undo `lose`."""
        self.sh(f"ip neigh del {other.address} dev eth0")

    def has(self, pid: int) -> bool:
        """Check whether a process, by its pid here, runs on this host."""
        return _network(pid) == _network(self.pid)

    def bind(self, source: Path, target: Path) -> None:
        """Mount the directory or file `source` over `target`, as only this host sees it."""
        self.sh(f"mount --bind {source} {target}")

    def unbind(self, target: Path) -> None:
        """Undo `bind`."""
        self.sh(f"umount {target}")

    def kill(self) -> None:
        """Kill everything on this host at once, as a power failure does: nobody hears of it."""
        assert self._has_processes
        self.cut()  # else the kernel closes the connections, and says so to the other ends
        psutil.Process(self.pid).kill()
        self.wait()

    def wait(self) -> None:
        """Wait until the host has ended."""
        assert self._holder is not None
        self._holder.wait(30)


class Hosts:
    """Hosts with these names, which are booted at once; `folder` holds their common /etc/hosts.

    The first one is for people: it has no PID namespace. Use as a context manager.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.names = folder / "hosts"
        self.started: list[subprocess.Popen[bytes]] = []
        self._all = [Host(self, name, number, number > 1) for number, name in enumerate(names, start=1)]
        lines = ["127.0.0.1 localhost", *(f"{one.address} {one.name}" for one in self._all)]
        self.names.write_text("".join(f"{line}\n" for line in lines))

    def __enter__(self) -> Hosts:
        command = ["unshare", "--net", "sleep", "infinity"]
        self._switch = subprocess.Popen(command, preexec_fn=process_guard.die_with_parent)
        try:
            while _network(self._switch.pid) == _network():
                time.sleep(0.01)
            self.on_switch("ip link add bridge type bridge && ip link set bridge up")
            for host in self._all:
                host.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
        for host in self._all:
            if host.is_up:
                psutil.Process(host.pid).kill()
                host.wait()
        self._switch.kill()
        self._switch.wait()

    def __getitem__(self, name: str) -> Host:
        return next(one for one in self._all if one.name == name)

    def __iter__(self) -> Any:
        return iter(self._all)

    def on_switch(self, script: str) -> None:
        """Run a shell script where the bridge and its ports are."""
        subprocess.run(["nsenter", f"--target={self._switch.pid}", "--net", "sh", "-c", script], check=True, timeout=60)
