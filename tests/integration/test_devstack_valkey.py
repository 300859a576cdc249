"""Valkey from the wheel: data through restarts and kills, who may do what, many starts at once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from session_custody.devstack import ValkeyConfig, ValkeyServer
from session_custody.devstack.account import server_account
from session_custody.devstack.valkey import pong
from tests.integration.devstack_proc import is_dead, listening

pytestmark = pytest.mark.valkey


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as started:
        yield started


def test_data_outlive_a_restart_and_a_sigkill_on_the_same_port(server: ValkeyServer) -> None:
    before = server.address
    with redis.Redis.from_url(before.url) as client:
        client.set("one", "1")
        server.restart()
        client.set("two", "2")
        killed = server.pid
        server.kill()
        assert is_dead(killed)
        assert server.start() == before
        assert client.mget("one", "two") == [b"1", b"2"]


def test_a_wrong_password_and_none_are_refused(server: ValkeyServer) -> None:
    host, port = server.address.host, server.address.port
    assert pong(host, port, server.password())
    assert not pong(host, port, "wrong")
    with redis.Redis(host=host, port=port) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def test_it_listens_on_the_loopback_address_only(server: ValkeyServer) -> None:
    assert listening(server.pid) == {f"127.0.0.1:{server.address.port}"}


def test_folders_are_closed(server: ValkeyServer) -> None:
    account = server_account()
    owner = account.uid if account else os.getuid()
    for path, mode in ((server.home.data, 0o700), (server.home.data / "valkey.conf", 0o600)):
        found = path.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid) == (mode, owner)
    assert stat.S_IMODE(server.home.own.stat().st_mode) == 0o700


def test_a_temporary_home_goes_when_it_is_closed() -> None:
    with ValkeyServer(ValkeyConfig(settings={"maxmemory": "64mb"})) as started:
        root, pid = started.home.root, started.pid
        assert root.is_dir()
    assert not root.exists()
    assert is_dead(pid)


def test_eight_started_at_once_have_eight_ports() -> None:
    servers = [ValkeyServer() for _ in range(8)]
    try:
        with ThreadPoolExecutor(8) as pool:
            ports = {address.port for address in pool.map(ValkeyServer.start, servers)}
        assert len(ports) == 8
    finally:
        for one in servers:
            one.close()


def test_a_port_that_was_taken_meanwhile_is_given_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with ValkeyServer() as first:
        second = ValkeyServer()
        offered = iter([first.address.port, first.address.port])
        choose = second.choose_port
        monkeypatch.setattr(second, "choose_port", lambda: next(offered, None) or choose())
        with second:
            assert second.address.port != first.address.port
            assert next(offered, None) is None
