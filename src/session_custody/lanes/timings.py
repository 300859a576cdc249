"""Station 6: the bounds of lanes, by name (DESIGN 4). Seconds unless the name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from session_custody.core import bounds

DUE_MAX: Final = 2_000
"""Ids asked for in one look at what is due."""
LOOK_GAP_S: Final = 0.01
"""Least time between two looks at what is due, however often the bell rings."""
LOAD_CHUNK: Final = 64
"""Runs loaded at once: the first begin before the last are read."""
SIGNALS_CHUNK: Final = 1_000
ACQUIRE_TRIES_MAX: Final = 5
"""Compare-and-set misses in a row before the back-off begins."""
OWNERS_REMEMBERED_MAX: Final = 64
RETRIES_REMEMBERED_MAX: Final = 10_000
DEFERRED_MAX: Final = 10_000
CANCEL_GRACE_S: Final = 1.0
"""A cancelled run ends at its next await; closing does not wait longer (a sync thread may hang)."""
FENCE_WINDOW_S: Final = 60.0
REVOKE_MARGIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class LaneTimings:
    """What settings may say about lanes."""

    session_timeout_s: float = 45.0
    drain_budget_s: float | None = None
    """Budget of a drain that the group does not bound (SIGTERM). Default: a quarter of the session
    timeout.
    """
    heartbeat_s: float = 3.0
    reconcile_s: float = 0.5
    generation_check_s: float = 30.0
    sweep_s: float = 10.0
    """How often held resumes are looked through: bound to a run that came beside them, or given up."""
    orphan_hold_s: float = bounds.ORPHAN_HOLD_S
    retry_first_s: float = 0.2
    retry_max_s: float = 5.0
    run_retry_first_s: float = 0.5
    run_retry_max_s: float = 30.0
    flush_s: float = 2.0
    """What publication gets of the drain budget, at most."""
    fences_per_minute_max: int = 5
    unclean_after: int = bounds.UNCLEAN_ENDS_AT
    suspects_at_once: int = bounds.SUSPECTS_AT_ONCE
    suspect_minute_s: float = bounds.SUSPECT_MINUTE_S
    run_slots: int = 256
    backlog_soft: int = 20_000
    backlog_hard: int = 100_000

    @property
    def stall_after_s(self) -> float:
        """The event loop has not answered for this long: the worker lets go of its lanes."""
        return self.session_timeout_s / 3

    @property
    def drain_s(self) -> float:
        return self.session_timeout_s / 4 if self.drain_budget_s is None else self.drain_budget_s
