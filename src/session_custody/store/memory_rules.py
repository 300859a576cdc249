"""What the SQL of the store says about one run, as pure functions for the fake."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from session_custody.core.pin import LaneId
from session_custody.core.run import DRIVEN, Checkpoint, Status
from session_custody.ports import Clear, Deadline, InSeconds, Keep, NewRun, RunCommit, SignalKind
from session_custody.store.commit_rows import commit_rows

_RESTING = frozenset({Status.WAITING, Status.PARKED})


def told(commit: RunCommit, lane_id: LaneId, stands: Checkpoint) -> bool:
    """Compare-and-set: the lane's, this version, and not terminal (or the same status after the end)."""
    if commit.fence.lane_id != lane_id or commit.checkpoint.version != stands.version:
        return False
    return not stands.status.terminal or (commit.after_end and commit.checkpoint.status is stands.status)


def moved(commit: RunCommit, stands: Checkpoint, now: datetime) -> Checkpoint:
    """The checkpoint that the commit leaves: deadlines counted from `now`, kept only where they belong."""
    new = commit.checkpoint
    return replace(
        new,
        version=stands.version + 1,
        wake_at=_deadline(commit.wake_at, stands.wake_at, now) if new.status in _RESTING else None,
        not_after=_deadline(commit.not_after, stands.not_after, now) if new.pending is not None else None,
        working=new.working if commit.working_changed else stands.working,
    )


def _deadline(deadline: Deadline, stands: datetime | None, now: datetime) -> datetime | None:
    match deadline:
        case Keep():
            return stands
        case Clear():
            return None
        case InSeconds(seconds):
            return now + timedelta(seconds=seconds)


def storable(commit: RunCommit) -> bool:
    """Whether Postgres would take the rows: text without a raw NUL or a lone surrogate, and its CHECKs."""
    if commit.checkpoint.status.terminal and commit.checkpoint.pending is not None:
        return False
    try:
        written = commit_rows(commit)
    except UnicodeEncodeError:
        return False
    return _texts((*written.checkpoint, *(value for step in written.steps for value in step)))


def storable_start(run: NewRun) -> bool:
    facts = run.facts
    return _texts(
        (run.input, facts.session_id, facts.tenant, run.start_ce_id, run.start_ce_source, run.traceparent)
    )


def _texts(values: Iterable[object]) -> bool:
    for value in values:
        if isinstance(value, str):
            if "\x00" in value:
                return False
            try:
                value.encode()
            except UnicodeEncodeError:
                return False
    return True


def due_rank(
    stands: Checkpoint, expires_at: datetime, signals: Sequence[SignalKind], now: datetime
) -> int | None:
    """Order in which due runs are listed; None: not due."""
    status = stands.status
    ranks: list[int] = []
    if status in _RESTING and stands.wake_at is not None and stands.wake_at <= now:
        ranks.append(0)
    if (status in _RESTING or status in DRIVEN) and expires_at <= now:
        ranks.append(0)
    ranks += [
        0 if kind is SignalKind.CANCEL else 1
        for kind in signals
        if not status.terminal or kind is SignalKind.TOOL_RESULT
    ]
    if status in DRIVEN:
        ranks.append(2 if status is Status.RUNNING else 3)
    return min(ranks, default=None)
