"""Route pins against a real Valkey: read by session, and never a reason to stop (DESIGN 14)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from session_custody.devstack import Address
from session_custody.route import RedisRoutePins

pytestmark = [pytest.mark.anyio, pytest.mark.valkey]

PIN = {
    "tenant": "bank-a",
    "route_id": "fraud_investigate",
    "route_table_version": "2026.08.1",
    "activation_target": "https://app.internal/v1/runs",
    "correlation_id": "run-1",
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def pins(url: str, prefix: str) -> AsyncIterator[tuple[RedisRoutePins, Redis]]:
    it = RedisRoutePins(url, lambda session: f"{prefix}:{{{session}}}", read_s=2.0)
    writer = Redis.from_url(url)
    try:
        yield it, writer
    finally:
        await it.close()
        await writer.aclose()


async def test_a_hash_and_a_json_string_are_read_alike(valkey_server: Address) -> None:
    prefix = uuid4().hex
    async with pins(valkey_server.url, prefix) as (it, writer):
        await writer.hset(f"{prefix}:{{s-1}}", mapping=dict([*PIN.items(), ("something", "else")]))
        await writer.set(f"{prefix}:{{s-2}}", json.dumps({**PIN, "number": 7}))
        assert await it.read("s-1") == PIN
        assert await it.read("s-2") == PIN


async def test_missing_expired_and_junk_pins_are_none(valkey_server: Address) -> None:
    prefix = uuid4().hex
    async with pins(valkey_server.url, prefix) as (it, writer):
        await writer.set(f"{prefix}:{{expired}}", json.dumps(PIN), px=1)
        await writer.set(f"{prefix}:{{junk}}", "{no json")
        await writer.set(f"{prefix}:{{list}}", "[1]")
        await writer.set(f"{prefix}:{{long}}", "x" * 20_000)
        await writer.sadd(f"{prefix}:{{set}}", "a")
        async with asyncio.timeout(5):
            while await writer.exists(f"{prefix}:{{expired}}"):  # noqa: ASYNC110 - the server's clock ends it
                await asyncio.sleep(0.002)
        for session in ("absent", "expired", "junk", "list", "long", "set"):
            assert await it.read(session) is None
        await writer.set(f"{prefix}:{{s}}", json.dumps(PIN))
        assert await it.read("s") == PIN  # junk is one pin's trouble, not Redis'


async def test_a_dead_redis_is_none_and_is_left_alone_for_a_while() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{taken.getsockname()[1]}"
        it = RedisRoutePins(url, lambda session: session)
        assert await it.read("s") is None
        assert it.left_alone
        assert await it.read("s") is None
        await it.close()
