"""Station 12, step 3 of DESIGN 6: rows after the cursor, batch by batch, and what a refused row becomes."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

from session_custody.core.errors import RecordRejected, Unavailable
from session_custody.ports import OutboxDeadLetter, OutboxRow
from session_custody.publish.beginning import Begun
from session_custody.publish.floor import Floor, FloorKeeper
from session_custody.publish.gauges import LaneGauges
from session_custody.publish.means import Closed, Means, Reopen, wait
from session_custody.publish.outlet import BatchAborted, CursorRecord, Outlet, OutletGone, RecordsRefused
from session_custody.publish.protocol import Fault, dense
from session_custody.publish.records import CUTS_MAX, Cut, Frames, Outgoing
from session_custody.publish.trouble import Trouble
from session_custody.telemetry import STATION_ERRORS, log
from session_custody.wire import Cursor, cursor_key, encode_cursor

GAP_LOOKS_MAX = 3
GAP_WAIT_S = 0.5


class Flow:
    """What is known of a lane's stream while one publication lives; `run` once after each `begin`."""

    def __init__(self, means: Means, frames: Frames, floor: FloorKeeper, trouble: Trouble) -> None:
        self._means = means
        self._frames = frames
        self._floor = floor
        self._trouble = trouble
        self._gauges = LaneGauges(means.lane, lambda: self.backlog)
        self._cuts: dict[int, Cut] = {}
        self._alone_until = 0
        self._known_seq = 0
        self._published_seq = 0

    @property
    def backlog(self) -> int:
        known = max(self._known_seq, self._means.fence.last_seen, self._published_seq)
        return known - self._published_seq

    def end(self) -> None:
        self._gauges.remove()

    async def back_off(self, detail: str) -> None:
        """Something failed: count it, measure what waits, and wait."""
        self._trouble.failed(detail)
        with contextlib.suppress(Unavailable):
            await self._measure()
        await wait(self._means.urgent, self._trouble.wait_s())

    async def _measure(self) -> None:
        """While nothing can be published: how much waits, and since when. Raises Unavailable."""
        means = self._means
        lane = await means.store.read_lane(means.fence.lane_id)
        rows = await means.store.outbox(means.fence.lane_id, lane.published_seq, 1)
        self._known_seq = max(self._known_seq, lane.next_seq - 1)
        self._published_seq = max(self._published_seq, lane.published_seq)
        self._gauges.oldest = rows[0].recorded_at if rows else None

    async def run(self, begun: Begun) -> None:
        """Publish until closed (returns) or something ends it.

        Raises Over, Regate, Reopen, Closed, OutletGone; of the store Unavailable.
        """
        means = self._means
        outlet: Outlet | None = begun.outlet
        after = self._published_seq = begun.after_seq
        self._known_seq = begun.known_seq
        busy_at = time.monotonic()
        gaps = 0
        while True:
            means.bell.clear()
            means.check()
            rows = await self._rows(after)
            ready = self._batch(dense(rows, after, begun.skipped_to))
            gaps = gaps + 1 if rows and not ready else 0
            if means.closing and (not ready or time.monotonic() >= means.close_by):
                return
            if ready and outlet is None:
                raise Reopen
            if ready and outlet is not None:
                means.check()
                if await self._publish(outlet, begun, ready):
                    after = ready[-1].lane_seq
                elif means.closing:
                    return
                busy_at = time.monotonic()
            elif gaps >= GAP_LOOKS_MAX:
                raise Closed(Fault.GAP)
            elif gaps:
                await wait(means.urgent, GAP_WAIT_S)
            else:
                await wait(means.bell, means.settings.poll_s)
                if outlet is not None and time.monotonic() - busy_at >= means.settings.idle_close_s:
                    means.thread.post(outlet.discard)
                    outlet = None

    async def _rows(self, after: int) -> Sequence[OutboxRow]:
        means = self._means
        limit = 1 if after < self._alone_until else means.settings.batch_rows_max
        rows = await means.store.outbox(means.fence.lane_id, after, limit)
        self._gauges.oldest = rows[0].recorded_at if rows else None
        if rows:
            self._known_seq = max(self._known_seq, rows[-1].lane_seq)
        return rows

    def _batch(self, rows: Sequence[OutboxRow]) -> Sequence[OutboxRow]:
        """As many rows as fit a transaction's bytes; at least one."""
        size = 0
        for index, row in enumerate(rows):
            size += _size(row)
            if index and size > self._means.settings.batch_bytes_max:
                return rows[:index]
        return rows

    async def _publish(self, outlet: Outlet, begun: Begun, rows: Sequence[OutboxRow]) -> bool:
        """One transaction. False: nothing of it counts, the same rows again."""
        means, last = self._means, rows[-1]
        cursor = Cursor(last.lane_seq, last.hash, begun.store_id, begun.epoch, means.fence.owner)
        record = CursorRecord(
            means.topics.cursors, begun.cursor_partition, cursor_key(means.lane), encode_cursor(cursor)
        )
        try:
            topics, offset = await means.thread.call(partial(self._send, outlet, rows, record))
        except RecordsRefused as refused:
            self._refused(rows, refused.words)
            return False
        except BatchAborted as aborted:
            await self._hold(aborted.cause, aborted.detail)
            return False
        except RecordRejected as unknown:
            # written by a newer release, with a schema this one does not have
            await self._hold(unknown.reason.value, str(unknown))
            return False
        self._published_seq = last.lane_seq
        self._floor.note(Floor(last.lane_seq, last.hash, offset))
        self._gauges.published(topics)
        self._trouble.went_well()
        for row in rows:
            self._cuts.pop(row.lane_seq, None)
        return True

    def _send(
        self, outlet: Outlet, rows: Sequence[OutboxRow], cursor: CursorRecord
    ) -> tuple[Counter[str], int]:
        """In the thread."""
        records: list[Outgoing] = [self._frames.record(row, self._cuts.get(row.lane_seq)) for row in rows]
        offset = outlet.publish(records, cursor)
        return Counter(record.topic for record in records), offset

    def _refused(self, rows: Sequence[OutboxRow], words: dict[int, str]) -> None:
        """A broker refuses a whole batch for one record's sake: first find it, row by row, then cut it."""
        if len(rows) > 1:
            self._alone_until = rows[-1].lane_seq
            return
        lane_seq = rows[0].lane_seq
        word = words.get(lane_seq, "refused")
        before = self._cuts.get(lane_seq)
        level = before.level + 1 if before else 1
        if level > CUTS_MAX:
            raise OutletGone("refused", f"a row is refused even as a stub: {word}")
        self._cuts[lane_seq] = Cut(level, before.word if before else word)
        STATION_ERRORS.labels("12", "stub").inc()
        log.warning("a row is published as a stub", lane=self._means.lane, lane_seq=lane_seq, word=word)

    async def _hold(self, cause: str, detail: str) -> None:
        STATION_ERRORS.labels("12", cause).inc()
        log.warning("a batch was not published", lane=self._means.lane, cause=cause, detail=detail)
        await self.back_off(detail)


def _size(row: OutboxRow) -> int:
    if isinstance(row, OutboxDeadLetter):
        return len(row.value or b"") + len(row.key or b"")
    return len(row.body) + len(row.payload or "")
