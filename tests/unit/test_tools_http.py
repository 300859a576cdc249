"""Station 10: `ctx.http` against a real server: no redirects, bounded, traced (I11)."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from session_custody.core.calls import Returned, ToolErrored, Uncertain
from session_custody.tools import outgoing
from session_custody.tools.context import ToolContext
from tests.unit.http_server import Answer, Asked, Server, http_server
from tests.unit.tool_app import App

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def with_server(answer: Callable[[Asked], Answer], work: Callable[[App, Server], Awaitable[None]]) -> None:
    with http_server(answer) as server:

        async def run() -> None:
            app = App(base_url=server.url)
            try:
                await work(app, server)
            finally:
                await app.close()

        asyncio.run(asyncio.wait_for(run(), 30))


async def get_async(ctx: ToolContext[Any]) -> Any:
    response = await ctx.http.get("/alerts/a-1", headers={"authorization": "Bearer CANARY"})
    return {"status": response.status_code, "body": response.json()}


def get_sync(ctx: ToolContext[Any]) -> Any:
    response = ctx.http.get("/alerts/a-1", headers={"authorization": "Bearer CANARY"})
    return {"status": response.status_code, "body": response.json()}


BOTH = pytest.mark.parametrize(
    ("read", "write", "act"), [("look", "note", get_async), ("look_sync", "freeze", get_sync)]
)


@BOTH
def test_relative_addresses_go_to_the_base_and_carry_the_traceparent(
    read: str, write: str, act: Callable[[Any], Any]
) -> None:
    async def work(app: App, server: Server) -> None:
        for name in (read, write):
            answer = await app.invoke(name, act, traceparent=TRACEPARENT)
            assert answer == Returned({"status": 200, "body": {"id": "a-1"}})
        assert {asked.headers["traceparent"] for asked in server.asked} == {TRACEPARENT}

    with_server(lambda _: Answer(body={"id": "a-1"}), work)


@BOTH
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed_and_after_a_write_it_says_nothing(
    read: str, write: str, act: Callable[[Any], Any], status: int
) -> None:
    with http_server(lambda _: Answer()) as elsewhere:

        async def work(app: App, server: Server) -> None:
            assert await app.invoke(read, act) == ToolErrored("redirect_refused")
            # a 303 after a post is how some say "done": the intent stays pending
            assert await app.invoke(write, act) == Uncertain("redirect_refused")
            assert elsewhere.asked == []

        with_server(lambda _: Answer(status, headers={"location": f"{elsewhere.url}/x?CANARY"}), work)


def test_a_tool_cannot_ask_for_redirects() -> None:
    async def insist(ctx: ToolContext[Any]) -> Any:
        return (await ctx.http.get("/x", follow_redirects=True)).status_code

    async def work(app: App, server: Server) -> None:
        assert await app.invoke("look", insist) == ToolErrored("redirect_refused")
        assert len(server.asked) == 1

    with_server(lambda _: Answer(302, headers={"location": "/y"}), work)


@BOTH
def test_an_answer_without_an_end_is_bounded(
    read: str, write: str, act: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "RESPONSE_BYTES_MAX", 100_000)

    async def work(app: App, server: Server) -> None:
        assert await app.invoke(read, act) == ToolErrored("tool_unavailable")
        assert await app.invoke(write, act) == Uncertain("tool_unavailable")

    with_server(lambda _: Answer(chunks=itertools.repeat(b"x" * 1_000)), work)


@BOTH
def test_an_announced_size_beyond_the_bound_is_not_read(
    read: str, write: str, act: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "RESPONSE_BYTES_MAX", 10)

    async def work(app: App, server: Server) -> None:
        assert await app.invoke(read, act) == ToolErrored("tool_unavailable")

    with_server(lambda _: Answer(body={"id": "x" * 100}), work)


@BOTH
def test_a_compressed_answer_is_refused_because_only_its_small_form_is_bounded(
    read: str, write: str, act: Callable[[Any], Any]
) -> None:
    async def work(app: App, server: Server) -> None:
        assert await app.invoke(read, act) == ToolErrored("tool_unavailable")
        assert server.asked[0].headers["accept-encoding"] == "identity"

    with_server(lambda _: Answer(headers={"content-encoding": "gzip"}), work)


def test_a_dripping_server_does_not_keep_a_thread_beyond_the_deadline() -> None:
    dripping = threading.Event()

    def drip() -> Iterator[bytes]:
        while not dripping.wait(0.01):
            yield b" "

    async def work(app: App, server: Server) -> None:
        answer = await app.invoke("freeze", get_sync, timeout_s=0.2)
        if answer == Uncertain("tool_timeout", still_running=True):  # the loop's clock struck first
            async with asyncio.timeout(10):
                _, _, answer = await app.late.get()
        assert answer == Uncertain("tool_timeout")
        assert not app.gate.running("run-1/1/0")
        dripping.set()

    with_server(lambda _: Answer(chunks=drip()), work)


@pytest.mark.parametrize(("name", "code"), [("look", "tool_unavailable"), ("look_sync", "tool_unavailable")])
def test_a_refused_connection_tells_the_model_a_code_and_no_address(name: str, code: str) -> None:
    def act(ctx: ToolContext[Any]) -> Any:
        return ctx.http.get("http://u:CANARY@127.0.0.1:1/?api_key=CANARY2")

    async def work(app: App, server: Server) -> None:
        answer = await app.invoke(name, act)
        assert answer == ToolErrored(code)
        assert "CANARY" not in repr(answer)

    with_server(lambda _: Answer(), work)


def test_no_cookie_of_one_call_goes_with_the_next() -> None:
    async def work(app: App, server: Server) -> None:
        for _ in range(2):
            await app.invoke("look", get_async)
        assert [asked.headers.get("cookie") for asked in server.asked] == [None, None]

    with_server(lambda _: Answer(headers={"set-cookie": "session=CANARY"}), work)


def test_an_async_tool_has_an_async_client_and_a_plain_one_a_plain_client() -> None:
    async def work(app: App, server: Server) -> None:
        kinds: list[type] = []
        await app.invoke("look", lambda ctx: kinds.append(type(ctx.http)))
        await app.invoke("look_sync", lambda ctx: kinds.append(type(ctx.http)))
        assert kinds == [httpx.AsyncClient, httpx.Client]

    with_server(lambda _: Answer(), work)
