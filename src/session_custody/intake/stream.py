"""Stations 3 to 5: the records of one opening of a lane, admitted batch by batch, strictly in order (DESIGN
5).

One batch at a time: each compares the lane's input_offset with where the batch begins, so a second one in
flight could only be refused. What else may happen to a batch:

    RowRefused     Postgres refused one record's own content: dead-letter that one, offer the rest again
    Unavailable    an outage: pause, back off, offer again; nothing is ever dead-lettered for it (I13)
    OffsetMoved    the lane stands elsewhere (another incarnation, Postgres went back): go there
    LaneLost       somebody else owns the lane: nothing more is admitted here
    anything else  our bug: the records one by one, and the one that trips it alone is dead-lettered (I16)
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

from session_custody.core import bounds
from session_custody.core.admission import (
    Conflict,
    Created,
    DeadLettered,
    Ignored,
    Passed,
    Redelivered,
    Skipped,
    Verdict,
)
from session_custody.core.errors import (
    InvariantBroken,
    LaneLost,
    RecordRejected,
    RejectReason,
    RowRefused,
    Unavailable,
)
from session_custody.core.events import RunStart
from session_custody.intake.admit import Admission, Prepared, Refusal
from session_custody.intake.decode import unexpected
from session_custody.intake.partitions import Pause
from session_custody.intake.record import Record
from session_custody.ports import Admitted, LaneFence, OffsetMoved, RunStore
from session_custody.telemetry import DLQ, EVENT_AGE, EVENTS, PIN_CONFLICTS, RUNS_STARTED, STATION_ERRORS, log

BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0

APPLIED: Final = "applied"
DUPLICATE: Final = "duplicate"
RESUME: Final = "resume"


class StreamSide(Protocol):
    """What a stream asks of the intake that owns it."""

    def admitted(self, stream: LaneStream, records: int, size: int, offset: int, rings: bool) -> None: ...
    def moved(self, stream: LaneStream) -> None:
        """The fence's input_offset is elsewhere: the stream is to be opened anew."""

    def held(self, stream: LaneStream, reason: Pause, held: bool) -> None: ...
    def truncated(self, stream: LaneStream, offset: int) -> None: ...
    def broken(self, error: Exception) -> None:
        """InvariantBroken: crash the process."""


class LaneStream:
    """One opening of one lane. Event loop only."""

    def __init__(
        self, fence: LaneFence, token: int, store: RunStore, admission: Admission, side: StreamSide
    ) -> None:
        self.fence = fence
        self.token = token
        self.moves = 0
        """Grows when a batch starts and when it ends."""
        self.position = fence.input_offset
        self._topic_id = fence.topic_id
        self._store = store
        self._admission = admission
        self._side = side
        self._waiting: deque[Record] = deque()
        self._filled = asyncio.Event()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"intake lane {fence.lane_id}")

    def feed(self, records: Sequence[Record]) -> None:
        self._waiting.extend(records)
        self._filled.set()

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def close(self, budget_s: float) -> None:
        """No further batch; the one in flight gets `budget_s`, then it is cancelled: redelivered
        (station 4).
        """
        self._closing.set()
        self._filled.set()
        if asyncio.current_task() is not self._task:
            _, running = await asyncio.wait({self._task}, timeout=budget_s)
            if running:
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=budget_s)

    async def _run(self) -> None:
        try:
            while not self._closing.is_set():
                await self._filled.wait()
                records = self._take()
                if records and not self._closing.is_set():
                    await self._admit(records)
        except InvariantBroken as error:
            self._side.broken(error)
        except LaneLost:
            self._lane_lost()

    def _take(self) -> list[Record]:
        records: list[Record] = []
        size = 0
        while self._waiting and len(records) < bounds.BATCH_RECORDS_MAX:
            size += self._waiting[0].size
            if records and size > bounds.BATCH_BYTES_MAX:
                break
            records.append(self._waiting.popleft())
        if not self._waiting:
            self._filled.clear()
        return records

    async def _admit(self, records: list[Record]) -> None:
        below = next((record.offset for record in records if record.offset < self.position), None)
        if below is not None:
            # Kafka has reused offsets (recreated topic, unclean election): ask for the generation, go there.
            self._closing.set()
            self._side.truncated(self, below)
            return
        refusals: dict[int, Refusal] = {}
        failures = 0
        while not self._closing.is_set():
            self.moves += 1
            try:
                prepared = await self._admission.prepare(self.fence, self._topic_id, records, refusals)
                answer = await self._store.admit(prepared.batch(self.position, records[-1].offset + 1))
            except RowRefused as refused:
                failures = await self._row_refused(records, refusals, refused, failures)
            except Unavailable as outage:
                failures += 1
                await self._wait_out(outage.what, failures)
            except (LaneLost, InvariantBroken):
                raise
            except Exception as error:  # noqa: BLE001 - poison stays alone (I16)
                if len(records) > 1:
                    for record in records:
                        if not self._closing.is_set():
                            await self._admit([record])
                    return
                failures = await self._tripped(records[0], refusals, error, failures)
            else:
                self._release(failures)
                self._ended(records, prepared, answer)
                return
            finally:
                self.moves += 1

    async def _row_refused(
        self, records: list[Record], refusals: dict[int, Refusal], refused: RowRefused, failures: int
    ) -> int:
        """A record whose row Postgres refuses is dead-lettered; a dead letter that it refuses goes bare."""
        offset = records[refused.order].offset
        STATION_ERRORS.labels("pin", "row_refused").inc()
        log.warning("Postgres refused a record's row", offset=offset, sqlstate=refused.sqlstate)
        before = refusals.get(offset)
        if before is None:
            detail = f"the database refused it with SQLSTATE {refused.sqlstate}"
            refusals[offset] = Refusal(RecordRejected(RejectReason.INVALID_EVENT, detail))
            return failures
        if not before.bare:
            refusals[offset] = Refusal(before.rejected, bare=True)
            return failures
        await self._wait_out("postgres", failures + 1)  # never dropped (I13)
        return failures + 1

    async def _tripped(
        self, record: Record, refusals: dict[int, Refusal], error: Exception, failures: int
    ) -> int:
        internal = unexpected("pin", error)
        before = refusals.get(record.offset)
        if before is None or not before.bare:
            refusals[record.offset] = Refusal(internal, bare=before is not None)
            return failures
        await self._wait_out("admission", failures + 1)
        return failures + 1

    async def _wait_out(self, what: str, failures: int) -> None:
        if failures == 1:
            log.warning("intake of a lane pauses", lane_id=self.fence.lane_id, waits_for=what)
            self._side.held(self, Pause.OUTAGE, held=True)
        STATION_ERRORS.labels("pin", "unavailable").inc()
        delay = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(failures - 1, 10))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay * random.uniform(0.5, 1.0)):  # noqa: S311 - jitter
                await self._closing.wait()

    def _release(self, failures: int) -> None:
        if failures:
            self._side.held(self, Pause.OUTAGE, held=False)

    def _ended(self, records: list[Record], prepared: Prepared, answer: Admitted | OffsetMoved) -> None:
        if isinstance(answer, OffsetMoved):
            log.warning(
                "the lane stands at another offset: intake goes there",
                lane_id=self.fence.lane_id,
                was_at=self.position,
                input_offset=answer.input_offset,
            )
            STATION_ERRORS.labels("pin", "offset_moved").inc()
            self.fence.input_offset = answer.input_offset
            self.fence.topic_id = answer.topic_id
            self._closing.set()
            self._side.moved(self)
            return
        self.position = self.fence.input_offset = answer.input_offset
        rings = bool(answer.created) or answer.signals > 0
        size = sum(record.size for record in records)
        self._side.admitted(self, len(records), size, answer.input_offset, rings)
        count(prepared, self.fence.key.topic, answer.signals)

    def _lane_lost(self) -> None:
        self._closing.set()
        if not self.fence.lost:
            self.fence.lost = True
            self.fence.on_lost()


def count(prepared: Prepared, topic: str, signals: int) -> None:
    """Metrics of a batch that is committed. `signals`: how many of its resumes were new to the store."""
    results: Counter[tuple[str, str]] = Counter()
    now = datetime.now(UTC)
    for item in prepared.decoded:
        verdict = prepared.verdicts[item.order]
        results[item.type, _result(verdict)] += 1
        if item.record.recorded_at is not None:
            EVENT_AGE.labels(item.type).observe(max(0.0, (now - item.record.recorded_at).total_seconds()))
        match verdict:
            case Created():
                assert isinstance(item.event, RunStart)
                RUNS_STARTED.labels(item.event.pin.route_id).inc()
            case Conflict():
                PIN_CONFLICTS.labels("sent_digest").inc()
                DLQ.labels(RejectReason.PIN_CONFLICT.value).inc()
            case DeadLettered(reason):
                DLQ.labels(reason.value).inc()
            case _:
                pass
    # Which resume was a duplicate, the store alone knows; it says how many were none.
    passed = sum(isinstance(verdict, Passed) for verdict in prepared.verdicts.values())
    results[RESUME, APPLIED] -= passed - signals
    results[RESUME, DUPLICATE] += passed - signals
    for (kind, result), number in (+results).items():
        EVENTS.labels(topic, kind, result).inc(number)


def _result(verdict: Verdict) -> str:
    """The label `result`, closed: applied, duplicate, rejected (counted, nothing else) or dlq."""
    match verdict:
        case Created() | Passed():
            return APPLIED
        case Redelivered():
            return DUPLICATE
        case Ignored() | Skipped():
            return "rejected"
        case Conflict() | DeadLettered():
            return "dlq"
