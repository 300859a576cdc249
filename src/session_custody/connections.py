"""Many HTTP connections at once, spread over several small pools.

httpcore looks at every connection of a pool, and asks the kernel about the idle ones, at the beginning and at
the end of each request: with 200 runs waiting for one gateway that was half of a worker's time. In a pool of
a sixteenth the size it is a sixteenth. A request takes the pool with the fewest under way, the first of
equals, so a quiet worker keeps using the same few connections.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Final

import httpx

POOLS: Final = 16
KEPT_ALIVE_MAX: Final = 64


class SpreadTransport(httpx.AsyncBaseTransport):
    """`connections_max` over all pools. Event loop only."""

    def __init__(self, connections_max: int, verify: ssl.SSLContext) -> None:
        limits = httpx.Limits(
            max_connections=math.ceil(connections_max / POOLS),
            max_keepalive_connections=math.ceil(KEPT_ALIVE_MAX / POOLS),
        )
        self._pools = [httpx.AsyncHTTPTransport(verify=verify, limits=limits) for _ in range(POOLS)]
        self._under_way = [0] * POOLS

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        place = self._under_way.index(min(self._under_way))
        self._under_way[place] += 1
        try:
            response = await self._pools[place].handle_async_request(request)
        except BaseException:
            self._under_way[place] -= 1
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Released(response.stream, lambda: self._release(place))
        return response

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()

    def _release(self, place: int) -> None:
        self._under_way[place] -= 1


class _Released(httpx.AsyncByteStream):
    """The answer's body; its end, or its being given up, frees the place once."""

    def __init__(self, inner: httpx.AsyncByteStream, release: Callable[[], None]) -> None:
        self._inner = inner
        self._release: Callable[[], None] | None = release

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            yield chunk

    async def aclose(self) -> None:
        release, self._release = self._release, None
        try:
            await self._inner.aclose()
        finally:
            if release is not None:
                release()
