"""Connections spread over small pools: none is lost, and a quiet worker keeps few."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from session_custody.connections import POOLS, SpreadTransport


class Answering(httpx.AsyncBaseTransport):
    """A pool that counts what is under way in it, and answers when told."""

    def __init__(self) -> None:
        self.requests = 0
        self.arrived = asyncio.Semaphore(0)
        self.gate = asyncio.Event()
        self.broken = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        self.arrived.release()
        await self.gate.wait()
        if self.broken:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, stream=httpx.ByteStream(b"yes"), request=request)


def spread(pools: list[Answering]) -> SpreadTransport:
    transport = SpreadTransport(64, httpx.create_ssl_context())
    transport._pools = list(pools)  # type: ignore[arg-type]
    return transport


def test_requests_at_once_go_to_different_pools_and_later_ones_to_the_first() -> None:
    async def scenario() -> list[int]:
        pools = [Answering() for _ in range(POOLS)]
        async with httpx.AsyncClient(transport=spread(pools)) as client:
            asking = [asyncio.create_task(client.get("http://bank/")) for _ in range(2 * POOLS)]
            for pool in pools * 2:
                await pool.arrived.acquire()
            together = [pool.requests for pool in pools]
            for pool in pools:
                pool.gate.set()
            await asyncio.gather(*asking)
            for _ in range(3):
                await client.get("http://bank/")
            assert [pool.requests for pool in pools] == [5, *[2] * (POOLS - 1)]
            return together

    assert asyncio.run(scenario()) == [2] * POOLS


@pytest.mark.parametrize("end", ["failed", "given up", "body not read"])
def test_however_a_request_ends_its_place_is_free_again(end: str) -> None:
    async def scenario() -> list[int]:
        pool = Answering()
        transport = spread([pool] * POOLS)
        async with httpx.AsyncClient(transport=transport) as client:
            asking = asyncio.create_task(client.get("http://bank/"))
            await pool.arrived.acquire()
            match end:
                case "failed":
                    pool.broken = True
                    pool.gate.set()
                    with pytest.raises(httpx.ConnectError):
                        await asking
                case "given up":
                    asking.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await asking
                case _:
                    pool.gate.set()
                    await asking
                    async with client.stream("GET", "http://bank/"):
                        assert sum(transport._under_way) == 1
        return transport._under_way

    assert asyncio.run(scenario()) == [0] * POOLS
