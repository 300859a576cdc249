"""What the store remembers of each lane's incarnation: whom to tell when a connection breaks, and settles
in turn.

Settling changes `fence.owner` in place, and its change stands in Postgres before its answer stands here. So
a fenced statement that was refused is not lost yet: wait until no settling is under way, and look whether
the owner that was sent is still the fence's owner (`moved_on`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import UUID

from session_custody.core.pin import LaneId
from session_custody.ports import LaneFence


class Fences:
    """Every fence that fenced statements came with, by lane. Event loop only."""

    def __init__(self) -> None:
        self._known: dict[LaneId, LaneFence] = {}
        self._moves: Counter[LaneId] = Counter()
        self.settling = asyncio.Lock()

    def know(self, fence: LaneFence) -> None:
        if not fence.lost:
            self._known[fence.lane_id] = fence

    def forget(self, fence: LaneFence) -> None:
        if self._known.get(fence.lane_id) is fence:
            del self._known[fence.lane_id]

    def broken(self) -> None:
        """A connection broke: no write is called until the store is known to have lost nothing (4)."""
        for fence in list(self._known.values()):
            fence.gate_open = False
            fence.on_broken()

    def lose(self, fence: LaneFence) -> None:
        """A fenced statement was refused for good."""
        self.forget(fence)
        if not fence.lost:
            fence.lost = True
            fence.gate_open = False
            fence.on_lost()

    async def moved_on(self, fence: LaneFence, sent: UUID) -> bool:
        """Whether a refused statement is to be sent again, under the owner that settling has taken
        meanwhile.
        """
        async with self.settling:
            return not fence.lost and fence.owner != sent

    # An answer's input_offset may be older than an admission that was decided while the answer travelled: it
    # counts only if no admission of the lane began or ended between sending and answer.

    def admission_moves(self, lane_id: LaneId) -> None:
        """An admission of this lane begins, or has ended."""
        self._moves[lane_id] += 1

    def ticket(self, lane_id: LaneId) -> int | None:
        """What to give to `saw` with the answer; None: an admission is under way."""
        moves = self._moves[lane_id]
        return None if moves % 2 else moves

    def saw(self, fence: LaneFence, ticket: int | None, input_offset: int) -> None:
        if ticket is not None and ticket == self._moves[fence.lane_id]:
            fence.input_offset = input_offset
