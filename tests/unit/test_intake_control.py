"""How lanes steer intake: openings, tokens, and an input_offset that has moved (stations 1-6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest

from session_custody.intake.intake import Intake
from session_custody.intake.options import ConsumerSetup
from session_custody.intake.partitions import Pause
from session_custody.ports import LaneAssignments, LaneFence, RunStore
from tests.unit.intake_fakes import FakeStore
from tests.unit.intake_records import record, start
from tests.unit.test_intake_admit import a_lane, an_admission

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class FakeGroup:
    """The poll thread's commands, remembered."""

    def __init__(self) -> None:
        self.opens: list[tuple[int, int, int]] = []
        self.offsets: list[int | None] = []
        self.closed: list[int] = []
        self.pauses: list[tuple[Pause, bool]] = []

    def open(self, partition: int, token: int, offset: int) -> None:
        self.opens.append((partition, token, offset))

    def done(self, partition: int, token: int, records: int, size: int, offset: int | None) -> None:
        self.offsets.append(offset)

    def close_partition(self, partition: int, token: int) -> None:
        self.closed.append(token)

    def pause(self, partition: int, token: int, reason: Pause, paused: bool) -> None:
        self.pauses.append((reason, paused))

    def stop(self) -> None: ...

    def join(self, timeout_s: float) -> bool:
        return True


class Bells:
    def __init__(self) -> None:
        self.rung: list[LaneFence] = []

    def admitted(self, fence: LaneFence) -> None:
        self.rung.append(fence)


class Control:
    def __init__(self, store: FakeStore, fence: LaneFence) -> None:
        self.store, self.fence, self.group, self.bells = store, fence, FakeGroup(), Bells()
        self.it = Intake(
            setup=ConsumerSetup(dict, "t", "g", session_timeout_s=1.0),
            store=cast("RunStore", store),
            admission=an_admission(),
            on_fatal=lambda error: None,
        )
        # as `start` does, without a poll thread
        self.it._consumer = self.group  # type: ignore[assignment]
        self.it._lanes = cast("LaneAssignments", self.bells)
        self.it._loop = asyncio.get_running_loop()

    def hand_over(self, token: int, first: int, number: int = 1) -> None:
        self.it._received(0, token, [record(start(f"run-{n}"), n) for n in range(first, first + number)])

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - conditions over several fakes
                await asyncio.sleep(0.001)


@asynccontextmanager
async def control() -> AsyncIterator[Control]:
    store = FakeStore()
    it = Control(store, await a_lane(store))
    it.it.open(it.fence)
    try:
        yield it
    finally:
        await it.it.stop()


async def test_records_of_an_older_opening_are_not_admitted() -> None:
    async with control() as it:
        it.it.open(it.fence)
        assert it.group.opens == [(0, 1, 0), (0, 2, 0)]
        it.hand_over(1, 0)
        it.hand_over(2, 0, 2)
        await it.until(lambda: it.group.offsets == [2])
        assert len(it.store.batches) == 1
        assert it.bells.rung == [it.fence]


async def test_an_input_offset_that_moved_under_an_idle_lane_is_gone_to() -> None:
    async with control() as it:
        mark = it.it.mark(it.fence)
        it.it.check(it.fence, mark, 0)
        assert len(it.group.opens) == 1  # it stands where it is
        it.it.check(it.fence, mark, 7)
        assert it.group.opens[-1] == (0, 2, 7)
        assert it.fence.input_offset == 7


async def test_an_answer_that_a_batch_has_overtaken_moves_nothing() -> None:
    async with control() as it:
        mark = it.it.mark(it.fence)
        it.hand_over(1, 0, 3)
        await it.until(lambda: it.group.offsets == [3])
        it.it.check(it.fence, mark, 0)  # asked before the batch, answered after it
        assert len(it.group.opens) == 1


async def test_an_answer_during_a_batch_moves_nothing() -> None:
    async with control() as it:
        it.store.down = True
        it.hand_over(1, 0)
        await it.until(lambda: it.store.refused > 0)
        it.it.check(it.fence, it.it.mark(it.fence), 9)
        assert len(it.group.opens) == 1
        it.store.down = False
        await it.until(lambda: it.group.offsets == [1])


async def test_a_batch_that_finds_the_lane_elsewhere_opens_it_there_and_loses_nothing() -> None:
    async with control() as it:
        row = it.store.row_of(0)
        it.store.lanes[row.lane_id] = replace(row, input_offset=1)
        it.hand_over(1, 0, 2)
        await it.until(lambda: it.group.opens[-1] == (0, 2, 1))
        it.hand_over(2, 1)
        await it.until(lambda: it.group.offsets == [2])
        assert list(it.store.runs) == ["run-1"]


async def test_the_last_batch_of_a_closing_lane_is_committed_and_nothing_after_it() -> None:
    async with control() as it:
        it.hand_over(1, 0)
        await it.until(lambda: it.group.offsets == [1])
        await it.it.close(it.fence, 1.0)
        assert it.group.closed == [1]
        it.hand_over(1, 1)
        await it.it.close(it.fence, 1.0)  # again: nothing happens
        await asyncio.sleep(0)
        assert it.group.offsets == [1]


async def test_a_batch_of_a_fenced_incarnation_commits_no_offset() -> None:
    async with control() as it:
        it.fence.lost = True
        it.hand_over(1, 0)
        await it.until(lambda: len(it.group.offsets) == 1)
        assert it.group.offsets == [None]


async def test_a_hold_reaches_the_open_partition_only() -> None:
    async with control() as it:
        it.it.hold(it.fence, held=True)
        other = replace(it.fence)
        it.it.hold(other, held=True)  # another incarnation of the same lane
        assert it.group.pauses == [(Pause.BACKLOG, True)]
