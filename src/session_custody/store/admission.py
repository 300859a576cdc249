"""Station 4: the pin in Postgres. One transaction per lane and batch, in two round trips (DESIGN 5, 6).

1. `begin`; insert the runs of candidates, in order of their ids; read every run that the batch names, in a
   second statement, whose snapshot is newer (insert-or-compare in one statement can find neither). Then
   `decide`, pure and quick, between the round trips.
2. Steps, dead letters, signals, bound signals and `input_offset`, fenced, numbered, queued with COMMIT in
   one flush: the lane is never locked while its client thinks.

A crash before 2 arrives writes nothing and the batch is redelivered. COMMIT lost: settled by taking a new
owner; then `input_offset` tells, for it moves in this transaction alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from session_custody import faults
from session_custody.core.errors import LaneLost, RowRefused, Unavailable
from session_custody.core.pin import RunId
from session_custody.ports import (
    AdmissionBatch,
    Admitted,
    Decided,
    NewDeadLetter,
    NewRun,
    NewSignal,
    OffsetMoved,
)
from session_custody.store.admission_rows import admit_call, insert_call, known_call, known_run
from session_custody.store.fences import Fences
from session_custody.store.link import (
    BEGIN,
    COMMIT,
    FENCE_FAILED,
    ROLLBACK,
    UNIQUE_VIOLATION,
    Broken,
    Call,
    Link,
    Refused,
    Row,
    Session,
    unavailable,
)
from session_custody.store.settling import Settling

TRIES_MAX: Final = 3
UNENCODABLE: Final = "22021"
"""SQLSTATE of text that is no text; ours is found before it is sent."""


@dataclass(slots=True)
class _Attempt:
    """One batch on its way. `inserted`: round trip 1 is through; `sent`: round trip 2 has left."""

    batch: AdmissionBatch
    owner: UUID
    created: frozenset[RunId] = frozenset()
    decided: Decided = field(default_factory=Decided)
    inserted: bool = False
    sent: bool = False

    @property
    def new_runs(self) -> list[NewRun]:
        return [run for run in self.batch.candidates if run.facts.run_id in self.created]

    def call(self, new_runs: Sequence[NewRun], decided: Decided) -> Call:
        return admit_call(self.batch, self.owner, self.created, new_runs, decided)


class Admission:
    """Admits batches, one at a time on one connection."""

    def __init__(self, link: Link, fences: Fences, settling: Settling) -> None:
        self._link = link
        self._fences = fences
        self._settling = settling

    async def admit(self, batch: AdmissionBatch) -> Admitted | OffsetMoved:
        """Raises Unavailable, LaneLost, or RowRefused naming the `order` of the record at fault."""
        fence = batch.fence
        self._fences.know(fence)
        self._fences.admission_moves(fence.lane_id)
        try:
            for _ in range(TRIES_MAX):
                if fence.lost:
                    raise LaneLost(fence.lane_id)
                answer = await self._once(_Attempt(batch, fence.owner))
                if answer is not None:
                    fence.input_offset = answer.input_offset
                    return answer
            raise Unavailable("postgres", UNIQUE_VIOLATION)
        finally:
            self._fences.admission_moves(fence.lane_id)

    async def _once(self, attempt: _Attempt) -> Admitted | OffsetMoved | None:
        """None: offer the batch again; it is known not to be committed."""
        try:
            async with self._link.session() as session:
                return await self._two_trips(session, attempt)
        except Broken as outage:
            if not attempt.sent:
                raise unavailable(outage) from None
            return await self._settle(attempt)
        except UnicodeEncodeError:
            raise await self._culprit(attempt, UNENCODABLE) from None
        except Refused as refusal:
            if refusal.sqlstate == FENCE_FAILED:
                return await self._fence_failed(attempt, refusal)
            if refusal.rows_own_fault:
                raise await self._culprit(attempt, refusal.sqlstate) from None
            if refusal.sqlstate == UNIQUE_VIOLATION:
                return await self._settle(attempt)
            raise unavailable(refusal) from None

    async def _two_trips(self, session: Session, attempt: _Attempt) -> Admitted | None:
        batch = attempt.batch
        try:
            if not await self._insert(session, attempt):
                return None
            calls = [attempt.call(attempt.new_runs, attempt.decided), COMMIT]
            faults.reach("pin.before", lane_id=batch.fence.lane_id)
            attempt.sent = True
            rows_of_admit, ended = await session.exchange(calls)
            if ended:  # COMMIT of a failed transaction answers ROLLBACK, without an error
                raise Refused("25P02")
        except Broken:
            raise
        except Exception:
            await session.exchange([ROLLBACK])
            raise
        faults.reach("pin.after", lane_id=batch.fence.lane_id)
        return self._admitted(batch, attempt, rows_of_admit[0])

    async def _insert(self, session: Session, attempt: _Attempt) -> bool:
        """Round trip 1 and `decide`. False: rolled back, for an id was swept this very moment."""
        batch = attempt.batch
        calls = [BEGIN, insert_call(batch, batch.candidates), known_call(batch.named)]
        _, inserted, known_rows = await session.exchange(calls)
        attempt.created = frozenset(RunId((row[0] or b"").decode()) for row in inserted)
        known = [known_run(row) for row in known_rows]
        if any(run.swept and run.run_id in attempt.created for run in known):
            await session.exchange([ROLLBACK])
            return False
        attempt.inserted = True
        stood_before = [run for run in known if run.run_id not in attempt.created]
        attempt.decided = batch.decide(attempt.created, stood_before)
        return True

    def _admitted(self, batch: AdmissionBatch, attempt: _Attempt, row: Row) -> Admitted:
        first_seq, epoch, went_back, numbered, signals, dead_letters = row
        fence = batch.fence
        count = int(numbered or 0)
        fence.epoch = int(epoch or 0)
        fence.last_seen = max(fence.last_seen, int(first_seq or 0) + count - 1)
        fence.went_back = fence.went_back or went_back == b"t"
        if count:
            fence.wake()
        return Admitted(attempt.created, int(signals or 0), int(dead_letters or 0), batch.next_offset)

    async def _fence_failed(self, attempt: _Attempt, refusal: Refused) -> OffsetMoved | None:
        fence = attempt.batch.fence
        stands = json.loads(refusal.detail)
        if stands["owner"] == str(attempt.owner):
            return OffsetMoved(stands["input_offset"], stands["topic_id"])
        if await self._fences.moved_on(fence, attempt.owner):
            return None
        self._fences.lose(fence)
        raise LaneLost(fence.lane_id)

    async def _settle(self, attempt: _Attempt) -> Admitted | None:
        """COMMIT was lost. input_offset moves by admissions of this incarnation alone, so it tells."""
        batch, fence = attempt.batch, attempt.batch.fence
        last_seen = fence.last_seen
        settled = await self._settling.settle([(fence, attempt.owner)], [])
        stands = settled.kept.get(fence.lane_id)
        if stands is None:
            raise LaneLost(fence.lane_id)
        if fence.last_seen > last_seen:
            fence.wake()
        if stands != (batch.topic_id, batch.next_offset) or batch.next_offset == batch.first_offset:
            return None
        decided = attempt.decided
        return Admitted(attempt.created, len(decided.signals), len(decided.dead_letters), batch.next_offset)

    async def _culprit(self, attempt: _Attempt, sqlstate: str) -> RowRefused:
        """Halve what was refused, each half in a transaction that is rolled back."""
        if attempt.inserted:
            decided = attempt.decided
            items: list[NewRun | NewSignal | NewDeadLetter] = [*attempt.new_runs, *decided.signals]
            items += decided.dead_letters
            orders = sorted({item.order for item in items})
        else:
            orders = sorted({run.order for run in attempt.batch.candidates})
        try:
            while len(orders) > 1:
                half = orders[: len(orders) // 2]
                orders = half if await self._fails(attempt, frozenset(half)) else orders[len(half) :]
        except (Broken, Refused) as outage:
            raise unavailable(outage) from None
        return RowRefused(orders[0], sqlstate)

    async def _fails(self, attempt: _Attempt, orders: frozenset[int]) -> bool:
        batch = attempt.batch
        runs = [run for run in batch.candidates if run.order in orders]
        try:
            async with self._link.session() as session:
                try:
                    if attempt.inserted:
                        decided = Decided(
                            signals=[item for item in attempt.decided.signals if item.order in orders],
                            dead_letters=[
                                item for item in attempt.decided.dead_letters if item.order in orders
                            ],
                        )
                        new_runs = [run for run in attempt.new_runs if run.order in orders]
                        await session.exchange([BEGIN, attempt.call(new_runs, decided)])
                    else:
                        await session.exchange([BEGIN, insert_call(batch, runs)])
                except UnicodeEncodeError:
                    return True
                finally:
                    await session.exchange([ROLLBACK])
        except Refused as refusal:
            if not refusal.rows_own_fault:
                raise
            return True
        return False
