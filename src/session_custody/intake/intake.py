"""Stations 1 to 5 put together: the poll thread on one side, a stream per open lane on the other.

The poll thread hands records over with the token of their opening; a record whose token is not the open
stream's belongs to an opening that is over, and is read again by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Final

from session_custody.intake.admit import Admission
from session_custody.intake.consumer import ConsumerState, GroupConsumer
from session_custody.intake.options import ConsumerSetup
from session_custody.intake.partitions import Pause
from session_custody.intake.record import Record
from session_custody.intake.stream import LaneStream
from session_custody.ports import LaneAssignments, LaneFence, RunStore
from session_custody.telemetry import STATION_ERRORS, log

STREAM_CLOSE_S: Final = 5.0


class Intake:
    """`ports.IntakeControl`, and the streams' side. Made once per process; `start` joins the group."""

    def __init__(
        self,
        *,
        setup: ConsumerSetup,
        store: RunStore,
        admission: Admission,
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self._setup = setup
        self._store = store
        self._admission = admission
        self._on_fatal = on_fatal
        self._streams: dict[int, LaneStream] = {}
        self._tokens = itertools.count(1)
        self._consumer: GroupConsumer | None = None
        self._lanes: LaneAssignments | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closings: set[asyncio.Task[None]] = set()

    def start(self, lanes: LaneAssignments) -> None:
        """Call on the event loop. Lanes hear of assignments from now on."""
        self._loop = asyncio.get_running_loop()
        self._lanes = lanes
        self._consumer = GroupConsumer(self._setup, lanes, self._received)
        self._consumer.start()

    async def stop(self) -> None:
        """Close the consumer. Lanes have drained before (DESIGN 4)."""
        consumer = self._consumer
        if consumer is None:
            return
        consumer.stop()
        if not await asyncio.to_thread(consumer.join, self._setup.session_timeout_s):
            log.error("the poll thread did not end within the session timeout")
        for stream in list(self._streams.values()):
            await stream.close(STREAM_CLOSE_S)
        self._streams.clear()

    def health(self) -> ConsumerState | None:
        """None before `start`."""
        return None if self._consumer is None else self._consumer.state()

    # -------------------------------------------------------------- IntakeControl

    def is_assigned(self, partition: int) -> bool:
        return self._consumer is not None and self._consumer.is_assigned(partition)

    def open(self, fence: LaneFence) -> None:
        partition = fence.key.partition
        if (before := self._streams.pop(partition, None)) is not None:
            self._close_later(before)
        stream = LaneStream(fence, next(self._tokens), self._store, self._admission, self)
        self._streams[partition] = stream
        self._group().open(partition, stream.token, stream.position)

    def move(self, fence: LaneFence) -> None:
        if self._stream_of(fence) is not None:
            self.open(fence)

    def mark(self, fence: LaneFence) -> int:
        stream = self._stream_of(fence)
        return -1 if stream is None else stream.moves

    def check(self, fence: LaneFence, mark: int, input_offset: int) -> None:
        stream = self._stream_of(fence)
        # An odd count: a batch is under way, and its own last statement compares.
        if stream is None or stream.moves != mark or mark % 2 or stream.position == input_offset:
            return
        STATION_ERRORS.labels("pin", "offset_moved").inc()
        log.warning("the lane's input_offset has changed: intake goes there", lane_id=fence.lane_id)
        fence.input_offset = input_offset
        self.open(fence)

    def hold(self, fence: LaneFence, held: bool) -> None:
        if (stream := self._stream_of(fence)) is not None:
            self._group().pause(fence.key.partition, stream.token, Pause.BACKLOG, held)

    async def close(self, fence: LaneFence, budget_s: float) -> None:
        stream = self._stream_of(fence)
        if stream is None:
            return
        await stream.close(budget_s)
        if self._streams.get(fence.key.partition) is stream:
            del self._streams[fence.key.partition]
        self._group().close_partition(fence.key.partition, stream.token)

    def leave(self, cause: str) -> None:
        self._group().leave(cause)

    def abandon(self) -> None:
        self._group().abandon()
        if self._loop is not None:
            # Runs when the event loop answers again: then the group may be joined anew.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._group().may_return)

    def abandoned(self) -> bool:
        return self._group().abandoned()

    # -------------------------------------------------------------- the streams' side

    def admitted(self, stream: LaneStream, records: int, size: int, offset: int, rings: bool) -> None:
        # A stream that is closing commits too: it is drained inside the revocation, while the lane is ours.
        live = not stream.fence.lost and self._streams.get(stream.fence.key.partition) is stream
        self._group().done(stream.fence.key.partition, stream.token, records, size, offset if live else None)
        if rings and self._lanes is not None:
            self._lanes.admitted(stream.fence)

    def moved(self, stream: LaneStream) -> None:
        if self._streams.get(stream.fence.key.partition) is stream and not stream.fence.lost:
            self.open(stream.fence)

    def held(self, stream: LaneStream, reason: Pause, held: bool) -> None:
        self._group().pause(stream.fence.key.partition, stream.token, reason, held)

    def truncated(self, stream: LaneStream, offset: int) -> None:
        STATION_ERRORS.labels("record", "truncated").inc()
        log.error("the partition holds records below the lane's offset", lane_id=stream.fence.lane_id)
        if self._lanes is not None:
            self._lanes.truncated(stream.fence, offset)

    def broken(self, error: Exception) -> None:
        self._on_fatal(error)

    # -------------------------------------------------------------- inside

    def _received(self, partition: int, token: int, records: Sequence[Record]) -> None:
        """On the poll thread. A loop that is closed takes nothing: the records are redelivered."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._feed, partition, token, records)
        except RuntimeError:
            log.info("records came after the end", partition=partition)

    def _feed(self, partition: int, token: int, records: Sequence[Record]) -> None:
        stream = self._streams.get(partition)
        if stream is not None and stream.token == token:
            stream.feed(records)

    def _stream_of(self, fence: LaneFence) -> LaneStream | None:
        stream = self._streams.get(fence.key.partition)
        return stream if stream is not None and stream.fence is fence else None

    def _group(self) -> GroupConsumer:
        assert self._consumer is not None, "intake was not started"
        return self._consumer

    def _close_later(self, stream: LaneStream) -> None:
        task = asyncio.ensure_future(stream.close(STREAM_CLOSE_S))
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)
