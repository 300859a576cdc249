"""Station 12: the floor follows the cursor (DESIGN 6, step 3).

Written after the Kafka commit, absolute, fenced, at most a few times a second, never in the way of the next
batch. A floor that was not written is no loss: the cursor stands above it and the next owner goes by the
cursor.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from session_custody.core.errors import LaneLost, Unavailable
from session_custody.ports import LaneFence
from session_custody.publish.outbox import OutboxStore

SAVE_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Floor:
    """The last row known to be published, and where its cursor record lies."""

    lane_seq: int
    hash: bytes
    cursor_offset: int


class FloorKeeper:
    """Saves the newest floor, in its own time. Event loop only."""

    def __init__(self, fence: LaneFence, store: OutboxStore, every_s: float) -> None:
        self._fence = fence
        self._store = store
        self._every_s = every_s
        self._pending: Floor | None = None
        self._rung = asyncio.Event()

    def note(self, floor: Floor) -> None:
        self._pending = floor
        self._rung.set()

    def drop(self) -> None:
        """The connection broke: nothing of this incarnation is written before steps 1 and 2 have passed."""
        self._pending = None

    async def keep(self) -> None:
        """Save until cancelled, or until the lane is lost."""
        while not self._fence.lost:
            await self._rung.wait()
            self._rung.clear()
            await asyncio.sleep(self._every_s)
            try:
                if not await self.save():
                    await asyncio.sleep(SAVE_RETRY_S)
                    self._rung.set()
            except LaneLost:
                return  # the store has told the fence

    async def save(self) -> bool:
        """Save what is pending. False: Postgres could not be asked, it stays pending. Raises LaneLost."""
        floor = self._pending
        if floor is None or self._fence.lost:
            return True
        try:
            await self._store.save_floor(self._fence, floor.lane_seq, floor.hash, floor.cursor_offset)
        except Unavailable:
            return False
        if self._pending is floor:
            self._pending = None
        return True
