"""Station 6: all lanes of this process: what the group says, heartbeats, generations, health (DESIGN 4)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final

from session_custody.core.errors import LaneLost, Unavailable
from session_custody.lanes.incarnation import Incarnation, Surroundings
from session_custody.lanes.liveruns import LiveRuns, Retries
from session_custody.lanes.recovery import Reconcile
from session_custody.lanes.tenure import Owners, Tenure
from session_custody.lanes.timings import FENCE_WINDOW_S, REVOKE_MARGIN_S, LaneTimings
from session_custody.ports import (
    Clock,
    InputTopic,
    IntakeControl,
    LaneFence,
    PublicationFactory,
    RunDriver,
    RunStore,
)
from session_custody.telemetry import LANES_OWNED, STATION_ERRORS, log

LISTEN_AGAIN_S: Final = 5.0
BEAT_S: Final = 1.0

Bells = Callable[[], AsyncIterator[object]]
"""Opens a stream of notifications; each one rings the reconcile. It may end or raise: polling goes on."""


@dataclass(frozen=True, slots=True)
class LanesState:
    """For health. `closed`: partition -> why its publication is stopped. `red`: why this worker
    owns nothing.
    """

    assigned: tuple[int, ...]
    owned: tuple[int, ...]
    gated: tuple[int, ...]
    closed: dict[int, str]
    suspects: tuple[int, ...]
    live_runs: int
    loop_beat_age_s: float
    red: str | None


class LaneKeeper:
    """`ports.LaneAssignments`. Made on the event loop; `assigned`, `revoked`, `lost` come from the
    poll thread.
    """

    def __init__(
        self,
        *,
        store: RunStore,
        driver: RunDriver,
        publication: PublicationFactory,
        intake: IntakeControl,
        topic: InputTopic,
        topic_name: str,
        clock: Clock,
        timings: LaneTimings,
        on_fatal: Callable[[Exception], None],
        cursor_partition: Callable[[int], int] = lambda partition: partition,
        bells: Bells | None = None,
    ) -> None:
        self._store = store
        self._publication = publication
        self._intake = intake
        self._topic = topic
        self._topic_name = topic_name
        self._clock = clock
        self._timings = timings
        self._cursor_partition = cursor_partition
        self._bells = bells
        self._owners = Owners()
        self._live = LiveRuns()
        retries = Retries(timings)
        self._reconcile = Reconcile(store, self._live, retries, timings, self._incarnations, self._hold)
        self._around = Surroundings(
            driver=driver,
            live=self._live,
            retries=retries,
            timings=timings,
            ring=self._reconcile.ring,
            on_fatal=on_fatal,
        )
        self._tenures: dict[int, Tenure] = {}
        self._fences: deque[float] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._asking: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._red: str | None = None
        self._beat = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Before intake starts. Lanes come with the first assignment."""
        self._loop = asyncio.get_running_loop()
        for name, work in (
            ("reconcile", self._reconcile.run()),
            ("lane heartbeats", self._every(self._timings.heartbeat_s, self._heartbeats)),
            ("loop beat", self._every(BEAT_S, self._tick)),
            ("topic generation", self._every(self._timings.generation_check_s, self._check_generation)),
            ("orphan sweep", self._every(self._timings.sweep_s, self._sweep_orphans)),
            ("listen", self._listen()),
        ):
            self._tasks.append(asyncio.create_task(work, name=name))

    async def stop(self) -> None:
        """Drain every lane and release it. Before intake closes the consumer (DESIGN 4)."""
        self._stopping = True
        await asyncio.gather(*(tenure.let_go(self._timings.drain_s) for tenure in self._tenures.values()))
        for task in [*self._tasks, *self._asking]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._asking, return_exceptions=True)

    def ring(self) -> None:
        """Look at once for what is due. Event loop only."""
        self._reconcile.ring()

    def health(self) -> LanesState:
        standing = {
            number: tenure.incarnation
            for number, tenure in sorted(self._tenures.items())
            if tenure.incarnation is not None
        }
        closed = {number: each.publication.closed_because for number, each in standing.items()}
        return LanesState(
            assigned=tuple(sorted(n for n, tenure in self._tenures.items() if tenure.assigned)),
            owned=tuple(standing),
            gated=tuple(number for number, each in standing.items() if not each.fence.gate_open),
            closed={number: why for number, why in closed.items() if why is not None},
            suspects=tuple(number for number, each in standing.items() if each.suspects),
            live_runs=len(self._live),
            loop_beat_age_s=time.monotonic() - self._beat,
            red=self._red,
        )

    # -------------------------------------------------------------- LaneAssignments, from the poll thread

    def assigned(self, partitions: Sequence[int]) -> None:
        self._tell(lambda: self._assigned(partitions))

    def lost(self, partitions: Sequence[int]) -> None:
        self._tell(lambda: self._lost(partitions))

    def revoked(self, partitions: Sequence[int], budget_s: float) -> None:
        if self._loop is None:
            return
        waiting = None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is left to drain
            waiting = asyncio.run_coroutine_threadsafe(self._let_go(partitions, budget_s), self._loop)
        if waiting is None:
            return
        try:
            waiting.result(budget_s + REVOKE_MARGIN_S)
        except (TimeoutError, concurrent.futures.CancelledError):
            STATION_ERRORS.labels("lane", "drain_timeout").inc()
            log.warning("a drain took longer than its budget", partitions=list(partitions))
        except Exception as error:  # noqa: BLE001 - the callback must return, the group goes on
            STATION_ERRORS.labels("lane", type(error).__name__).inc()
            log.error("a drain failed", error=type(error).__name__)

    def _tell(self, say: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(say)

    # -------------------------------------------------------------- LaneAssignments, on the event loop

    def admitted(self, fence: LaneFence) -> None:
        self._reconcile.ring()

    def truncated(self, fence: LaneFence, offset: int) -> None:
        tenure = self._tenures.get(fence.key.partition)
        if tenure is not None and tenure.incarnation is not None and tenure.incarnation.fence is fence:
            self._ask(self._refit_surely(tenure, fence, offset))

    # -------------------------------------------------------------- inside

    def _assigned(self, partitions: Sequence[int]) -> None:
        if self._stopping:
            return
        for number in partitions:
            tenure = self._tenures.get(number)
            if tenure is not None and not tenure.task.done():
                tenure.assign()
                continue
            self._tenures[number] = Tenure(
                number,
                topic_name=self._topic_name,
                cursor_partition=self._cursor_partition(number),
                store=self._store,
                topic=self._topic,
                intake=self._intake,
                publication=self._publication,
                around=self._around,
                owners=self._owners,
                look=self._reconcile.look,
                opened=self._reconcile.reopened,
                fenced=self._count_fence,
            )

    def _lost(self, partitions: Sequence[int]) -> None:
        for number in partitions:
            if (tenure := self._tenures.get(number)) is not None:
                tenure.lose()

    async def _let_go(self, partitions: Sequence[int], budget_s: float) -> None:
        found = [self._tenures[number] for number in partitions if number in self._tenures]
        await asyncio.gather(*(tenure.let_go(budget_s) for tenure in found))

    def _incarnations(self) -> list[Incarnation]:
        return [t.incarnation for t in self._tenures.values() if t.incarnation is not None]

    def _hold(self, incarnation: Incarnation, held: bool) -> None:
        self._intake.hold(incarnation.fence, held)

    def _count_fence(self) -> bool:
        """A lane was fenced away while the group says that it is ours. True: too often, this
        worker leaves.
        """
        now = time.monotonic()
        self._fences.append(now)
        while self._fences and now - self._fences[0] > FENCE_WINDOW_S:
            self._fences.popleft()
        if len(self._fences) <= self._timings.fences_per_minute_max:
            return False
        self._red = f"lanes were fenced away {len(self._fences)} times within a minute"
        self._intake.leave(self._red)
        return True

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Unavailable:
                STATION_ERRORS.labels("lane", "unavailable").inc()
            except Exception as error:  # noqa: BLE001 - the next round tries again
                STATION_ERRORS.labels("lane", type(error).__name__).inc()
                log.error("a standing check of the lanes failed", error=type(error).__name__)

    async def _tick(self) -> None:
        """Nothing else is in this task: the beat tells of the event loop, not of Postgres."""
        self._beat = time.monotonic()

    async def _heartbeats(self) -> None:
        standing = [each for each in self._incarnations() if not each.fence.lost]
        LANES_OWNED.set(len(standing))
        for each in standing:
            await self._heartbeat(each)
        self._tenures = {n: t for n, t in self._tenures.items() if not t.task.done()}

    async def _heartbeat(self, standing: Incarnation) -> None:
        """How an idle owner learns that it was bumped, and intake that the store went back (DESIGN 4)."""
        fence = standing.fence
        mark = self._intake.mark(fence)
        try:
            row = await self._store.heartbeat(fence, clear_unclean=standing.may_clear(self._clock.now()))
        except LaneLost:
            standing.lose()
            return
        if not row.unclean_ends:
            standing.cleared()
        self._intake.check(fence, mark, row.input_offset)

    async def _sweep_orphans(self) -> None:
        """Resumes whose start did not come become dead letters; whose start came meanwhile, signals."""
        for standing in self._incarnations():
            if standing.dispatches:
                try:
                    await self._store.sweep_orphans(standing.fence, self._timings.orphan_hold_s)
                except LaneLost:
                    standing.lose()
        self._reconcile.ring()

    async def _check_generation(self) -> None:
        standing = [t for t in self._tenures.values() if t.incarnation is not None and t.assigned]
        if not standing:
            return
        topic_id = await self._topic.topic_id()
        for tenure in standing:
            fence = None if tenure.incarnation is None else tenure.incarnation.fence
            if fence is not None and not fence.lost and fence.topic_id != topic_id:
                await self._refit(tenure, fence, await self._topic.earliest(tenure.partition))

    async def _refit(self, tenure: Tenure, fence: LaneFence, offset: int) -> None:
        topic_id = await self._topic.topic_id()
        if topic_id != fence.topic_id:
            offset = await self._topic.earliest(tenure.partition)
        try:
            await tenure.regenerate(fence, topic_id, offset)
        except LaneLost:
            if tenure.incarnation is not None and tenure.incarnation.fence is fence:
                tenure.incarnation.lose()
            return
        self._intake.move(fence)

    async def _refit_surely(self, tenure: Tenure, fence: LaneFence, offset: int) -> None:
        """Intake of the lane stands still until this has happened."""
        while not fence.lost and tenure.assigned:
            try:
                await self._refit(tenure, fence, offset)
            except Unavailable:
                STATION_ERRORS.labels("lane", "unavailable").inc()
                await asyncio.sleep(self._timings.retry_max_s)
            else:
                return

    def _ask(self, work: Coroutine[object, object, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - the standing checks ask again
                STATION_ERRORS.labels("lane", type(error).__name__).inc()

        task = asyncio.create_task(guarded())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _listen(self) -> None:
        """LISTEN only makes the reconcile faster; without it the interval does (DESIGN 4)."""
        while self._bells is not None:
            try:
                async for _ in self._bells():
                    self._reconcile.ring()
            except Exception as error:  # noqa: BLE001 - see above
                STATION_ERRORS.labels("lane", type(error).__name__).inc()
            await asyncio.sleep(LISTEN_AGAIN_S)
