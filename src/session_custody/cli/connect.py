"""What commands need of a running installation: settings, the store, the producer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from session_custody.settings import Settings

if TYPE_CHECKING:
    from session_custody.client import CustodyClient
    from session_custody.store import PostgresStore

T = TypeVar("T")


def with_store(work: Callable[[PostgresStore], Awaitable[T]], settings: Settings | None = None) -> T:
    """Open the store, do the work, close it."""
    from session_custody.wiring import open_store

    async def run() -> T:
        store = await open_store(settings or Settings.load())
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def producer(settings: Settings | None = None) -> CustodyClient:
    """A client that publishes, as the settings say."""
    from session_custody.client import CustodyClient

    return CustodyClient.from_settings(settings or Settings.load())
