"""A lane's records are admitted in order, whatever the store or a record does (stations 3-5, I13, I16)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast
from uuid import uuid4

import pytest

from session_custody.core import bounds
from session_custody.core.errors import InvariantBroken, RejectReason, RowRefused
from session_custody.core.pin import RunId
from session_custody.intake import stream as stream_module
from session_custody.intake.partitions import Pause
from session_custody.intake.record import Record
from session_custody.intake.stream import LaneStream
from session_custody.ports import AdmissionBatch, Decided, LaneFence, RunStore
from tests.unit.intake_fakes import FakeStore
from tests.unit.intake_records import record, resume, start
from tests.unit.test_intake_admit import a_lane, an_admission

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "BACKOFF_FIRST_S", 0.005)
    monkeypatch.setattr(stream_module, "BACKOFF_MAX_S", 0.02)


class Side:
    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.rings = 0
        self.reopened: list[int] = []
        self.pauses: list[tuple[Pause, bool]] = []
        self.below: list[int] = []
        self.fatal: list[Exception] = []

    def admitted(self, stream: LaneStream, records: int, size: int, offset: int, rings: bool) -> None:
        self.offsets.append(offset)
        self.rings += rings

    def moved(self, stream: LaneStream) -> None:
        self.reopened.append(stream.fence.input_offset)

    def held(self, stream: LaneStream, reason: Pause, held: bool) -> None:
        self.pauses.append((reason, held))

    def truncated(self, stream: LaneStream, offset: int) -> None:
        self.below.append(offset)

    def broken(self, error: Exception) -> None:
        self.fatal.append(error)


class Stream:
    def __init__(self, store: FakeStore, fence: LaneFence) -> None:
        self.store, self.fence, self.side = store, fence, Side()
        self.it = LaneStream(fence, 1, cast("RunStore", store), an_admission(), self.side)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - conditions over several fakes
                await asyncio.sleep(0.001)

    async def admitted(self, offset: int) -> None:
        await self.until(lambda: bool(self.side.offsets) and self.side.offsets[-1] == offset)

    @property
    def reasons(self) -> list[RejectReason]:
        return [letter.reason for letter in self.store.dead_letters]


@asynccontextmanager
async def a_stream() -> AsyncIterator[Stream]:
    store = FakeStore()
    it = Stream(store, await a_lane(store))
    try:
        yield it
    finally:
        await it.it.close(1.0)
        assert it.side.fatal == []


def starts(first: int, number: int) -> list[Record]:
    return [record(start(f"run-{offset}"), offset) for offset in range(first, first + number)]


async def test_records_are_admitted_in_order_and_batches_join_without_a_gap() -> None:
    async with a_stream() as it:
        it.it.feed(starts(0, 3))
        await it.admitted(3)
        it.it.feed([*starts(3, 2), record(start("run-9"), 9)])  # 5..8 were control records
        await it.admitted(10)
        assert [(batch.first_offset, batch.next_offset) for batch in it.store.batches] == [(0, 3), (3, 10)]
        assert it.store.row_of(0).input_offset == 10
        assert it.side.rings == 2


async def test_a_batch_has_at_most_so_many_records_and_so_many_bytes() -> None:
    async with a_stream() as it:
        it.it.feed(starts(0, bounds.BATCH_RECORDS_MAX + 1))
        await it.admitted(bounds.BATCH_RECORDS_MAX + 1)
        assert [len(batch.candidates) for batch in it.store.batches] == [bounds.BATCH_RECORDS_MAX, 1]
        big = '"' + "x" * (bounds.INPUT_BYTES_MAX - 2) + '"'
        first = bounds.BATCH_RECORDS_MAX + 1
        it.it.feed([record(start(f"big-{n}", input=big), first + n) for n in range(9)])
        await it.admitted(first + 9)
        assert [len(batch.candidates) for batch in it.store.batches[2:]] == [7, 2]


async def test_a_record_that_postgres_refuses_is_dead_lettered_and_its_neighbours_are_admitted() -> None:
    async with a_stream() as it:

        def refuse(batch: AdmissionBatch, _: Decided) -> None:
            for run in batch.candidates:
                if run.facts.run_id == "run-1":
                    raise RowRefused(run.order, "22021")

        it.store.refuse = refuse
        it.it.feed(starts(0, 3))
        await it.admitted(3)
        assert sorted(it.store.runs) == ["run-0", "run-2"]
        assert it.reasons == [RejectReason.INVALID_EVENT]
        assert "22021" in it.store.dead_letters[0].detail


async def test_a_dead_letter_that_postgres_refuses_goes_without_its_content() -> None:
    async with a_stream() as it:

        def refuse(_: AdmissionBatch, decided: Decided) -> None:
            for letter in decided.dead_letters:
                if letter.value is not None:
                    raise RowRefused(letter.order, "54000")

        it.store.refuse = refuse
        it.it.feed([record(b"junk", 0), *starts(1, 1)])
        await it.admitted(2)
        (letter,) = it.store.dead_letters
        assert (letter.reason, letter.value, letter.offset) == (RejectReason.INVALID_EVENT, None, 0)
        assert list(it.store.runs) == [RunId("run-1")]


async def test_an_outage_pauses_the_partition_and_dead_letters_nothing() -> None:
    async with a_stream() as it:
        it.store.down = True
        it.it.feed(starts(0, 2))
        await it.until(lambda: it.side.pauses == [(Pause.OUTAGE, True)])
        await it.until(lambda: it.store.refused >= 3)
        assert it.side.offsets == []
        it.store.down = False
        await it.admitted(2)
        assert it.side.pauses == [(Pause.OUTAGE, True), (Pause.OUTAGE, False)]
        assert len(it.store.runs) == 2
        assert it.store.dead_letters == []


async def test_a_bug_of_ours_costs_only_the_record_that_trips_it() -> None:
    async with a_stream() as it:

        def refuse(batch: AdmissionBatch, _: Decided) -> None:
            if any(run.facts.run_id == "run-1" for run in batch.candidates):
                raise ZeroDivisionError

        it.store.refuse = refuse
        it.it.feed(starts(0, 3))
        await it.admitted(3)
        assert sorted(it.store.runs) == ["run-0", "run-2"]
        assert it.reasons == [RejectReason.INTERNAL]
        assert it.side.offsets == [1, 2, 3]


async def test_a_lane_that_stands_elsewhere_is_opened_there() -> None:
    async with a_stream() as it:
        row = it.store.row_of(0)
        it.store.lanes[row.lane_id] = replace(row, input_offset=40)
        it.it.feed(starts(0, 2))
        await it.until(lambda: it.side.reopened == [40])
        assert it.store.runs == {}
        await it.until(lambda: it.it.ended)


async def test_a_batch_read_before_its_topic_was_recreated_is_not_admitted() -> None:
    async with a_stream() as it:
        row = it.store.row_of(0)
        it.store.lanes[row.lane_id] = replace(row, topic_id="generation-2")
        it.it.feed(starts(0, 1))
        await it.until(lambda: it.side.reopened == [0])
        assert it.fence.topic_id == "generation-2"
        assert it.store.runs == {}


async def test_offsets_below_the_lanes_are_reported_and_not_admitted() -> None:
    async with a_stream() as it:
        it.it.feed(starts(5, 1))
        await it.admitted(6)
        it.it.feed(starts(2, 1))
        await it.until(lambda: it.side.below == [2])
        assert list(it.store.runs) == [RunId("run-5")]


async def test_a_fenced_lane_admits_nothing_more() -> None:
    async with a_stream() as it:
        lost: list[bool] = []
        it.fence.on_lost = lambda: lost.append(True)
        it.store.bump(0, uuid4())
        it.it.feed(starts(0, 1))
        await it.until(lambda: bool(lost))
        assert it.fence.lost
        assert (it.store.runs, it.side.offsets) == ({}, [])


async def test_a_broken_invariant_is_fatal() -> None:
    store = FakeStore()
    it = Stream(store, await a_lane(store))

    def refuse(_: AdmissionBatch, __: Decided) -> None:
        raise InvariantBroken("impossible")

    store.refuse = refuse
    it.it.feed(starts(0, 1))
    await it.until(lambda: len(it.side.fatal) == 1)
    await it.it.close(1.0)
    assert isinstance(it.side.fatal[0], InvariantBroken)


async def test_closing_lets_the_batch_in_flight_end_and_begins_no_other() -> None:
    async with a_stream() as it:
        gate, inside = asyncio.Event(), asyncio.Event()
        admit = it.store.admit

        async def slow(batch: AdmissionBatch) -> object:
            inside.set()
            await gate.wait()
            return await admit(batch)

        it.store.admit = slow  # type: ignore[method-assign,assignment]
        it.it.feed(starts(0, 1))
        await inside.wait()
        it.it.feed(starts(1, 1))
        closing = asyncio.create_task(it.it.close(5.0))
        await asyncio.sleep(0)
        gate.set()
        await closing
        assert it.side.offsets == [1]
        assert list(it.store.runs) == [RunId("run-0")]


async def test_closing_ends_the_wait_of_an_outage_at_once() -> None:
    async with a_stream() as it:
        it.store.down = True
        it.it.feed(starts(0, 1))
        await it.until(lambda: bool(it.side.pauses))
        async with asyncio.timeout(1.0):
            await it.it.close(5.0)
        assert it.it.ended


async def test_only_what_is_to_be_driven_rings() -> None:
    async with a_stream() as it:
        it.it.feed([record(b"junk", 0)])
        await it.admitted(1)
        assert it.side.rings == 0
        it.it.feed([record(start(), 1), record(resume(), 2)])
        await it.admitted(3)
        assert it.side.rings == 1
