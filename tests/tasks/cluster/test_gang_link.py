"""Supervisors notice that their leader ends, and get the job's exit code; one that ends alarms nobody."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time

import pytest

from tasks.cluster.gang_link import GangLink, GangMember, NoLeader

GANG = """
import sys
from tasks.cluster.gang_link import GangLink
link = GangLink()
print(link.port, flush=True)
sys.stdin.readline()
"""


def test_a_supervisor_notices_that_its_gang_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", GANG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as gang:
        assert gang.stdout is not None
        member = GangMember(f"127.0.0.1:{int(gang.stdout.readline())}")
        assert not member.is_broken.wait(0.5)
        gang.kill()
        assert member.is_broken.wait(5)
        assert member.wait_for_code(otherwise=1) == 1


def test_members_get_the_exit_code() -> None:
    link = GangLink()
    members = [GangMember(f"127.0.0.1:{link.port}") for _ in range(3)]
    time.sleep(0.5)
    link.tell(75)
    assert [member.wait_for_code(otherwise=1) for member in members] == [75] * 3
    assert not any(member.is_broken.is_set() for member in members), "the ranks have time to end"


def test_a_member_waits_for_a_leader_that_starts_later() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    links: list[GangLink] = []
    threading.Timer(2, lambda: links.append(GangLink(port))).start()
    assert not GangMember(f"127.0.0.1:{port}", patience_seconds=30).is_broken.is_set()


def test_a_supervisor_that_ends_is_not_lost() -> None:
    link = GangLink()
    socket.create_connection(("127.0.0.1", link.port)).close()
    time.sleep(0.5)
    assert link.lost == ""


def test_nobody_answers() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(NoLeader, match="cannot reach the job's first node.*refused"):
        GangMember(f"127.0.0.1:{port}")
