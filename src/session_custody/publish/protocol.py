"""Station 12, the decisions of publication without I/O: what the cursor partition and Postgres say together.

Steps 1 and 2 of DESIGN 6 end in one verdict. `look` reads what stood on the lane's cursor partition, `judge`
holds it against `CursorCheck`, which Postgres read in one statement with the owner *after* the partition was
read: asking again whether we still own the lane and comparing the cursor are one question.

    not owner                                             NotOwner      close, no alarm
    the cursor that an operator accepted                  Proceed       from the floor
    another owner's claim or cursor, epoch >= ours        FailClosed    the store went back, lost that owner
    went_back stands in the lane row                      FailClosed
    cursor of another database                            FailClosed
    cursor missing, or below the floor                    FailClosed    Kafka lost it
    no row with the cursor's lane_seq and hash            FailClosed    the store went back
    else                                                  Proceed       from the cursor

"Missing" is never zero once the floor is above zero. A cursor above the floor is no fault: the worker died
between the Kafka commit and the floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from session_custody.ports import CursorCheck, OutboxRow
from session_custody.wire import Claim, Cursor


@dataclass(frozen=True, slots=True)
class Damaged:
    """A record under one of the lane's keys that this version cannot read."""

    detail: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One committed record of the lane on its cursor partition."""

    offset: int
    record: Claim | Cursor | Damaged


@dataclass(frozen=True, slots=True)
class Ours:
    """Who asks: every owner uuid of this incarnation (settling changes it in place), the highest epoch known
    of it, and the database.
    """

    owners: frozenset[UUID]
    epoch: int
    store_id: UUID


@dataclass(frozen=True, slots=True)
class Sight:
    """What the cursor partition showed. `cursor` None: nothing was ever published, or it was lost."""

    claim_seen: bool
    cursor: Cursor | None
    cursor_offset: int | None
    rival: Claim | Cursor | None
    """The record of another owner with the highest epoch, if that is not below ours."""
    damaged: str | None

    @property
    def cursor_seq(self) -> int | None:
        return self.cursor.lane_seq if self.cursor else None


class Fault(StrEnum):
    """Why a lane fails closed. Values are what health shows."""

    RIVAL = "the database lost an owner that Kafka knows: it went back in time"
    WENT_BACK = "the lane is marked went_back: the database lost committed rows"
    ROW_MISSING = "the database has no row for the cursor: it went back in time"
    ROW_DIFFERS = "the database has another row where the cursor stands: it went back in time"
    CURSOR_MISSING = "the lane's cursor is gone from the cursor topic"
    CURSOR_BELOW_FLOOR = "the lane's cursor is below what was published"
    OTHER_STORE = "the cursor topic belongs to another database"
    DAMAGED = "a record on the cursor topic cannot be read"
    GAP = "rows are missing in the database: a lane_seq was skipped"


STORE_WENT_BACK: Final = frozenset({Fault.RIVAL, Fault.WENT_BACK, Fault.ROW_MISSING, Fault.ROW_DIFFERS})
"""Faults that are written to the lane row: without it the next owner would not know (DESIGN 6)."""


@dataclass(frozen=True, slots=True)
class Proceed:
    """Rows after `after_seq` are to be published. Numbers up to `skipped_to` may be missing: an operator's
    adopt-floor lifted next_seq over them.
    """

    after_seq: int
    skipped_to: int


@dataclass(frozen=True, slots=True)
class FailClosed:
    fault: Fault


@dataclass(frozen=True, slots=True)
class NotOwner:
    """Somebody else owns the lane: close, without an alarm."""


@dataclass(frozen=True, slots=True)
class StartAgain:
    """The own claim was not seen in time: back to step 1."""


Verdict = Proceed | FailClosed | NotOwner | StartAgain


def look(entries: Sequence[Entry], nonce: UUID, ours: Ours, *, by_epoch: bool = False) -> Sight:
    """Sum up what was read, in offset order.

    `by_epoch`: without transactions a zombie's last cursor may stand behind its successor's, so the last
    cursor of the highest epoch counts; with them the last one does.
    """
    claim_seen = False
    cursor: Cursor | None = None
    cursor_offset: int | None = None
    rival: Claim | Cursor | None = None
    damaged: str | None = None
    for entry in entries:
        record = entry.record
        if isinstance(record, Damaged):
            damaged = record.detail
            continue
        if isinstance(record, Claim):
            claim_seen = claim_seen or record.nonce == nonce
        elif cursor is None or not by_epoch or record.epoch >= cursor.epoch:
            cursor, cursor_offset = record, entry.offset
        if record.owner not in ours.owners and record.epoch >= max(ours.epoch, rival.epoch if rival else 0):
            rival = record
    if cursor is not None and cursor.lane_seq == 0:
        cursor = None
    return Sight(claim_seen, cursor, cursor_offset, rival, damaged)


def judge(sight: Sight, ours: Ours, check: CursorCheck) -> Verdict:
    """Steps 1 (asked again) and 2. `check` was read after the partition, for `sight.cursor_seq`."""
    if check.owner not in ours.owners:
        return NotOwner()
    if not sight.claim_seen and sight.rival is None:
        return StartAgain()
    if check.went_back:
        return FailClosed(Fault.WENT_BACK)
    if sight.damaged is not None:
        return FailClosed(Fault.DAMAGED)
    if _adopted(sight.cursor, check):
        # without our own claim the cursor may be an older one than it looks
        return Proceed(check.published_seq, check.adopted_seq or 0) if sight.claim_seen else StartAgain()
    if sight.rival is not None:
        return FailClosed(Fault.OTHER_STORE if sight.rival.store_id != ours.store_id else Fault.RIVAL)
    return _compare(sight.cursor, ours, check)


def _adopted(cursor: Cursor | None, check: CursorCheck) -> bool:
    """The cursor that Kafka shows is the one an operator accepted; seq 0 stands for "none is there".

    Once the floor has passed the adopted cursor, a partition that shows it again has lost the newer ones.
    """
    if check.adopted_seq is None:
        return False
    if cursor is None:
        return check.adopted_seq == 0
    return check.published_seq <= check.adopted_seq and (cursor.lane_seq, cursor.hash) == (
        check.adopted_seq,
        check.adopted_hash,
    )


def _compare(cursor: Cursor | None, ours: Ours, check: CursorCheck) -> Verdict:
    if cursor is None:
        return FailClosed(Fault.CURSOR_MISSING) if check.published_seq else Proceed(0, skipped_to=0)
    if cursor.store_id != ours.store_id:
        return FailClosed(Fault.OTHER_STORE)
    if cursor.lane_seq < check.published_seq:
        return FailClosed(Fault.CURSOR_BELOW_FLOOR)
    if check.row_hash is None:
        return FailClosed(Fault.ROW_MISSING)
    if check.row_hash != cursor.hash:
        return FailClosed(Fault.ROW_DIFFERS)
    return Proceed(cursor.lane_seq, skipped_to=check.adopted_seq or 0)


def dense(rows: Sequence[OutboxRow], after_seq: int, skipped_to: int) -> Sequence[OutboxRow]:
    """The rows up to the first gap: publication never passes one, except over numbers that were given up."""
    expected = after_seq + 1
    for index, row in enumerate(rows):
        if row.lane_seq != expected and not expected < row.lane_seq <= skipped_to + 1:
            return rows[:index]
        expected = row.lane_seq + 1
    return rows
