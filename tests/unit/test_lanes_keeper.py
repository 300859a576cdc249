"""What happens to a lane between its assignment and its release (station 6, DESIGN 4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast
from uuid import UUID, uuid4

import pytest

from session_custody.core.errors import InvariantBroken
from session_custody.core.pin import LaneId, RunId
from session_custody.core.signals import SignalKind
from session_custody.lanes.keeper import LaneKeeper
from session_custody.lanes.liveruns import LiveRuns
from session_custody.lanes.timings import LaneTimings
from session_custody.ports import LaneFence, LaneKey, NewSignal, RunStore
from tests.unit.intake_fakes import FakeDriver, FakePublication, FakeStore, FakeTopic, FixedClock
from tests.unit.intake_records import record, start
from tests.unit.test_intake_admit import World, a_lane, an_admission

pytestmark = pytest.mark.anyio

TIMINGS = LaneTimings(
    session_timeout_s=2.0,
    heartbeat_s=0.02,
    reconcile_s=0.02,
    generation_check_s=0.02,
    retry_first_s=0.01,
    retry_max_s=0.05,
    run_retry_first_s=0.01,
    run_retry_max_s=0.05,
    flush_s=0.1,
)
WITHIN_S = 10.0
TOPIC = "custody.runs"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class FakeIntake:
    """Remembers what lanes wanted, in order."""

    def __init__(self) -> None:
        self.given: set[int] = set()
        self.did: list[tuple[str, int, int]] = []
        self.held: dict[int, bool] = {}
        self.left: str | None = None

    def is_assigned(self, partition: int) -> bool:
        return partition in self.given

    def open(self, fence: LaneFence) -> None:
        self.did.append(("open", fence.key.partition, fence.input_offset))

    def move(self, fence: LaneFence) -> None:
        self.did.append(("move", fence.key.partition, fence.input_offset))

    def mark(self, fence: LaneFence) -> int:
        return 0

    def check(self, fence: LaneFence, mark: int, input_offset: int) -> None:
        if input_offset != fence.input_offset:
            self.did.append(("check", fence.key.partition, input_offset))

    def hold(self, fence: LaneFence, held: bool) -> None:
        self.held[fence.key.partition] = held

    async def close(self, fence: LaneFence, budget_s: float) -> None:
        self.did.append(("close", fence.key.partition, fence.input_offset))

    def leave(self, cause: str) -> None:
        self.left = cause
        self.given.clear()

    def abandon(self) -> None: ...

    def abandoned(self) -> bool:
        return True


class Lanes:
    """A keeper with fakes around it."""

    def __init__(self, timings: LaneTimings = TIMINGS) -> None:
        self.store = FakeStore()
        self.driver = FakeDriver(self.store)
        self.intake = FakeIntake()
        self.topic = FakeTopic()
        self.publications: list[FakePublication] = []
        self.fatal: list[Exception] = []
        self.keeper = LaneKeeper(
            store=cast("RunStore", self.store),
            driver=self.driver,
            publication=self._publication,
            intake=self.intake,
            topic=self.topic,
            topic_name=TOPIC,
            clock=FixedClock(),
            timings=timings,
            on_fatal=self.fatal.append,
        )

    def _publication(self, fence: LaneFence) -> FakePublication:
        self.publications.append(FakePublication(fence))
        return self.publications[-1]

    def assign(self, *partitions: int) -> None:
        self.intake.given |= set(partitions)
        self.keeper.assigned(partitions)

    async def revoke(self, *partitions: int, budget_s: float = 0.3) -> None:
        await asyncio.to_thread(self.keeper.revoked, partitions, budget_s)
        self.intake.given -= set(partitions)

    def lose(self, *partitions: int) -> None:
        self.intake.given -= set(partitions)
        self.keeper.lost(partitions)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not condition():  # noqa: ASYNC110 - conditions over several fakes
                await asyncio.sleep(0.002)

    async def opened(self, partition: int = 0, times: int = 1) -> None:
        await self.until(lambda: self.opens(partition) >= times)

    async def looked(self, times: int) -> None:
        """The reconcile has looked so many times more."""
        until = self.store.looks + times
        await self.until(lambda: self.store.looks >= until)

    def opens(self, partition: int = 0) -> int:
        return sum(did[:2] == ("open", partition) for did in self.intake.did)

    async def admit(self, *run_ids: str) -> None:
        """Runs appear on the lane as if intake had admitted them."""
        fence = self.publications[-1].fence
        world = World(self.store, fence, an_admission())
        await world.offer(*(record(start(run_id), place) for place, run_id in enumerate(run_ids)))
        self.keeper.admitted(fence)

    def say(self, run_id: str, kind: SignalKind = SignalKind.CANCEL) -> None:
        self.store.signals.append(NewSignal(RunId(run_id), kind, {}, "operator"))

    @property
    def driven(self) -> list[str]:
        return [run_id for run_id, _, _ in self.driver.driven]


@asynccontextmanager
async def lanes(timings: LaneTimings = TIMINGS, assign: bool = True) -> AsyncIterator[Lanes]:
    it = Lanes(timings)
    it.keeper.start()
    try:
        if assign:
            it.assign(0)
            await it.opened()
        yield it
    finally:
        await it.keeper.stop()


async def test_an_assigned_lane_is_acquired_then_opened_where_it_stands() -> None:
    async with lanes(assign=False) as it:
        row = await it.store.ensure_lane(LaneKey("cluster-1", TOPIC, 3), "generation-1", 3)
        it.store.lanes[row.lane_id] = replace(row, input_offset=17, next_seq=9)
        it.assign(3)
        await it.opened(3)
        assert it.intake.did == [("open", 3, 17)]
        fence = it.publications[0].fence
        assert (fence.owner, fence.epoch, fence.last_seen) == (it.store.row_of(3).owner, 1, 8)
        await it.until(lambda: fence.gate_open)


async def test_each_try_to_acquire_offers_a_fresh_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lanes(assign=False) as it:
        ensure = it.store.ensure_lane

        async def somebody_is_faster(key: LaneKey, topic_id: str, cursor_partition: int) -> object:
            row = await ensure(key, topic_id, cursor_partition)
            it.store.bump(0, uuid4())
            return row

        monkeypatch.setattr(it.store, "ensure_lane", somebody_is_faster)
        it.assign(0)
        await it.opened()
        assert len(it.store.acquires) == 2
        assert len(set(it.store.acquires)) == 2


async def test_a_lane_that_is_gone_before_it_is_acquired_is_given_back() -> None:
    async with lanes(assign=False) as it:
        it.keeper.assigned([0])  # the group took it back meanwhile: intake says not assigned
        await it.store.until(lambda: bool(it.store.lanes))
        it.lose(0)
        await it.until(lambda: not it.keeper.health().assigned)
        assert it.store.row_of(0).owner is None
        assert it.opens() == 0


async def test_what_is_due_at_acquire_is_driven_and_nothing_twice() -> None:
    async with lanes() as it:
        it.driver.hold = True
        await it.admit("run-1", "run-2")
        await it.until(lambda: len(it.driven) == 2)
        await it.looked(3)
        it.driver.free.set()
        await it.until(lambda: it.keeper.health().live_runs == 0)
        assert sorted(it.driven) == sorted(it.store.loaded) == ["run-1", "run-2"]


async def test_a_revoked_lane_is_drained_flushed_and_released() -> None:
    async with lanes() as it:
        it.driver.hold = True
        await it.admit("run-1")
        await it.until(lambda: len(it.driven) == 1)
        fence = it.publications[0].fence
        ends = asyncio.create_task(it.revoke(0, budget_s=5.0))
        await it.until(lambda: fence.draining)
        it.driver.free.set()  # its step commits within the budget
        await ends
        assert it.driver.cancelled == []
        assert it.store.checkpoints[RunId("run-1")].status.terminal
        assert it.intake.did[-1][0] == "close"
        assert it.publications[0].closes == [TIMINGS.flush_s]
        assert it.store.row_of(0).owner is None
        assert it.keeper.health().owned == ()


async def test_a_run_that_reaches_no_boundary_is_cancelled_when_the_budget_is_spent() -> None:
    async with lanes() as it:
        it.driver.hold = True
        await it.admit("run-1")
        await it.until(lambda: len(it.driven) == 1)
        await it.revoke(0, budget_s=0.2)
        assert it.driver.cancelled == [RunId("run-1")]
        assert it.store.row_of(0).owner is None


async def test_a_lane_that_comes_back_is_a_new_incarnation_after_the_old_one_closed() -> None:
    async with lanes() as it:
        await it.revoke(0)
        it.assign(0)
        await it.opened(times=2)
        first, second = it.publications
        assert first.closes
        assert first.fence.owner != second.fence.owner
        assert second.fence.epoch == first.fence.epoch + 1
        assert it.store.row_of(0).unclean_ends == 0


async def test_after_a_loss_runs_go_on_and_the_lane_coming_back_changes_nothing() -> None:
    async with lanes() as it:
        it.driver.hold = True
        await it.admit("run-1")
        await it.until(lambda: len(it.driven) == 1)
        it.lose(0)
        await it.until(lambda: it.intake.did[-1][0] == "close")
        it.assign(0)
        await it.opened(times=2)
        it.driver.free.set()
        await it.until(lambda: it.store.checkpoints[RunId("run-1")].status.terminal)
        assert len(it.publications) == len(it.store.acquires) == 1
        assert it.driven == ["run-1"]
        assert it.driver.cancelled == []


async def test_a_loss_and_a_new_assignment_at_once_still_open_the_partition_again() -> None:
    async with lanes() as it:
        it.lose(0)
        it.assign(0)  # paused anew, before anybody has acted on the loss
        await it.opened(times=2)
        assert len(it.store.acquires) == 1


async def test_a_lane_that_goes_while_it_is_acquired_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lanes(assign=False) as it:
        acquire = it.store.acquire

        async def too_late(lane_id: LaneId, owner: UUID, epoch: int, mine: Sequence[UUID]) -> object:
            row = await acquire(lane_id, owner, epoch, mine)
            it.intake.given.clear()
            it.lose(0)
            return row

        monkeypatch.setattr(it.store, "acquire", too_late)
        it.assign(0)
        await it.until(lambda: bool(it.store.acquires) and not it.keeper.health().assigned)
        assert it.store.row_of(0).owner is None
        assert it.publications == []


async def test_a_second_driver_of_a_run_is_refused() -> None:
    async with lanes() as it:
        await it.admit("run-1")
        (run,) = await it.store.load_runs([RunId("run-1")])
        live = LiveRuns()
        first = live.claim(run)
        assert first is not None
        assert live.claim(run) is None
        live.release(first)
        assert live.claim(run) is not None


async def test_an_idle_owner_learns_that_it_was_bumped_and_takes_the_lane_again_if_it_is_assigned() -> None:
    async with lanes() as it:
        it.store.bump(0, uuid4())
        await it.opened(times=2)
        first, second = it.publications
        assert first.fence.lost
        assert not first.fence.gate_open
        assert first.closes == [0.0]
        assert [did[0] for did in it.intake.did] == ["open", "close", "open"]
        assert it.store.row_of(0).owner == second.fence.owner
        assert it.store.row_of(0).unclean_ends == 1  # the other one's owner was neither empty nor ours


async def test_a_lost_lane_that_is_bumped_ends_for_good() -> None:
    async with lanes() as it:
        it.driver.hold = True
        await it.admit("run-1")
        await it.until(lambda: len(it.driven) == 1)
        it.lose(0)
        other = uuid4()
        it.store.bump(0, other)
        await it.until(lambda: it.keeper.health().owned == ())
        assert it.driver.cancelled == [RunId("run-1")]
        assert it.store.row_of(0).owner == other


async def test_fenced_too_often_the_worker_leaves_the_group() -> None:
    async with lanes(replace(TIMINGS, fences_per_minute_max=2)) as it:
        for times in (2, 3):
            it.store.bump(0, uuid4())
            await it.opened(times=times)
        it.store.bump(0, uuid4())
        await it.until(lambda: it.intake.left is not None)
        assert "fenced away 3 times" in str(it.keeper.health().red)


async def test_one_failing_run_is_tried_again_and_its_neighbours_go_on() -> None:
    async with lanes() as it:
        it.driver.raises[RunId("run-1")] = RuntimeError("boom")
        await it.admit("run-1", "run-2")
        await it.until(lambda: it.driven.count("run-1") >= 3 and it.driven.count("run-2") == 1)
        del it.driver.raises[RunId("run-1")]
        await it.until(lambda: it.store.checkpoints[RunId("run-1")].status.terminal)
        assert it.fatal == []


async def test_a_broken_invariant_is_fatal() -> None:
    async with lanes() as it:
        it.driver.raises[RunId("run-1")] = InvariantBroken("two outcomes")
        await it.admit("run-1")
        await it.until(lambda: bool(it.fatal))
        assert isinstance(it.fatal[0], InvariantBroken)


async def test_signals_reach_the_live_run_once() -> None:
    async with lanes() as it:
        it.driver.hold = True
        await it.admit("run-1")
        await it.until(lambda: len(it.driven) == 1)
        it.say("run-1")
        inbox = it.driver.inboxes[RunId("run-1")]
        async with asyncio.timeout(WITHIN_S):
            await inbox.wait()
        assert [signal.kind for signal in inbox.take()] == [SignalKind.CANCEL]
        await it.looked(3)
        assert inbox.take() == ()
        it.driver.free.set()


async def test_a_lane_with_unclean_ends_drives_few_runs_at_once_and_as_suspects() -> None:
    async with lanes(replace(TIMINGS, suspects_at_once=2, suspect_minute_s=60.0), assign=False) as it:
        row = await it.store.ensure_lane(LaneKey("cluster-1", TOPIC, 0), "generation-1", 0)
        it.store.lanes[row.lane_id] = replace(row, owner=uuid4(), unclean_ends=1)
        it.assign(0)
        await it.opened()
        assert it.store.row_of(0).unclean_ends == 2
        it.driver.hold = True
        await it.admit("run-1", "run-2", "run-3", "run-4")
        await it.until(lambda: len(it.driven) == 2)
        assert it.keeper.health().suspects == (0,)
        assert it.keeper.health().live_runs == 2
        it.driver.free.set()
        await it.until(lambda: len(it.driven) == 4)
        assert all(suspects for _, _, suspects in it.driver.driven)


async def test_unclean_ends_are_forgotten_after_a_while_alive() -> None:
    async with lanes(replace(TIMINGS, suspect_minute_s=0.05), assign=False) as it:
        row = await it.store.ensure_lane(LaneKey("cluster-1", TOPIC, 0), "generation-1", 0)
        it.store.lanes[row.lane_id] = replace(row, owner=uuid4(), unclean_ends=1)
        it.assign(0)
        await it.opened()
        assert it.keeper.health().suspects == (0,)
        await it.until(lambda: it.store.row_of(0).unclean_ends == 0)
        await it.until(lambda: it.keeper.health().suspects == ())


async def test_run_slots_are_a_bound_and_a_free_one_is_filled() -> None:
    async with lanes(replace(TIMINGS, run_slots=2)) as it:
        it.driver.hold = True
        await it.admit(*(f"run-{n}" for n in range(5)))
        await it.until(lambda: len(it.driven) == 2)
        assert it.keeper.health().live_runs == 2
        it.driver.free.set()
        await it.until(lambda: len(it.driven) == 5)


async def test_beyond_the_soft_bound_no_new_run_begins_but_a_cancelled_one_does() -> None:
    async with lanes(replace(TIMINGS, backlog_soft=10, backlog_hard=100)) as it:
        it.publications[0].backlog = 11
        await it.admit("run-1", "run-2")
        await it.looked(3)
        assert it.driven == []
        it.say("run-2")
        await it.until(lambda: it.driven == ["run-2"])
        await it.looked(3)
        assert it.driven == ["run-2"]
        it.publications[0].backlog = 10
        await it.until(lambda: it.driven == ["run-2", "run-1"])


async def test_the_hard_bound_pauses_intake_and_ends_the_pause() -> None:
    async with lanes(replace(TIMINGS, backlog_soft=10, backlog_hard=100)) as it:
        it.publications[0].backlog = 100
        await it.until(lambda: it.intake.held.get(0) is True)
        await it.looked(2)
        assert it.intake.held == {0: True}
        it.publications[0].backlog = 99
        await it.until(lambda: it.intake.held.get(0) is False)


async def test_a_recreated_topic_takes_the_lane_back_to_its_earliest_record() -> None:
    async with lanes() as it:
        await it.admit("run-1")
        it.topic.id, it.topic.oldest = "generation-2", 5
        await it.until(lambda: ("move", 0, 5) in it.intake.did)
        row = it.store.row_of(0)
        assert (row.topic_id, row.input_offset) == ("generation-2", 5)
        assert len(it.publications) == 1  # same lane, same runs


async def test_a_topic_that_was_recreated_while_nobody_owned_the_lane_is_noticed_at_acquire() -> None:
    async with lanes(assign=False) as it:
        row = await it.store.ensure_lane(LaneKey("cluster-1", TOPIC, 0), "generation-0", 0)
        it.store.lanes[row.lane_id] = replace(row, input_offset=50)
        it.assign(0)
        await it.opened()
        assert it.intake.did[0] == ("open", 0, 0)


async def test_an_outage_of_postgres_pauses_everything_and_loses_nothing() -> None:
    async with lanes() as it:
        it.driver.hold = True
        await it.admit("run-1")
        it.store.down = True
        await it.until(lambda: it.store.refused >= 5)
        it.store.down = False
        it.driver.free.set()
        await it.until(lambda: it.driven == ["run-1"])
        assert it.opens() == 1
        assert it.fatal == []


async def test_a_lane_that_cannot_be_acquired_during_an_outage_is_acquired_after_it() -> None:
    async with lanes(assign=False) as it:
        it.store.down = True
        it.assign(0)
        await it.until(lambda: it.store.refused >= 3)
        assert it.opens() == 0
        it.store.down = False
        await it.opened()


async def test_a_publication_that_ends_by_itself_takes_the_incarnation_with_it() -> None:
    async with lanes() as it:
        await it.publications[0].close(0)
        await it.opened(times=2)
        assert it.publications[0].fence.lost
        assert it.store.row_of(0).owner == it.publications[1].fence.owner
        assert it.store.row_of(0).unclean_ends == 0


async def test_stopping_drains_every_lane() -> None:
    it = Lanes()
    it.keeper.start()
    it.assign(0, 1, 2)
    for partition in range(3):
        await it.opened(partition)
    await it.keeper.stop()
    assert all(row.owner is None for row in it.store.lanes.values())
    assert {did[1] for did in it.intake.did if did[0] == "close"} == {0, 1, 2}
    it.keeper.assigned([4])
    await asyncio.to_thread(it.keeper.revoked, [4], 0.1)  # behind it on the loop
    assert it.keeper.health().assigned == ()
    assert LaneId(4) not in it.store.lanes


async def test_a_moved_input_offset_is_told_to_intake() -> None:
    async with lanes() as it:
        row = it.store.row_of(0)
        it.store.lanes[row.lane_id] = replace(row, input_offset=33)
        await it.until(lambda: ("check", 0, 33) in it.intake.did)


async def test_held_resumes_of_every_owned_lane_are_looked_through() -> None:
    async with lanes(replace(TIMINGS, sweep_s=0.02, orphan_hold_s=7.0)) as it:
        it.assign(1)
        await it.until(lambda: {(0, 7.0), (1, 7.0)} <= set(it.store.swept))
        assert it.fatal == []


async def test_a_fence_of_the_fakes_is_like_a_lanes() -> None:
    store = FakeStore()
    fence = await a_lane(store)
    assert store.row_of(0).owner == fence.owner
