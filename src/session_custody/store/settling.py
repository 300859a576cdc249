"""Settling a lost COMMIT (DESIGN 6).

A COMMIT whose answer was lost may have been done, may still be under way in a backend that lives, or never
came. Looking does not tell: that backend may commit right after. So, in one transaction and in this order:

1. take a new owner for the lanes, `where owner in (every uuid this incarnation may stand under)`, lanes
   locked in order. This waits for every straggler, and fences those that come later. Each try has a fresh
   uuid: with the same one, a first try that is executed late would be indistinguishable from the second.
2. ask for the rows themselves, in a second statement, whose snapshot is newer than the locks: a commit with
   events by its last event's hash, one without by version + 1 (only this incarnation could have moved it).
3. COMMIT. Lost as well: from 1, with that uuid among those that may stand.

Present = committed. Absent = offer again, under the new owner. No lane = somebody else owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

from session_custody.core.errors import Unavailable
from session_custody.core.pin import LaneId, RunId
from session_custody.ports import LaneFence
from session_custody.store.arrays import BYTES, INT4, INT8, TEXT, UUIDS
from session_custody.store.fences import Fences
from session_custody.store.link import (
    BEGIN,
    COMMIT,
    Broken,
    Call,
    Link,
    Prepared,
    Refused,
    Row,
    ending_blockers,
)
from session_custody.telemetry import SETTLEMENTS

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0

_OWNER: Final = Prepared.named("settle_owner")
_ROWS: Final = Prepared.named("settle_rows")


@dataclass(frozen=True, slots=True)
class Question:
    """Is this commit there? `event` = (event_seq, hash) of its last event; None: its version tells."""

    order: int
    run_id: RunId
    version: int
    event: tuple[int, bytes] | None


@dataclass(frozen=True, slots=True)
class Settled:
    """`kept`: lanes that are still ours, with (topic_id, input_offset). `present`: orders of what is
    committed.
    """

    kept: Mapping[LaneId, tuple[str, int]]
    present: frozenset[int]


class Settling:
    """One at a time per store; whoever was refused meanwhile waits for it (`Fences.moved_on`)."""

    def __init__(self, link: Link, side: Link, fences: Fences, closing: Callable[[], bool]) -> None:
        self._link = link
        self._side = side
        self._fences = fences
        self._closing = closing

    async def settle(
        self, fences: Sequence[tuple[LaneFence, UUID]], questions: Sequence[Question]
    ) -> Settled:
        """Settle what was sent under these owners. Goes on until it is decided; raises Unavailable when
        closing.

        Fences whose lane is gone are lost when this returns; the others carry their new owner.
        """
        backoff = BACKOFF_FIRST_S
        async with self._fences.settling:
            while True:
                if self._closing():
                    raise Unavailable("postgres", "closing before a COMMIT was settled")
                try:
                    settled = await self._try(fences, questions)
                except (Broken, Refused):
                    SETTLEMENTS.labels("tried").inc()
                    await asyncio.sleep(backoff)
                    backoff = min(backoff * 2, BACKOFF_MAX_S)
                else:
                    SETTLEMENTS.labels("settled").inc()
                    return settled

    async def _try(self, fences: Sequence[tuple[LaneFence, UUID]], questions: Sequence[Question]) -> Settled:
        async with self._link.session() as session:
            fresh = {fence.lane_id: uuid4() for fence, _ in fences}
            standing = {
                (fence.lane_id, owner)
                for fence, sent in fences
                for owner in (sent, fence.owner, *fence.tried)
            }
            for fence, _ in fences:
                fence.tried.append(fresh[fence.lane_id])
            calls = [BEGIN, self._take(fences, fresh, sorted(standing)), _ask(questions), COMMIT]
            answers = await ending_blockers(session.exchange(calls), session.pid, self._side)
        taken, present, ended = answers[1], answers[2], answers[3]
        if ended:  # COMMIT of a failed transaction answers ROLLBACK, without an error
            raise Refused("25P02")
        return self._adopt(fences, fresh, taken, present)

    def _take(
        self,
        fences: Sequence[tuple[LaneFence, UUID]],
        fresh: Mapping[LaneId, UUID],
        standing: Sequence[tuple[LaneId, UUID]],
    ) -> Call:
        return Call(
            _OWNER,
            [
                INT8.array([lane_id for lane_id, _ in standing]),
                UUIDS.array([owner for _, owner in standing]),
                INT8.array([fence.lane_id for fence, _ in fences]),
                UUIDS.array([fresh[fence.lane_id] for fence, _ in fences]),
                INT8.array([fence.last_seen for fence, _ in fences]),
            ],
        )

    def _adopt(
        self,
        fences: Sequence[tuple[LaneFence, UUID]],
        fresh: Mapping[LaneId, UUID],
        taken: Sequence[Row],
        present: Sequence[Row],
    ) -> Settled:
        kept: dict[LaneId, tuple[str, int]] = {}
        answers = {LaneId(int(row[0] or 0)): row for row in taken}
        for fence, _ in fences:
            row = answers.get(fence.lane_id)
            if row is None:
                self._fences.lose(fence)
                continue
            fence.owner = fresh[fence.lane_id]
            fence.epoch = int(row[1] or 0)
            fence.last_seen = max(fence.last_seen, int(row[4] or 0) - 1)
            fence.went_back = fence.went_back or row[5] == b"t"
            kept[fence.lane_id] = ((row[2] or b"").decode(), int(row[3] or 0))
        return Settled(kept, frozenset(int(row[0] or 0) for row in present))


def _ask(questions: Sequence[Question]) -> Call:
    return Call(
        _ROWS,
        [
            INT4.array([question.order for question in questions]),
            TEXT.array([question.run_id for question in questions]),
            INT8.array([None if q.event is None else q.event[0] for q in questions]),
            BYTES.array([None if q.event is None else q.event[1] for q in questions]),
            INT8.array([question.version for question in questions]),
        ],
    )
