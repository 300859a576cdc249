"""Locks: who waits for whom, for how long, and who never does (DESIGN 4, 5, 6)."""

from __future__ import annotations

import asyncio
import time

import pytest
from psycopg import errors

from session_custody.core.events import EventKind
from session_custody.core.pin import RunId
from session_custody.ports import Admitted, CommitAnswer
from session_custody.store.link import BEGIN, Call, Link, Prepared, Target, Timeouts
from tests.conformance import values
from tests.integration.store_world import a_store, by_hand, until, waits_for_lock

pytestmark = pytest.mark.postgres

LOCK = "select from custody.lane where lane_id = %s for no key update"


def test_one_busy_lane_does_not_hold_up_the_others(database: str) -> None:
    """The statement fails whole at its lock timeout and names no lane; the others go on with skip locked."""

    async def scenario() -> None:
        async with a_store(database) as store, by_hand(database) as holder, by_hand(database) as watch:
            busy, free = await values.own_lane(store), await values.own_lane(store)
            (waits,) = await values.admitted(store, busy, values.new_run())
            (goes,) = await values.admitted(store, free, values.new_run())
            async with holder.transaction():
                await holder.execute(LOCK, (busy.lane_id,))
                held = asyncio.create_task(store.commit(values.commit(busy, waits, EventKind.DECIDED)))
                for _ in range(3):
                    goes = await values.step(store, free, goes, EventKind.DECIDED)
                await until(lambda: waits_for_lock(watch, "writer"), "the busy lane's commit waits")
                assert not held.done()
            assert await held is CommitAnswer.COMMITTED
            assert not busy.lost
            for fence, count in ((busy, 2), (free, 4)):
                rows = await store.outbox(fence.lane_id, 0, 10)
                assert [row.lane_seq for row in rows] == list(range(1, count + 1))

    asyncio.run(scenario())


@pytest.mark.parametrize("frozen", ["idle in transaction", "active"])
def test_who_acquires_ends_a_frozen_owner_that_holds_the_lane(database: str, frozen: str) -> None:
    """A client frozen between statement and Sync counts as active: no idle timeout fires, but it reads."""

    async def scenario() -> None:
        async with a_store(database) as store, by_hand(database) as zombie:
            fence = await values.own_lane(store)
            if frozen == "active":
                zombie.pgconn.enter_pipeline_mode()
                zombie.pgconn.send_query_params(b"begin", None)
                zombie.pgconn.send_query_params(LOCK.replace("%s", str(fence.lane_id)).encode(), None)
                zombie.pgconn.send_flush_request()
                zombie.pgconn.flush()
            else:
                await zombie.execute("begin")
                await zombie.execute(LOCK, (fence.lane_id,))
            async with by_hand(database) as watch:

                async def holds() -> bool:
                    cursor = await watch.execute(
                        "select state, wait_event from pg_stat_activity where pid = %s",
                        (zombie.info.backend_pid,),
                    )
                    return await cursor.fetchone() == {"state": frozen, "wait_event": "ClientRead"}

                await until(holds, f"the zombie is {frozen} and reads")
            began = time.monotonic()
            successor = await values.take(store, fence.key)
            assert time.monotonic() - began < 4
            assert successor.epoch == fence.epoch + 1

    asyncio.run(scenario())


def test_a_zombie_in_a_transaction_holds_the_lane_no_longer_than_the_idle_timeout(database: str) -> None:
    """Also from those that end nobody: a heartbeat waits its two seconds and goes through."""

    async def scenario() -> None:
        async with a_store(database) as store:
            fence = await values.own_lane(store)
            zombie = Link(Target(database), "zombie", Timeouts(lock_ms=1_000))
            lock = Call(Prepared("", LOCK.replace("%s", str(fence.lane_id))))
            async with zombie.session() as session:
                await session.exchange([BEGIN, lock])
                began = time.monotonic()
                await store.heartbeat(fence, clear_unclean=False)
                assert 1 < time.monotonic() - began < 4
            await zombie.close()

    asyncio.run(scenario())


def test_admissions_of_the_same_ids_in_opposite_order_do_not_deadlock(database: str) -> None:
    """I1 under contention: each id is created once, each loser is told who stands."""

    async def scenario() -> None:
        async with a_store(database) as one, a_store(database) as two:
            first, second = await values.own_lane(one), await values.own_lane(two)
            for _ in range(20):
                ids = [values.fresh_id() for _ in range(12)]
                here = [values.new_run(run_id, order=n) for n, run_id in enumerate(ids)]
                there = [values.new_run(run_id, order=n) for n, run_id in enumerate(reversed(ids))]
                told: list[list[RunId]] = []
                heard_here: list[object] = []
                heard_there: list[object] = []
                answers = await asyncio.gather(
                    one.admit(values.batch(first, here, heard=heard_here)),  # type: ignore[arg-type]
                    two.admit(values.batch(second, there, heard=heard_there)),  # type: ignore[arg-type]
                )
                for answer in answers:
                    assert isinstance(answer, Admitted)
                    told.append(sorted(answer.created))
                assert sorted(told[0] + told[1]) == sorted(ids)
                assert len(heard_here) == len(heard_there) == 1

    asyncio.run(scenario())


def test_admission_and_commits_of_one_lane_number_it_densely_together(database: str) -> None:
    async def scenario() -> None:
        async with a_store(database) as store:
            fence = await values.own_lane(store)
            runs = await values.admitted(store, fence, *(values.new_run(order=n) for n in range(16)))

            async def drive(number: int) -> None:
                run = runs[number]
                for _ in range(10):
                    run = await values.step(store, fence, run, EventKind.DECIDED, EventKind.TOOL_RESULT)

            async def admit() -> None:
                for _ in range(20):
                    await values.admitted(store, fence, values.new_run())

            await asyncio.gather(admit(), *(drive(number) for number in range(16)))
            rows = await store.outbox(fence.lane_id, 0, 10_000)
            assert [row.lane_seq for row in rows] == list(range(1, 16 + 320 + 20 + 1))
            assert (fence.last_seen, fence.input_offset, fence.went_back) == (len(rows), 36, False)

    asyncio.run(scenario())


def test_a_held_resume_is_heard_though_its_start_was_not_committed_yet(database: str) -> None:
    """Two lanes at once: neither transaction sees the other's row. Recovery looks again, the sweep binds."""

    async def scenario() -> None:
        async with a_store(database) as one, a_store(database) as two, by_hand(database) as watch:
            first, second = await values.own_lane(one), await values.own_lane(two)
            start = values.new_run()
            run_id = RunId(start.facts.run_id)
            held = values.signal(run_id, source="kafka", held=True, topic_id=values.TOPIC_ID, offset=0)
            await one.admit(values.batch(first, [start]))
            await two.admit(values.batch(second, signals=[held]))
            assert await one.due_runs([first.lane_id], [], 10) == [(run_id, first.lane_id)]
            (loaded,) = await one.load_runs([run_id])
            assert len(loaded.signals) == 1
            assert await two.sweep_orphans(second, hold_s=-60) == 0
            cursor = await watch.execute("select bound, consumed_at from custody.signal")
            assert await cursor.fetchall() == [{"bound": True, "consumed_at": None}]

    asyncio.run(scenario())


def test_a_group_of_lanes_locks_them_in_order_and_never_deadlocks(database: str) -> None:
    """Two writers over the same lanes (one is fenced, and refused): whatever order runs commit in."""

    async def scenario() -> None:
        async with a_store(database) as old, a_store(database) as new:
            topic = values.fresh_id("topic")
            before = [await values.own_lane(old, number, topic) for number in range(4)]
            starts = [(fence, (await values.admitted(old, fence, values.new_run()))[0]) for fence in before]
            after = {fence.lane_id: await values.take(new, fence.key) for fence in before}
            for turn in range(10):
                ordered = starts if turn % 2 else list(reversed(starts))
                answers = await asyncio.gather(
                    *(new.commit(values.commit(after[f.lane_id], r, EventKind.DECIDED)) for f, r in ordered),
                    *(new.heartbeat(after[f.lane_id], clear_unclean=False) for f, _ in reversed(ordered)),
                )
                assert answers[:4] == [CommitAnswer.COMMITTED] * 4
                starts = [(fence, await values.reload(new, run)) for fence, run in starts]
            refused = await asyncio.gather(
                *(old.commit(values.commit(fence, run, EventKind.DECIDED)) for fence, run in starts)
            )
            assert set(refused) == {CommitAnswer.LANE_LOST}
            async with by_hand(database) as watch:
                cursor = await watch.execute(
                    "select deadlocks from pg_stat_database where datname = current_database()"
                )
                assert await cursor.fetchone() == {"deadlocks": 0}

    asyncio.run(scenario())


def test_a_lock_timeout_is_an_error_of_the_statement_alone(database: str) -> None:
    """What the writer relies on: 55P03 rolls back one statement and leaves its connection usable."""

    async def scenario() -> None:
        async with a_store(database) as store, by_hand(database) as holder, by_hand(database) as other:
            fence = await values.own_lane(store)
            await other.execute("set lock_timeout = 50")
            async with holder.transaction():
                await holder.execute(LOCK, (fence.lane_id,))
                with pytest.raises(errors.LockNotAvailable):
                    await other.execute(LOCK, (fence.lane_id,))
            await other.execute(LOCK, (fence.lane_id,))

    asyncio.run(scenario())
