"""Parameters of `commit_group`, in the order of queries.sql: what one commit and what a group of them look
like.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from session_custody.ports import Clear, Deadline, InSeconds, Keep, LaneFence, RunCommit
from session_custody.store import rows
from session_custody.store.arrays import BOOL, BYTES, FLOAT8, INT4, INT8, TEXT, UUIDS, Column, columns

_ROW_COLUMNS: Final[tuple[Column, ...]] = (
    INT8, TEXT, INT8, TEXT, INT4, TEXT, INT8, BYTES, INT4, INT4, INT4, TEXT, TEXT, BOOL, FLOAT8, TEXT, BOOL,
    FLOAT8, BOOL, INT8, TEXT, TEXT, BOOL, TEXT, INT4, BOOL,
)  # fmt: skip
_STEP_COLUMNS: Final[tuple[Column, ...]] = (
    INT4, INT8, TEXT, INT4, BYTES, BYTES, BYTES, TEXT, BYTES, TEXT, BYTES, TEXT,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CommitRows:
    """One commit as rows: its checkpoint's values, its steps, the signals it consumes."""

    checkpoint: tuple[object, ...]
    steps: Sequence[tuple[object, ...]]
    consumes: Sequence[int]

    @property
    def size(self) -> int:
        """Bytes that its steps weigh, roughly."""
        return sum(len(value) for step in self.steps for value in step if isinstance(value, str | bytes))


def commit_rows(commit: RunCommit) -> CommitRows:
    """Raises UnicodeEncodeError for a lone surrogate, which is no text in any row."""
    return CommitRows(_row_values(commit), _step_values(commit), commit.consumes)


def group_params(fences: Sequence[tuple[LaneFence, UUID]], group: Sequence[CommitRows]) -> list[bytes]:
    """`fences` with the owner that is sent; a row's ordinal is its place in the group, from 1."""
    numbered = list(enumerate(group, start=1))
    steps = [(order, *step) for order, commit in numbered for step in commit.steps]
    consumed = [(order, signal_id) for order, commit in numbered for signal_id in commit.consumes]
    return [
        INT8.array([fence.lane_id for fence, _ in fences]),
        UUIDS.array([sent for _, sent in fences]),
        INT8.array([fence.last_seen for fence, _ in fences]),
        *columns(_ROW_COLUMNS, [commit.checkpoint for commit in group]),
        *columns(_STEP_COLUMNS, steps),
        INT4.array([order for order, _ in consumed]),
        INT8.array([signal_id for _, signal_id in consumed]),
    ]


def _row_values(commit: RunCommit) -> tuple[object, ...]:
    new = commit.checkpoint
    wake_keep, wake_in_s = _deadline(commit.wake_at)
    not_after_keep, not_after_in_s = _deadline(commit.not_after)
    working = rows.working_text(new) if commit.working_changed else None
    values = (
        commit.fence.lane_id,
        commit.run_id,
        new.version,
        new.status.value,
        new.loop_step,
        new.stage,
        new.head_seq,
        new.head_hash,
        new.attempts,
        new.parks,
        new.suspect_count,
        new.stop_requested,
        None if new.park_reason is None else new.park_reason.value,
        wake_keep,
        wake_in_s,
        rows.pending_text(new.pending),
        not_after_keep,
        not_after_in_s,
        new.call_running,
        new.doubt_seq,
        new.last_tool,
        working,
        commit.working_changed,
        new.loaded,
        new.format,
        commit.after_end,
    )
    _encodable(values)
    return values


def _step_values(commit: RunCommit) -> list[tuple[object, ...]]:
    steps: list[tuple[object, ...]] = []
    for event in commit.events:
        step = (
            event.event_seq,
            event.kind.value,
            commit.checkpoint.loop_step,
            event.schema_fingerprint,
            event.hash,
            event.body,
            event.payload,
            event.salt,
            event.record,
            event.signature,
            None,
        )
        _encodable(step)
        steps.append(step)
    return steps


def _encodable(values: Iterable[object]) -> None:
    for value in values:
        if isinstance(value, str) and not value.isascii():
            value.encode()


def _deadline(deadline: Deadline) -> tuple[bool, float | None]:
    match deadline:
        case Keep():
            return True, None
        case Clear():
            return False, None
        case InSeconds(seconds):
            return False, float(seconds)
