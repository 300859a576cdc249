"""However we end, no server outlives us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from session_custody.devstack import PostgresServer, ValkeyServer
from tests.integration.devstack_proc import is_dead, running_with, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.valkey]

STARTS_ALL = """
import json, os, sys, time
from session_custody.devstack import DevStack
stack = DevStack()
stack.start()
servers = (stack.kafka_server, stack.postgres_server, stack.valkey_server)
told = {"pids": [one.pid for one in servers], "homes": [str(one.home.root) for one in servers]}
print(json.dumps(told), flush=True)
if "fork" in sys.argv and os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
time.sleep(600)
"""


class Parent:
    """A process that started all servers."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", STARTS_ALL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.readline())
        self.pids: list[int] = told["pids"]
        self.homes: list[str] = told["homes"]
        self.child = int(self.process.stdout.readline()) if "fork" in arguments else None

    def close(self) -> None:
        if self.child:
            os.kill(self.child, signal.SIGKILL)  # first: it holds the pipe that we read to its end
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def parent() -> Iterator[Parent]:
    started = Parent()
    yield started
    started.close()


@pytest.fixture
def forking_parent() -> Iterator[Parent]:
    started = Parent("fork")
    yield started
    started.close()


def nothing_is_left(parent: Parent) -> bool:
    return all(map(is_dead, parent.pids)) and not any(map(running_with, parent.homes))


def test_nothing_is_left_of_a_parent_that_was_sigkilled(parent: Parent) -> None:
    assert not any(map(is_dead, parent.pids))
    parent.process.kill()
    assert wait_until(lambda: nothing_is_left(parent))
    assert wait_until(lambda: not any(Path(home).exists() for home in parent.homes))


def test_a_forked_child_that_holds_the_pipe_open_does_not_keep_servers_alive(forking_parent: Parent) -> None:
    forking_parent.process.kill()
    forking_parent.process.wait()
    assert wait_until(lambda: nothing_is_left(forking_parent))
    assert forking_parent.child is not None
    assert not is_dead(forking_parent.child)


def test_a_killed_keeper_takes_its_server_along() -> None:
    with ValkeyServer() as server:
        keeper = int(Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1])
        pid = server.pid
        os.kill(keeper, signal.SIGKILL)
        assert server.ended(10)
        assert wait_until(lambda: is_dead(pid))
        server.start()
        assert server.running


def test_sigint_of_the_terminal_reaches_no_server() -> None:
    with PostgresServer() as server:
        assert os.getpgid(server.pid) == server.pid
        assert os.getsid(server.pid) == server.pid


def test_the_command_prints_json_and_ends_its_servers_when_stdin_closes() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "session_custody.devstack", "postgres", "valkey"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    assert told["origin"] == {"postgres": "packages", "valkey": "packages"}
    assert told["kafka"] == ""
    port = told["postgres_dsn"].rpartition(":")[2].split("/")[0]
    assert running_with(f"port={port}")
    _, progress = process.communicate(input="", timeout=30)
    assert process.returncode == 0
    assert not running_with(f"port={port}")
    assert told["postgres_dsn"] not in progress


def test_the_command_ends_its_servers_at_sigterm() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "session_custody.devstack", "valkey"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    keepers = [pid for pid in running_with("keeper.py") if parent_of(pid) == process.pid]
    assert keepers
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert told["valkey_url"].startswith("redis://:")
    assert all(map(is_dead, keepers))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
