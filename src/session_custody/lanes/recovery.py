"""Station 6: the standing reconcile: what is due is driven, whatever made it due (DESIGN 4).

There is no other way for a run to start or to go on: a fresh start, an answer, a passed deadline and the
take-over
of a dead worker's lane are all found by the same look. It happens at least every `reconcile_s`, and at once
when
somebody rings. A bell that is lost costs latency, never a run (I4).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from session_custody.core.errors import Unavailable
from session_custody.core.pin import LaneId, RunId
from session_custody.core.run import Status
from session_custody.lanes.incarnation import Incarnation
from session_custody.lanes.liveruns import LiveRuns, Retries
from session_custody.lanes.timings import (
    DEFERRED_MAX,
    DUE_MAX,
    LOAD_CHUNK,
    LOOK_GAP_S,
    SIGNALS_CHUNK,
    LaneTimings,
)
from session_custody.ports import LoadedRun, RunStore
from session_custody.telemetry import STATION_ERRORS, log


class Reconcile:
    """One per process, for all its lanes. Event loop only."""

    def __init__(
        self,
        store: RunStore,
        live: LiveRuns,
        retries: Retries,
        timings: LaneTimings,
        incarnations: Callable[[], Sequence[Incarnation]],
        hold: Callable[[Incarnation, bool], None],
    ) -> None:
        self._store = store
        self._live = live
        self._retries = retries
        self._timings = timings
        self._incarnations = incarnations
        self._hold = hold
        self._bell = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._deferred: dict[RunId, LaneId] = {}
        self._held: set[LaneId] = set()
        self._failing = False

    def ring(self) -> None:
        self._bell.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timings.reconcile_s):
                    await self._bell.wait()
            self._bell.clear()
            try:
                await self.look()
                await asyncio.sleep(LOOK_GAP_S)  # runs that end ring: many of them share a look
            except Unavailable as outage:
                self._outage(outage)
                await asyncio.sleep(self._timings.reconcile_s)  # a bell does not speed up an outage
            else:
                self._failing = False

    async def look(self) -> None:
        """List what is due, drive it as far as there is room, hand signals to live runs. Raises
        Unavailable.
        """
        async with self._one_at_a_time:
            self._bound_backlogs()
            await self._dispatch()
            await self._signals()

    # -------------------------------------------------------------- runs

    async def _dispatch(self) -> None:
        lanes = {each.fence.lane_id: each for each in self._incarnations() if each.dispatches and each.room}
        free = self._timings.run_slots - len(self._live)
        if not lanes or free <= 0:
            return
        left_out = [*self._live.ids(), *self._retries.resting(), *self._deferred]
        due = await self._store.due_runs(list(lanes), left_out, min(free, DUE_MAX))
        for at in range(0, len(due), LOAD_CHUNK):
            wanted = [run_id for run_id, lane_id in due[at : at + LOAD_CHUNK] if lane_id in lanes]
            if not wanted:
                continue
            for run in await self._store.load_runs(wanted):
                self._drive(run, lanes[run.lane_id])

    def _drive(self, run: LoadedRun, incarnation: Incarnation) -> None:
        if self._is_new(run) and incarnation.publication.backlog > self._timings.backlog_soft:
            # Admitted, and it stays queued; resumes and running runs go on (DESIGN 6.7).
            if len(self._deferred) < DEFERRED_MAX:
                self._deferred[RunId(run.facts.run_id)] = run.lane_id
            return
        incarnation.drive(run)

    @staticmethod
    def _is_new(run: LoadedRun) -> bool:
        point = run.checkpoint
        fresh = point.status is Status.QUEUED and point.loop_step == 0 and point.head_seq == 1
        return fresh and not run.signals

    # -------------------------------------------------------------- signals

    async def _signals(self) -> None:
        wanted = [*self._live.ids(), *self._deferred]
        for at in range(0, len(wanted), SIGNALS_CHUNK):
            for signal in await self._store.signals_for(wanted[at : at + SIGNALS_CHUNK]):
                # A cancel frees a run that the backlog held back.
                if self._deferred.pop(signal.run_id, None) is not None:
                    self.ring()
                if (live := self._live.get(signal.run_id)) is not None:
                    live.inbox.put([signal])

    # -------------------------------------------------------------- bounds

    def _bound_backlogs(self) -> None:
        """Soft: no new run is dispatched. Hard: the partition pauses (DESIGN 6.7)."""
        standing = {each.fence.lane_id: each for each in self._incarnations()}
        self._held &= standing.keys()
        for lane_id, incarnation in standing.items():
            backlog = incarnation.publication.backlog
            if lane_id not in self._held and backlog >= self._timings.backlog_hard:
                self._held.add(lane_id)
                log.warning("the publication backlog pauses intake", lane_id=lane_id, backlog=backlog)
                self._hold(incarnation, True)
            elif lane_id in self._held and backlog < self._timings.backlog_hard:
                self._held.discard(lane_id)
                self._hold(incarnation, False)
        self._deferred = {
            run_id: lane_id
            for run_id, lane_id in self._deferred.items()
            if lane_id in standing and standing[lane_id].publication.backlog > self._timings.backlog_soft
        }

    def reopened(self, lane_id: LaneId) -> None:
        """The partition was opened anew: whether it is held is decided anew."""
        self._held.discard(lane_id)

    def _outage(self, outage: Unavailable) -> None:
        STATION_ERRORS.labels("lane", "unavailable").inc()
        if not self._failing:
            self._failing = True
            log.warning("the reconcile waits", waits_for=outage.what)
