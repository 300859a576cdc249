"""The router's pin of a session: read, never written, and never a reason to stop (DESIGN 14).

Whatever goes wrong here is None: admission goes on with what the start itself froze. After a failure Redis is
left alone for a while, so that a dead one costs each batch nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from session_custody.telemetry import ROUTE_PIN_LOOKUPS, log

FIELDS: Final = ("tenant", "route_id", "route_table_version", "activation_target", "correlation_id")
READ_S: Final = 0.25
LEFT_ALONE_S: Final = 5.0
CONNECTIONS_MAX: Final = 8
VALUE_BYTES_MAX: Final = 16 * 1024


class RedisRoutePins:
    """`ports.RoutePins`. `url` is revealed once, to the client; `key_of` builds the key of a
    session's pin.
    """

    def __init__(self, url: str, key_of: Callable[[str], str], read_s: float = READ_S) -> None:
        self._key_of = key_of
        self._read_s = read_s
        self._alone_until = 0.0
        self._client: Redis = Redis.from_url(
            url,
            socket_timeout=read_s,
            socket_connect_timeout=read_s,
            max_connections=CONNECTIONS_MAX,
            client_name="custody-route",
        )
        self._turns = asyncio.Semaphore(CONNECTIONS_MAX)

    async def read(self, session_id: str) -> Mapping[str, str] | None:
        """The pin's fields that are there. None: missing, expired, junk, or Redis down."""
        if self.left_alone:
            ROUTE_PIN_LOOKUPS.labels("unavailable").inc()
            return None
        try:
            async with self._turns, asyncio.timeout(2 * self._read_s):
                fields = await self._fetch(self._key_of(session_id))
        except (RedisError, OSError, TimeoutError) as error:
            self._leave_alone(type(error).__name__)
            return None
        except Exception as error:  # noqa: BLE001 - whatever a pin holds, admission goes on without it
            ROUTE_PIN_LOOKUPS.labels("junk").inc()
            log.warning("a route pin could not be read", error=type(error).__name__)
            return None
        ROUTE_PIN_LOOKUPS.labels("missing" if fields is None else "found").inc()
        return fields

    @property
    def left_alone(self) -> bool:
        """Redis failed a moment ago and is not asked."""
        return time.monotonic() < self._alone_until

    async def close(self) -> None:
        await self._client.aclose()

    async def _fetch(self, key: str) -> Mapping[str, str] | None:
        kind = await self._client.type(key)
        match kind:
            case b"none" | "none":
                return None
            case b"hash" | "hash":
                return await self._hash(key)
            case b"string" | "string":
                return await self._json(key)
            case _:
                raise ValueError("a route pin is a hash or a string")

    async def _hash(self, key: str) -> Mapping[str, str]:
        values = await self._client.hmget(key, list(FIELDS))
        return {name: _text(value) for name, value in zip(FIELDS, values, strict=True) if value is not None}

    async def _json(self, key: str) -> Mapping[str, str] | None:
        text = await self._client.getrange(key, 0, VALUE_BYTES_MAX)
        if len(text) > VALUE_BYTES_MAX:
            raise ValueError("a route pin is too long")
        if not text:
            return None  # expired between the two looks
        found = json.loads(text)
        if not isinstance(found, dict):
            raise TypeError("a route pin is an object")
        return {name: found[name] for name in FIELDS if isinstance(found.get(name), str)}

    def _leave_alone(self, error: str) -> None:
        ROUTE_PIN_LOOKUPS.labels("unavailable").inc()
        if not self.left_alone:
            log.warning("route pins cannot be read: the starts' own pointers stand", error=error)
        self._alone_until = time.monotonic() + LEFT_ALONE_S


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
