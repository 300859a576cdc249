"""Station 12: one lane's publication (DESIGN 6), its steps with what is lost at each.

    1  owner still me?              nothing yet; a zombie stops here, before it would fence its successor
       init_transactions            the old owner's open transaction ends, unseen
       claim, read until it shows   what the cursor was when nobody but us could write it
    2  compare with Postgres        fails closed, or opens the write gate
    3  rows -> begin -> produce -> cursor -> commit
                                    killed before the commit: nothing was seen; the next owner sends the rows
                                    killed after it: the cursor names them; the next owner goes on behind them
       floor                        killed before it: the floor is low, the cursor is right
    4  what went wrong              abort and the same rows; or throw the producer away and go to 1

The write gate opens after 1 and 2. It closes when Postgres' connection breaks (a failover may have lost what
was committed), when the lane fails closed, and when this publication ends; a producer that is rebuilt for
Kafka's sake leaves it open.

Two races that the steps are made for. *Zombie:* frozen after reading its cursor, its successor publishes
and moves the floor, it wakes: `check_cursor` reads the owner with the floor, so it closes without an alarm,
and in Kafka its producer is fenced. *Lost answer:* a commit timed out and may run late: the producer is
thrown away, step 1 asks Postgres, `init_transactions` ends the old transaction one way or the other, and the
cursor that is read behind the new claim tells which.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from session_custody.core.errors import InvariantBroken, LaneLost, Unavailable
from session_custody.ports import CursorCheck, LaneFence, LaneKey
from session_custody.publish.beginning import Begun, begin
from session_custody.publish.floor import FloorKeeper
from session_custody.publish.flow import Flow
from session_custody.publish.means import Closed, Means, Over, Regate, Reopen, wait
from session_custody.publish.options import KafkaConfig
from session_custody.publish.outbox import OutboxStore
from session_custody.publish.outlet import OutletGone
from session_custody.publish.protocol import STORE_WENT_BACK, Fault
from session_custody.publish.records import Frames, Topics
from session_custody.publish.refusals import error_of, setting_of, told
from session_custody.publish.thread import OneThread
from session_custody.publish.trouble import Trouble
from session_custody.publish.tuning import PublishSettings
from session_custody.telemetry import PUBLICATION_CLOSED, PUBLICATION_REBUILDS, log
from session_custody.wire import lane_text

END_WAIT_S: Final = 1.0


class LanePublisher:
    """`ports.LanePublication`. Event loop only; what blocks runs in a thread of its own."""

    def __init__(
        self,
        fence: LaneFence,
        store: OutboxStore,
        kafka_config: KafkaConfig,
        topics: Topics,
        deployment: str,
        settings: PublishSettings,
    ) -> None:
        self._fence = fence
        self._store = store
        self._trouble = Trouble(settings)
        lane = lane_text(fence.key.topic, fence.key.partition)
        thread = OneThread(f"publish {lane}")
        self._means = Means(fence, store, kafka_config, topics, settings, lane, thread, self._heard)
        self._floor = FloorKeeper(fence, store, settings.floor_every_s)
        frames = Frames(topics, deployment, settings.group, settings.type_prefix)
        self._flow = Flow(self._means, frames, self._floor, self._trouble)
        self._life: asyncio.Task[None] | None = None
        self._closed_because: str | None = None

    # ------------------------------------------------------------------ the port

    async def run(self, fence: LaneFence) -> None:
        """See `ports.LanePublication`. Once per publisher; raises only for bugs of ours."""
        if fence is not self._fence or self._life is not None:
            raise InvariantBroken("a publisher runs once, for the incarnation it was made for")
        self._listen()
        self._life = asyncio.create_task(self._live())
        floor = asyncio.create_task(self._floor.keep())
        try:
            await self._life
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._means.closing or (task is not None and task.cancelling()):
                raise
        finally:
            fence.gate_open = False
            floor.cancel()
            self._means.thread.end()
            self._flow.end()

    async def close(self, flush_s: float) -> None:
        """See `ports.LanePublication`. Returns within flush_s and about two seconds."""
        means = self._means
        means.closing, means.close_by = True, time.monotonic() + flush_s
        self._ring_urgently()
        if self._life is None:
            means.thread.end()
            return
        await asyncio.wait({self._life}, timeout=flush_s)
        self._life.cancel()
        await asyncio.wait({self._life}, timeout=END_WAIT_S)
        with contextlib.suppress(LaneLost, TimeoutError):  # the cursor is right all the same
            async with asyncio.timeout(END_WAIT_S):
                await self._floor.save()

    @property
    def key(self) -> LaneKey:
        return self._fence.key

    @property
    def running(self) -> bool:
        return self._life is not None and not self._life.done()

    @property
    def backlog(self) -> int:
        return self._flow.backlog

    @property
    def closed_because(self) -> str | None:
        return self._closed_because

    @property
    def trouble(self) -> str | None:
        """Publication keeps failing (DESIGN 6, step 4), with the setting to look at when one is known."""
        return self._trouble.detail

    # ------------------------------------------------------------------ being told

    def _listen(self) -> None:
        """Hang on to the fence's bells, keeping whoever hangs there already."""
        means, fence = self._means, self._fence
        wake, broken, lost = fence.wake, fence.on_broken, fence.on_lost

        def on_wake() -> None:
            wake()
            means.bell.set()

        def on_broken() -> None:
            broken()
            fence.gate_open = False
            means.broken = True
            self._floor.drop()
            means.bell.set()

        def on_lost() -> None:
            lost()
            self._ring_urgently()

        fence.wake, fence.on_broken, fence.on_lost = on_wake, on_broken, on_lost

    def _ring_urgently(self) -> None:
        self._means.bell.set()
        self._means.urgent.set()

    def _heard(self, error: KafkaError) -> None:
        setting = setting_of(error)
        if setting is not None:
            self._trouble.heard(setting)

    # ------------------------------------------------------------------ its life

    async def _live(self) -> None:
        while True:
            try:
                await self._publish_once()
                return
            except (Over, LaneLost):
                return
            except Reopen:
                continue
            except Regate:
                self._fence.gate_open = False
            except Closed as closed:
                try:
                    await self._stand_closed(closed.fault)
                except (Over, LaneLost):
                    return
            except Unavailable as error:
                self._fence.gate_open = False
                await self._flow.back_off(str(error))
            except OutletGone as gone:
                await self._begin_again(gone.cause, gone.detail)
            except KafkaException as exception:  # of a call that nobody expected to fail
                await self._begin_again(error_of(exception).name(), told(error_of(exception)))

    async def _begin_again(self, cause: str, detail: str) -> None:
        PUBLICATION_REBUILDS.labels(cause).inc()
        log.warning("publication begins again", lane=self._means.lane, cause=cause, detail=detail)
        await self._flow.back_off(detail)

    async def _publish_once(self) -> None:
        """Steps 1 to 3 with one producer. Returns when closed."""
        means = self._means
        means.broken = False
        if self._is_over():
            raise Over
        begun = await begin(means)
        try:
            self._passed(begun)
            await self._flow.run(begun)
        finally:
            means.thread.post(begun.outlet.discard)

    def _passed(self, begun: Begun) -> None:
        """Steps 1 and 2 have passed, and nothing has happened since: no await stands in between."""
        if begun.floor is not None:
            self._floor.note(begun.floor)
        self._trouble.went_well()
        self._fence.gate_open = True

    async def _stand_closed(self, fault: Fault) -> None:
        """Fail closed for this lane, until an operator's word (`lane adopt-floor`) or a new connection.

        Raises Over and LaneLost.
        """
        means, fence = self._means, self._fence
        fence.gate_open = False
        self._closed_because = fault.value
        PUBLICATION_CLOSED.labels(means.lane).set(1)
        log.error("publication stops, the lane fails closed", lane=means.lane, fault=fault.value)
        to_mark = fault in STORE_WENT_BACK
        at_closing: tuple[object, ...] | None = None
        while to_mark or not means.broken:
            if self._is_over():
                raise Over
            try:
                if to_mark:
                    await self._store.mark_went_back(fence)
                    to_mark = False
                check = await self._store.check_cursor(fence.lane_id, None)
            except Unavailable:
                check = None
            if check is not None:
                if check.owner not in means.owners():
                    await self._still_ours()
                word = _word(check)
                at_closing = at_closing or word
                if word != at_closing and not check.went_back:
                    break
            await wait(means.urgent, means.settings.recheck_s)  # not the bell: runs go on committing
        fence.went_back = False
        self._closed_because = None
        PUBLICATION_CLOSED.labels(means.lane).set(0)

    def _is_over(self) -> bool:
        return self._means.closing or self._fence.lost

    async def _still_ours(self) -> None:
        with contextlib.suppress(Unavailable):
            await self._means.ask_with_the_fence()


def _word(check: CursorCheck) -> tuple[object, ...]:
    """What an operator's adopt-floor changes in the lane row."""
    return check.adopted_seq, check.adopted_hash, check.published_seq, check.epoch, check.went_back
