"""Station 10, how tools reach out over HTTP: no redirects, bounded answers, one traceparent per call.

A redirect is refused in the transport, so that no argument of a request can allow it: a 3xx to another origin
would carry headers there, and after a write it says nothing about what took effect. Connections are shared by
all calls of the process; each call gets a client of its own around them, with its own headers and no cookies
of anybody else.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from typing import Final, TypeVar

import httpx

from session_custody.connections import SpreadTransport

RESPONSE_BYTES_MAX: Final = 8 * 1024 * 1024
CONNECTIONS_MAX: Final = 256
NOT_MODIFIED: Final = 304

_Client = TypeVar("_Client", httpx.AsyncClient, httpx.Client)
OpenHttp = Callable[[float, str | None], _Client]
"""(until on the monotonic clock, traceparent) -> the client of one call."""


class RedirectRefused(httpx.TransportError):
    """The other side answered with a redirect. Names the status only: a Location may hold a credential."""


class ResponseRefused(httpx.TransportError):
    """The answer is larger than RESPONSE_BYTES_MAX, or compressed though that was not asked for."""


def _check(response: httpx.Response) -> None:
    if 300 <= response.status_code < 400 and response.status_code != NOT_MODIFIED:
        raise RedirectRefused(f"answered with a redirect ({response.status_code}), which is not followed")
    # A compressed answer would be bounded in its small form only.
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise ResponseRefused("answered compressed; identity was asked for")
    length = response.headers.get("content-length", "")
    if length.isdigit() and int(length[:18]) > RESPONSE_BYTES_MAX:
        raise ResponseRefused(f"answered with more than {RESPONSE_BYTES_MAX} bytes")


class _Counted:
    """Bounds size and time: a server that drips one byte a second would keep its thread for ever."""

    def __init__(self, until: float) -> None:
        self._seen = 0
        self._until = until

    def count(self, chunk: bytes) -> bytes:
        if time.monotonic() > self._until:
            raise httpx.ReadTimeout("the answer did not end in time")
        self._seen += len(chunk)
        if self._seen > RESPONSE_BYTES_MAX:
            raise ResponseRefused(f"answered with more than {RESPONSE_BYTES_MAX} bytes")
        return chunk


class _AsyncBounded(_Counted, httpx.AsyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream, until: float) -> None:
        super().__init__(until)
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            yield self.count(chunk)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(_Counted, httpx.SyncByteStream):
    def __init__(self, inner: httpx.SyncByteStream, until: float) -> None:
        super().__init__(until)
        self._inner = inner

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._inner:
            yield self.count(chunk)

    def close(self) -> None:
        self._inner.close()


class _AsyncGuard(httpx.AsyncBaseTransport):
    """Around the shared transport; closing a call's client does not close what others use."""

    def __init__(self, inner: httpx.AsyncBaseTransport, until: float) -> None:
        self._inner = inner
        self._until = until

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        try:
            _check(response)
        except httpx.TransportError:
            await response.stream.aclose()
            raise
        response.stream = _AsyncBounded(response.stream, self._until)
        return response

    async def aclose(self) -> None:
        pass


class _Guard(httpx.BaseTransport):
    def __init__(self, inner: httpx.BaseTransport, until: float) -> None:
        self._inner = inner
        self._until = until

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._inner.handle_request(request)
        assert isinstance(response.stream, httpx.SyncByteStream)
        try:
            _check(response)
        except httpx.TransportError:
            response.stream.close()
            raise
        response.stream = _Bounded(response.stream, self._until)
        return response

    def close(self) -> None:
        pass


class OutgoingHttp:
    """The process' connections for tools. Makes the client of one call; `close` ends the connections."""

    def __init__(self, base_url: str | None) -> None:
        self._base_url = base_url or ""
        # Now and not at the first call: reading the certificates takes longer than some calls may.
        limits = httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=64)
        self._async = SpreadTransport(CONNECTIONS_MAX, _tls())
        self._sync = httpx.HTTPTransport(verify=_tls(), limits=limits)

    def async_client(self, until: float, traceparent: str | None) -> httpx.AsyncClient:
        """On the event loop."""
        return httpx.AsyncClient(
            transport=_AsyncGuard(self._async, until),
            base_url=self._base_url,
            timeout=_left_s(until),
            headers=_headers(traceparent),
            trust_env=False,
        )

    def sync_client(self, until: float, traceparent: str | None) -> httpx.Client:
        """On any thread."""
        return httpx.Client(
            transport=_Guard(self._sync, until),
            base_url=self._base_url,
            timeout=_left_s(until),
            headers=_headers(traceparent),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._async.aclose()
        self._sync.close()


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def _left_s(until: float) -> float:
    return max(until - time.monotonic(), 0.001)


def _headers(traceparent: str | None) -> dict[str, str]:
    headers = {"accept-encoding": "identity", "user-agent": "session-custody"}
    if traceparent is not None:
        headers["traceparent"] = traceparent
    return headers
