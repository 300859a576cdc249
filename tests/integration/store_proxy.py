"""A TCP proxy in front of Postgres that loses answers, loses requests, or delivers a request long after its
client has gone. It knows connections by their application_name, and requests by what stands in them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

READY = b"Z\x00\x00\x00\x05I"
"""ReadyForQuery, idle: the end of an answer."""

Fault = Literal["unheard", "unsent", "late"]


@dataclass
class Trap:
    """One fault: the next request of a connection named `purpose` with `text` in it.

    unheard: Postgres does it, its answer is lost. unsent: Postgres never hears it. late: the client loses its
    connection, and Postgres hears it at `release`.
    """

    purpose: str
    text: bytes
    fault: Fault
    sprung: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    answer: bytes = b""


@dataclass
class Proxy:
    host: str
    port: int
    dsn: str = ""
    traps: list[Trap] = field(default_factory=list)
    shut: set[str] = field(default_factory=set)
    """Purposes whose connections are refused."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def trap(self, purpose: str, text: str, fault: Fault) -> Trap:
        trap = Trap(purpose, text.encode(), fault)
        self.traps.append(trap)
        return trap

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        server, to_server = await asyncio.open_connection(self.host, self.port)
        try:
            startup = await client.read(65_536)
            if any(purpose.encode() in startup for purpose in self.shut):
                return
            to_server.write(startup)
            back = asyncio.create_task(self._pour(server, to_client))
            try:
                await self._requests(startup, client, to_client, server, to_server, back)
            finally:
                back.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await back
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            to_client.close()
            to_server.close()
            self.tasks.discard(task)

    async def _requests(
        self,
        startup: bytes,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
        back: asyncio.Task[None],
    ) -> None:
        while data := await client.read(1 << 20):
            trap = next((t for t in self.traps if t.purpose.encode() in startup and t.text in data), None)
            if trap is None:
                to_server.write(data)
                continue
            self.traps.remove(trap)
            back.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await back
            if trap.fault == "late":
                to_client.close()
                trap.sprung.set()
                await trap.release.wait()
            if trap.fault != "unsent":
                to_server.write(data)
                while not trap.answer.endswith(READY):
                    chunk = await server.read(65_536)
                    if not chunk:
                        break
                    trap.answer += chunk
                trap.answered.set()
            trap.sprung.set()
            return

    async def _pour(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()


@asynccontextmanager
async def proxied(dsn: str) -> AsyncIterator[Proxy]:
    """A proxy in front of this DSN's server; `.dsn` leads through it."""
    parts = urlsplit(dsn)
    proxy = Proxy(parts.hostname or "127.0.0.1", parts.port or 5432)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    credentials = parts.netloc.rpartition("@")[0]
    through = parts._replace(
        netloc=f"{credentials}@127.0.0.1:{port}", query="sslmode=disable&gssencmode=disable"
    )
    proxy.dsn = urlunsplit(through)
    try:
        yield proxy
    finally:
        listener.close()
        for task in list(proxy.tasks):
            task.cancel()
        await asyncio.gather(*proxy.tasks, return_exceptions=True)
        await listener.wait_closed()
