"""Station 6: which runs this process drives, and which it lets rest for a while."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from session_custody.core.pin import LaneId, RunId
from session_custody.lanes.timings import RETRIES_REMEMBERED_MAX, LaneTimings
from session_custody.ports import Inbox, LoadedRun
from session_custody.telemetry import RUNS_LIVE


@dataclass(slots=True, eq=False)
class LiveRun:
    """One run in memory."""

    run_id: RunId
    lane_id: LaneId
    inbox: Inbox


class LiveRuns:
    """Process-wide: a second driver of a run is refused, of whatever incarnation (DESIGN 4). Event
    loop only.
    """

    def __init__(self) -> None:
        self._runs: dict[RunId, LiveRun] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, run_id: RunId) -> bool:
        return run_id in self._runs

    def ids(self) -> list[RunId]:
        return list(self._runs)

    def get(self, run_id: RunId) -> LiveRun | None:
        return self._runs.get(run_id)

    def claim(self, run: LoadedRun) -> LiveRun | None:
        """None: it is driven already."""
        if RunId(run.facts.run_id) in self._runs:
            return None
        live = LiveRun(RunId(run.facts.run_id), run.lane_id, Inbox())
        self._runs[live.run_id] = live
        RUNS_LIVE.set(len(self._runs))
        return live

    def release(self, live: LiveRun) -> None:
        if self._runs.get(live.run_id) is live:
            del self._runs[live.run_id]
            RUNS_LIVE.set(len(self._runs))


@dataclass(slots=True)
class _Rest:
    version: int
    in_a_row: int
    until: float


class Retries:
    """Back-off for runs whose drive failed, or ended again without moving their row: still due, they would
    spin.

    Nothing parks here (that is a run's own business); a run at fault costs an attempt per `run_retry_max_s`.
    """

    def __init__(self, timings: LaneTimings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._timings = timings
        self._monotonic = monotonic
        self._rests: OrderedDict[RunId, _Rest] = OrderedDict()

    def ended(self, run_id: RunId, version: int) -> None:
        """Driven from `version` on, and back without an error. From the second time at one version
        on it rests.
        """
        before = self._rests.get(run_id)
        if before is not None and before.version == version:
            self._rest(run_id, version, before.in_a_row + 1)
        else:
            self._note(run_id, _Rest(version, 0, until=0.0))

    def failed(self, run_id: RunId, version: int) -> None:
        before = self._rests.get(run_id)
        same = before is not None and before.version == version
        self._rest(run_id, version, before.in_a_row + 1 if before is not None and same else 1)

    def resting(self) -> list[RunId]:
        now = self._monotonic()
        return [run_id for run_id, rest in self._rests.items() if rest.until > now]

    def _rest(self, run_id: RunId, version: int, in_a_row: int) -> None:
        delay = self._timings.run_retry_first_s * 2 ** min(in_a_row - 1, 10)
        until = self._monotonic() + min(self._timings.run_retry_max_s, delay)
        self._note(run_id, _Rest(version, in_a_row, until))

    def _note(self, run_id: RunId, rest: _Rest) -> None:
        self._rests[run_id] = rest
        self._rests.move_to_end(run_id)
        while len(self._rests) > RETRIES_REMEMBERED_MAX:
            self._rests.popitem(last=False)
