"""Station 6: one incarnation of a lane: (lane, owner) with everything that acts in its name (DESIGN 4).

Its fence, the tasks of its runs and its publication live and end together. A lost fence ends it: what the
tasks
still do cannot be committed, so they are cancelled; a tool call under way leaves its intent pending and its
late result comes back as a signal. A drain ends it gently: runs stop at their next boundary.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from session_custody.core.errors import InvariantBroken, LaneLost
from session_custody.lanes.liveruns import LiveRun, LiveRuns, Retries
from session_custody.lanes.timings import CANCEL_GRACE_S, LaneTimings
from session_custody.ports import LaneFence, LanePublication, LaneRow, LoadedRun, RunDriver
from session_custody.telemetry import LANE_LOST, STATION_ERRORS, log

PUBLICATION_CLOSE_S: Final = 2.5
"""What a publication may take beyond its flush to let go of its producer."""


@dataclass(slots=True)
class Surroundings:
    """What every incarnation of this process shares."""

    driver: RunDriver
    live: LiveRuns
    retries: Retries
    timings: LaneTimings
    ring: Callable[[], None]
    """A run ended: its slot is free, and it may be due again."""
    on_fatal: Callable[[Exception], None]


class Incarnation:
    """Event loop only. `changed` is called when the fence is lost."""

    def __init__(
        self,
        row: LaneRow,
        fence: LaneFence,
        publication: LanePublication,
        around: Surroundings,
        changed: Callable[[], None],
    ) -> None:
        self.fence = fence
        self.publication = publication
        self.suspects = row.unclean_ends >= around.timings.unclean_after
        self.uncleared = row.unclean_ends > 0
        self.closed = asyncio.Event()
        self.closing = False
        self._around = around
        self._changed = changed
        self._began = time.monotonic()
        self._pending_until: datetime | None = None
        self._counted_lost = False
        self._runs: dict[asyncio.Task[None], LiveRun] = {}
        self._publishing: asyncio.Task[None] | None = None
        fence.on_lost = self.lose

    def begin(self) -> None:
        """Publication starts at once, beside recovery: the old owner's open transaction stalls readers."""
        self._publishing = asyncio.create_task(self._publish(), name=f"publish lane {self.fence.lane_id}")

    @property
    def dispatches(self) -> bool:
        return not (self.closing or self.fence.lost or self.fence.draining)

    @property
    def room(self) -> bool:
        """A lane whose owners died uncleanly drives few runs at once, to learn which of them it is."""
        return not self.suspects or len(self._runs) < self._around.timings.suspects_at_once

    @property
    def driving(self) -> int:
        return len(self._runs)

    def lose(self) -> None:
        """The fence failed (`LaneFence.on_lost`). Idempotent."""
        self.fence.lost = True
        self.fence.gate_open = False
        if not self._counted_lost:
            self._counted_lost = True
            LANE_LOST.inc()
            log.warning("a lane has another owner now", lane_id=self.fence.lane_id, epoch=self.fence.epoch)
        self._changed()

    def may_clear(self, now: datetime) -> bool:
        """Unclean ends are forgotten after a minute alive, not before what was pending at acquire is past its
        not_after.
        """
        alive = time.monotonic() - self._began >= self._around.timings.suspect_minute_s
        return self.uncleared and alive and (self._pending_until is None or now > self._pending_until)

    def cleared(self) -> None:
        """The row says so: runs are driven as usual again."""
        self.uncleared = self.suspects = False

    # -------------------------------------------------------------- runs

    def drive(self, run: LoadedRun) -> bool:
        """Start a run. False: it is driven already, or nothing starts here any more."""
        if not self.dispatches or not self.room:
            return False
        live = self._around.live.claim(run)
        if live is None:
            return False
        if run.checkpoint.not_after is not None and self.uncleared:
            known = self._pending_until
            self._pending_until = max(known or run.checkpoint.not_after, run.checkpoint.not_after)
        task = asyncio.create_task(self._drive(run, live), name=f"run {live.run_id}")
        self._runs[task] = live
        task.add_done_callback(self._ended)
        return True

    async def _drive(self, run: LoadedRun, live: LiveRun) -> None:
        retries, version = self._around.retries, run.checkpoint.version
        try:
            await self._around.driver.drive(run, self.fence, live.inbox, self.suspects)
        except InvariantBroken as error:
            log.error("an invariant is broken", run_id=live.run_id, invariant=str(error))
            self._around.on_fatal(error)
        except LaneLost:
            self.lose()
        except Exception as error:  # noqa: BLE001 - one run never stops its neighbours (I16)
            STATION_ERRORS.labels("lane", type(error).__name__).inc()
            log.error("a run failed and will be driven again", run_id=live.run_id, error=type(error).__name__)
            retries.failed(live.run_id, version)
        else:
            if self.dispatches:
                retries.ended(live.run_id, version)

    def _ended(self, task: asyncio.Task[None]) -> None:
        live = self._runs.pop(task)
        self._around.live.release(live)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._around.on_fatal(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        self._around.ring()

    # -------------------------------------------------------------- publication

    async def _publish(self) -> None:
        try:
            await self.publication.run(self.fence)
        except InvariantBroken as error:
            self._around.on_fatal(error)
        except LaneLost:
            pass
        except Exception as error:  # noqa: BLE001 - publication of one lane never stops the others
            STATION_ERRORS.labels("publication", type(error).__name__).inc()
            log.error("publication failed", lane_id=self.fence.lane_id, error=type(error).__name__)
        # It runs once, for one incarnation, and only the lane's end ends it: without it the lane begins anew.
        if not (self.fence.lost or self.closing):
            self.lose()

    # -------------------------------------------------------------- the end

    async def close(self, budget_s: float) -> None:
        """Stop everything within about `budget_s`: runs at their next boundary, then publication's flush.

        A lost fence gets no budget: nothing of it can be committed or published any more.
        """
        if self.closed.is_set():
            return
        ends = time.monotonic() + (0.0 if self.fence.lost else budget_s)
        self.closing = True
        self.fence.draining = True
        flush_s = min(self._around.timings.flush_s, budget_s / 2)
        await self._stop_runs(ends - flush_s)
        self.fence.gate_open = False
        left = max(0.0, ends - time.monotonic())
        try:
            async with asyncio.timeout(left + PUBLICATION_CLOSE_S):
                await self.publication.close(0.0 if self.fence.lost else min(flush_s, left))
        except Exception as error:  # noqa: BLE001 - the next owner's initialisation ends what is left open
            STATION_ERRORS.labels("publication", type(error).__name__).inc()
        if self._publishing is not None:
            self._publishing.cancel()
            await asyncio.wait({self._publishing}, timeout=CANCEL_GRACE_S)
        self.closed.set()

    async def _stop_runs(self, until: float) -> None:
        if self._runs and (left := until - time.monotonic()) > 0:
            await asyncio.wait(set(self._runs), timeout=left)
        # What has not reached a boundary is cancelled; its slot in the registry is freed when it really ends.
        running = set(self._runs)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCEL_GRACE_S)
