"""The worker's estimate of database time (ports.Clock). The database owns the time of record (DESIGN 11).

The offset is measured at start and every few seconds: half of the round trip is its error. A jump of more
than `jump_s` between two measurements holds the timers for `hold_s` of monotonic time; health shows it
meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from session_custody.core.errors import Unavailable
from session_custody.telemetry import log

FOLLOW_EVERY_S: Final = 10.0
JUMP_S: Final = 60.0
_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Seconds that go on while the machine sleeps (CLOCK_BOOTTIME; DESIGN 8); where there is no such clock,
    monotonic ones. Start allowances are compared across stations: everybody asks here.
    """
    return time.clock_gettime(_BOOT)


class DatabaseClock:
    """`now()` is cheap and never goes to the database."""

    def __init__(self, ask: Callable[[], Awaitable[datetime]], hold_s: float) -> None:
        self._ask = ask
        self._hold_s = hold_s
        self._offset = timedelta(0)
        self._measured = False
        self._held_until = 0.0

    def now(self) -> datetime:
        return datetime.now(UTC) + self._offset

    def boottime(self) -> float:
        return boottime()

    @property
    def held(self) -> bool:
        """A clock has jumped a moment ago: timers wait."""
        return time.monotonic() < self._held_until

    async def measure(self) -> None:
        """Ask the database once. Raises Unavailable."""
        began = time.monotonic()
        before = datetime.now(UTC)
        answer = await self._ask()
        half = timedelta(seconds=(time.monotonic() - began) / 2)
        offset = answer - (before + half)
        if self._measured and abs(offset - self._offset) > timedelta(seconds=JUMP_S):
            self._held_until = time.monotonic() + self._hold_s
            log.warning("clock jumped", seconds=(offset - self._offset).total_seconds(), held_s=self._hold_s)
        self._offset = offset
        self._measured = True

    async def follow(self) -> None:
        """Measure for ever; an outage of the database keeps the last offset."""
        while True:
            await asyncio.sleep(FOLLOW_EVERY_S)
            try:
                await self.measure()
            except Unavailable:
                log.info("clock not measured", reason="postgres is not available")
