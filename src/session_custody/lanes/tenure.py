"""Station 6: one lane's story in this process, from its assignment to its release (DESIGN 4).

One task per partition acts; everybody else (the group, the fence, a drain) only changes facts and wakes it:

    assigned?  incarnation?   revoked or fenced?   then
    yes        none           -                    acquire (compare-and-set on the epoch), recover, open
    intake
    yes        stands         no                   open intake, if a loss had closed it: nothing else happened
    no         stands         no (lost)            close intake; runs go on, the fence decides
    -          stands         fenced               close it; acquire again after a back-off, if still assigned
    -          stands         revoked              drain, flush, close, release
    no         none           -                    the tenure ends

A new incarnation begins only when the old one is closed, because one task does both.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID, uuid4

from session_custody import faults
from session_custody.core.errors import InvariantBroken, LaneLost, Unavailable
from session_custody.core.pin import LaneId
from session_custody.lanes.incarnation import Incarnation, Surroundings
from session_custody.lanes.timings import ACQUIRE_TRIES_MAX, CANCEL_GRACE_S, OWNERS_REMEMBERED_MAX
from session_custody.ports import (
    InputTopic,
    IntakeControl,
    LaneFence,
    LaneKey,
    LaneRow,
    PublicationFactory,
    RunStore,
)
from session_custody.telemetry import STATION_ERRORS, log

INTAKE_CLOSE_S: Final = 1.0
"""What a batch in flight gets when the lane is lost or fenced: its transaction is decided by the
fence anyway.
"""


class Owners:
    """Every owner uuid that this process has offered, by lane: replacing one of them is no unclean end."""

    def __init__(self) -> None:
        self._by_lane: dict[LaneId, list[UUID]] = {}

    def of(self, lane_id: LaneId) -> list[UUID]:
        return list(self._by_lane.get(lane_id, ()))

    def add(self, lane_id: LaneId, *owners: UUID) -> None:
        mine = self._by_lane.setdefault(lane_id, [])
        mine.extend(owner for owner in owners if owner not in mine)
        del mine[:-OWNERS_REMEMBERED_MAX]


class Tenure:
    """Event loop only."""

    def __init__(
        self,
        partition: int,
        *,
        topic_name: str,
        cursor_partition: int,
        store: RunStore,
        topic: InputTopic,
        intake: IntakeControl,
        publication: PublicationFactory,
        around: Surroundings,
        owners: Owners,
        look: Callable[[], Awaitable[None]],
        opened: Callable[[LaneId], None],
        fenced: Callable[[], bool],
    ) -> None:
        self.partition = partition
        self.incarnation: Incarnation | None = None
        self.assigned = True
        self._topic_name = topic_name
        self._cursor_partition = cursor_partition
        self._store = store
        self._topic = topic
        self._intake = intake
        self._publication = publication
        self._around = around
        self._owners = owners
        self._look = look
        self._opened_lane = opened
        self._fenced = fenced
        self._open = False
        self._revoked = False
        self._budget_s = 0.0
        self._failures = 0
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"lane of partition {partition}")

    # -------------------------------------------------------------- facts from outside

    def assign(self) -> None:
        """Anew: the partition is paused, whatever stood here before."""
        self.assigned = True
        self._open = False
        self._changed.set()

    def lose(self) -> None:
        """The group gave the partition away without asking."""
        self.assigned = False
        self._changed.set()

    async def let_go(self, budget_s: float) -> None:
        """Drain and release within about `budget_s`; what is not done by then goes on beside."""
        self.assigned = False
        self._revoked = True
        self._budget_s = budget_s
        self._changed.set()
        await asyncio.wait({self.task}, timeout=budget_s + CANCEL_GRACE_S)

    # -------------------------------------------------------------- the one who acts

    async def _run(self) -> None:
        try:
            await self._act()
        except Exception as error:  # noqa: BLE001 - a lane without its task would be owned and served by nobody
            self._around.on_fatal(error)

    async def _act(self) -> None:
        while True:
            self._changed.clear()
            standing = self.incarnation
            if standing is None:
                self._revoked = False
                if not self.assigned:
                    return
                await self._begin()
            elif self._revoked or standing.fence.lost:
                await self._end(standing)
            elif self.assigned and not self._open:
                await self._reopen(standing)
            elif not self.assigned and self._open:
                self._open = False
                await self._intake.close(standing.fence, INTAKE_CLOSE_S)
            else:
                await self._changed.wait()

    async def _begin(self) -> None:
        try:
            faults.reach("lane.before", partition=self.partition)
            standing = await self._acquire()
            faults.reach("lane.after", partition=self.partition)
        except (Unavailable, LaneLost) as error:
            await self._back_off(error)
        except InvariantBroken as error:
            self._around.on_fatal(error)
            await self._back_off(error)
        except Exception as error:  # noqa: BLE001 - a lane that cannot be acquired is tried again, never forgotten
            log.error("a lane could not be acquired", partition=self.partition, error=type(error).__name__)
            await self._back_off(error)
        else:
            if standing is None:
                # Intake knows already that the lane is gone; word of it is on its way.
                await self._pause(self._around.timings.retry_first_s)
                return
            self._failures = 0
            self.incarnation = standing
            standing.begin()

    async def _acquire(self) -> Incarnation | None:
        """None: no longer assigned. Each try offers a fresh uuid: a lost one may execute late (DESIGN 4)."""
        key = LaneKey(await self._topic.cluster_id(), self._topic_name, self.partition)
        topic_id = await self._topic.topic_id()
        row = await self._store.ensure_lane(key, topic_id, self._cursor_partition)
        for _ in range(ACQUIRE_TRIES_MAX):
            if not self._still_ours():
                return None
            owner = uuid4()
            mine = self._owners.of(row.lane_id)
            self._owners.add(row.lane_id, owner)
            acquired = await self._store.acquire(row.lane_id, owner, row.epoch, mine)
            if acquired is not None:
                return await self._stand(acquired, owner, topic_id)
            row = await self._store.read_lane(row.lane_id)
        raise Unavailable("postgres", "somebody else acquires the lane all the time")

    def _still_ours(self) -> bool:
        return self.assigned and not self._revoked and self._intake.is_assigned(self.partition)

    async def _stand(self, row: LaneRow, owner: UUID, topic_id: str) -> Incarnation | None:
        fence = LaneFence(
            lane_id=row.lane_id,
            key=row.key,
            owner=owner,
            epoch=row.epoch,
            topic_id=row.topic_id,
            last_seen=row.next_seq - 1,
            input_offset=row.input_offset,
            went_back=row.went_back,
        )
        if not self._still_ours():
            await self._store.release(fence)
            return None
        if row.topic_id != topic_id:
            await self.regenerate(fence, topic_id, await self._topic.earliest(self.partition))
        log.info(
            "a lane is acquired",
            lane_id=row.lane_id,
            partition=self.partition,
            epoch=row.epoch,
            owner=str(fence.owner),  # what `run why` names: whose log this is
        )
        return Incarnation(row, fence, self._publication(fence), self._around, self._changed.set)

    async def regenerate(self, fence: LaneFence, topic_id: str, offset: int) -> None:
        """The input was recreated (or its log cut): same lane, same runs, records from `offset` on."""
        log.warning("the input topic is another one now", lane_id=fence.lane_id, input_offset=offset)
        STATION_ERRORS.labels("record", "topic_generation").inc()
        await self._store.set_topic_generation(fence, topic_id, offset)
        fence.topic_id, fence.input_offset = topic_id, offset

    async def _reopen(self, standing: Incarnation) -> None:
        """Resume the partition once recovery has listed its ids, at what the row says now."""
        try:
            row = await self._store.heartbeat(standing.fence, clear_unclean=False)
            await self._look()
        except LaneLost:
            standing.lose()
        except Unavailable as outage:
            await self._back_off(outage)
        else:
            if self.assigned and not self._revoked and not standing.fence.lost:
                self._failures = 0
                standing.fence.input_offset = row.input_offset
                self._open = True
                self._intake.open(standing.fence)
                self._opened_lane(standing.fence.lane_id)

    async def _end(self, standing: Incarnation) -> None:
        was_lost = standing.fence.lost
        ends = time.monotonic() + self._budget_s
        standing.fence.draining = True  # runs stop while the batch in flight ends
        self._open = False
        await self._intake.close(standing.fence, INTAKE_CLOSE_S if was_lost else self._budget_s / 3)
        await standing.close(max(0.0, ends - time.monotonic()))
        self._owners.add(standing.fence.lane_id, standing.fence.owner, *standing.fence.tried)
        if not standing.fence.lost:
            await self._release(standing.fence)
        self.incarnation = None
        if was_lost and self.assigned and not self._revoked:
            if self._fenced():
                self.assigned = False  # this worker leaves the group
                return
            await self._back_off(LaneLost(standing.fence.lane_id))

    async def _release(self, fence: LaneFence) -> None:
        try:
            async with asyncio.timeout(CANCEL_GRACE_S):
                await self._store.release(fence)
        except Exception as error:  # noqa: BLE001 - the next owner takes the lane in any case
            STATION_ERRORS.labels("lane", type(error).__name__).inc()

    async def _back_off(self, error: Exception) -> None:
        self._failures += 1
        STATION_ERRORS.labels("lane", type(error).__name__).inc()
        if self._failures == 1:
            log.warning("a lane waits", partition=self.partition, cause=type(error).__name__)
        timings = self._around.timings
        delay = min(timings.retry_max_s, timings.retry_first_s * 2 ** min(self._failures - 1, 10))
        await self._pause(delay * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries

    async def _pause(self, seconds: float) -> None:
        """Ends at once when something changes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
