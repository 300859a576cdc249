"""The stores that the suite runs over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pytest

from session_custody.ports import RunStore
from session_custody.store import MemoryStore, PostgresStore

Scenario = Callable[[RunStore], Awaitable[Any]]


class Run(Protocol):
    """Runs a coroutine function with a fresh store."""

    def __call__(self, scenario: Scenario) -> None: ...


@pytest.fixture(params=["memory", "postgres"])
def on_store(request: pytest.FixtureRequest) -> Run:
    """Called with a scenario, runs it over a fresh store and closes that."""
    dsn = request.getfixturevalue("database") if request.param == "postgres" else None

    def run(scenario: Scenario) -> None:
        asyncio.run(_with_store(dsn, scenario))

    return run


async def _with_store(dsn: str | None, scenario: Scenario) -> None:
    store = MemoryStore() if dsn is None else await PostgresStore.open(dsn)
    try:
        await scenario(store)
    finally:
        await store.close()
