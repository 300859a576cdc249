"""Stores over a migrated database, for the tests of what only Postgres can show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psycopg
from psycopg.rows import DictRow, dict_row

from session_custody.store import Migrator, PostgresStore
from tests.integration.store_proxy import Proxy, proxied

DEADLINE_S = 15.0
LOOK_S = 0.02


@asynccontextmanager
async def a_store(dsn: str) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(dsn)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def a_store_behind_a_proxy(dsn: str) -> AsyncIterator[tuple[PostgresStore, Proxy]]:
    async with proxied(dsn) as proxy, a_store(proxy.dsn) as store:
        yield store, proxy


@asynccontextmanager
async def by_hand(dsn: str) -> AsyncIterator[psycopg.AsyncConnection[DictRow]]:
    """A connection of the test's own, autocommit."""
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True, row_factory=dict_row)
    try:
        yield connection
    finally:
        await connection.close()


async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until it holds; fails with `what` at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not await holds():
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(LOOK_S)


async def waits_for_lock(connection: psycopg.AsyncConnection[DictRow], purpose: str) -> bool:
    """Postgres says that the connection of this purpose waits for a lock."""
    cursor = await connection.execute(
        "select count(*) as n from pg_stat_activity where application_name = %s and wait_event_type = 'Lock'",
        (f"custody {purpose}",),
    )
    row = await cursor.fetchone()
    return row is not None and row["n"] > 0


def migrate(dsn: str) -> None:
    asyncio.run(Migrator(dsn).migrate())
