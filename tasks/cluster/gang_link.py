"""Connections from the supervisors of all nodes to the job's leader, by which both notice that a host or link is gone.

A host without power and a cut link close no connection, so ranks would wait for each other for
`model.engine.distributed.RANK_TIMEOUT`, which has to be long because a rank may compile for minutes. These connections
carry nothing but the job's exit code at its end. The kernel probes them, whatever the processes compute, and reports an
error after `SECONDS`.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import time
from collections.abc import Callable

VARIABLE = "CLOZE_GANG"  # ADDRESS:PORT, in the environment of supervisors
SECONDS = 60
"""How long a connection may be without an answer. TCP itself bridges shorter interruptions."""
_SECONDS_BETWEEN = 10
_SECONDS_TO_END = 60  # for ranks, after the leader has sent the job's exit code


class NoLeader(Exception):
    """The first node of a job cannot be reached."""


class GangLink:
    """The leader's side.

    Args:
        port: to listen on; 0 takes a free one.
    """

    def __init__(self, port: int = 0) -> None:
        self.lost = ""
        """Address of a host that does not answer any more; empty while all do."""
        self.is_broken = threading.Event()
        """Set with `lost`."""
        if socket.has_dualstack_ipv6():
            self._server = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            self._server = socket.create_server(("", port))
        self.port: int = self._server.getsockname()[1]
        self._members: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True, name="gang link").start()

    def tell(self, code: int) -> None:
        """Send the job's exit code to all members."""
        for connection in self._members:
            with contextlib.suppress(OSError):
                connection.sendall(bytes([code]))

    def _accept(self) -> None:
        while True:
            connection, (address, *_) = self._server.accept()
            self._members.append(connection)
            _watch(connection, functools.partial(self._end, address.removeprefix("::ffff:")))

    def _end(self, address: str, outcome: int | OSError | None) -> None:
        if isinstance(outcome, OSError):  # a supervisor that just ends is its launcher's concern
            self.lost = address
            self.is_broken.set()


class GangMember:
    """A node's side: connects to the leader at ADDRESS:PORT.

    Args:
        patience_seconds: how long the leader may take to start.

    Raises:
        NoLeader: there was no connection until then.
    """

    def __init__(self, address: str, patience_seconds: float = 0.0) -> None:
        self.is_broken = threading.Event()
        """Set when the leader or the link to it is gone, or when the job has ended a while ago."""
        self._has_ended = threading.Event()
        self._code: int | None = None
        host, _, port = address.rpartition(":")
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                connection = socket.create_connection((host, int(port)), timeout=SECONDS)
                break
            except OSError as error:  # also while the leader's name is not known yet
                if time.monotonic() >= deadline:
                    here = socket.gethostname()
                    raise NoLeader(f"{here} cannot reach the job's first node ({address}): {error}") from None
                time.sleep(1.0)
        connection.settimeout(None)
        _watch(connection, self._end)

    def wait_for_code(self, otherwise: int) -> int:
        """Wait for the job's exit code; `otherwise` if the leader or the link is gone before."""
        self._has_ended.wait()
        return otherwise if self._code is None else self._code

    def _end(self, outcome: int | OSError | None) -> None:
        if isinstance(outcome, int):
            self._code = outcome
            self._has_ended.set()
            time.sleep(_SECONDS_TO_END)
        self.is_broken.set()
        self._has_ended.set()


def _watch(connection: socket.socket, on_end: Callable[[int | OSError | None], None]) -> None:
    """Call `on_end` in a thread with what the other side sends, with None if it ends, or with an error."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SECONDS_BETWEEN)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SECONDS_BETWEEN)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, SECONDS // _SECONDS_BETWEEN - 1)

    def wait() -> None:
        outcome: int | OSError | None = None
        try:
            received = connection.recv(1)
            outcome = received[0] if received else None
        except OSError as reason:
            outcome = reason
        on_end(outcome)

    threading.Thread(target=wait, daemon=True, name="gang link").start()
