"""A lost COMMIT, settled by taking a new owner first (DESIGN 4, 6); a proxy loses answers and requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import pytest

from session_custody.core.errors import LaneLost, Unavailable
from session_custody.core.events import EventKind
from session_custody.core.pin import RunId
from session_custody.ports import Admitted, CommitAnswer, LaneFence
from session_custody.store import PostgresStore
from tests.conformance import values
from tests.integration.store_proxy import Proxy
from tests.integration.store_world import a_store, a_store_behind_a_proxy, until

pytestmark = pytest.mark.postgres

Scenario = Callable[[PostgresStore, Proxy], Awaitable[None]]


def run(dsn: str, scenario: Scenario) -> None:
    async def through() -> None:
        async with a_store_behind_a_proxy(dsn) as (store, proxy):
            await scenario(store, proxy)

    asyncio.run(through())


async def rows_of(store: PostgresStore, fence: LaneFence) -> list[int]:
    return [row.lane_seq for row in await store.outbox(fence.lane_id, 0, 1_000)]


@pytest.mark.parametrize("fault", ["unheard", "unsent"])
def test_a_lost_commit_is_committed_once(database: str, fault: Literal["unheard", "unsent"]) -> None:
    async def scenario(store: PostgresStore, proxy: Proxy) -> None:
        fence = await values.own_lane(store)
        loaded = await values.admitted(store, fence, *(values.new_run(order=n) for n in range(3)))
        before, broken = fence.owner, []
        fence.gate_open = True
        fence.on_broken = lambda: broken.append(fence.gate_open)
        trap = proxy.trap("custody writer", "commit_group", fault)
        commits = [values.commit(fence, one, EventKind.INTENT, EventKind.TOOL_RESULT) for one in loaded[:2]]
        commits.append(values.commit(fence, loaded[2], suspect_count=1))
        answers = await asyncio.gather(*(store.commit(one) for one in commits))
        assert trap.sprung.is_set()
        assert answers == [CommitAnswer.COMMITTED] * 3
        assert await rows_of(store, fence) == [1, 2, 3, 4, 5, 6, 7]
        # The incarnation lives on under a new owner; its writes are gated until publication has looked.
        assert fence.owner != before
        assert (fence.owner in fence.tried, fence.epoch, fence.last_seen) == (True, 2, 7)
        assert (await store.read_lane(fence.lane_id)).owner == fence.owner
        assert broken == [False]
        assert not fence.lost
        again = [await values.reload(store, one) for one in loaded]
        assert [one.checkpoint.version for one in again] == [2, 2, 2]
        await values.step(store, fence, again[0], EventKind.DECIDED)

    run(database, scenario)


def test_a_commit_that_executes_after_its_retry_finds_itself_fenced(database: str) -> None:
    async def scenario(store: PostgresStore, proxy: Proxy) -> None:
        fence = await values.own_lane(store)
        (loaded,) = await values.admitted(store, fence, values.new_run())
        trap = proxy.trap("custody writer", "commit_group", "late")
        assert await store.commit(values.commit(fence, loaded, EventKind.DECIDED)) is CommitAnswer.COMMITTED
        trap.release.set()
        await asyncio.wait_for(trap.answered.wait(), 10)
        assert await rows_of(store, fence) == [1, 2]
        assert (await values.reload(store, loaded)).checkpoint.version == 2

    run(database, scenario)


@pytest.mark.parametrize("fault", ["unheard", "unsent"])
def test_a_lost_settling_is_tried_with_another_uuid(
    database: str, fault: Literal["unheard", "unsent"]
) -> None:
    async def scenario(store: PostgresStore, proxy: Proxy) -> None:
        fence = await values.own_lane(store)
        (loaded,) = await values.admitted(store, fence, values.new_run())
        proxy.trap("custody writer", "commit_group", "unheard")
        trap = proxy.trap("custody settle", "settle_owner", fault)
        assert await store.commit(values.commit(fence, loaded, EventKind.DECIDED)) is CommitAnswer.COMMITTED
        assert trap.sprung.is_set()
        assert len(set(fence.tried)) == 2
        assert fence.owner == fence.tried[-1]
        assert await rows_of(store, fence) == [1, 2]

    run(database, scenario)


def test_a_settling_that_executes_after_its_retry_changes_nothing(database: str) -> None:
    async def scenario(store: PostgresStore, proxy: Proxy) -> None:
        fence = await values.own_lane(store)
        (loaded,) = await values.admitted(store, fence, values.new_run())
        proxy.trap("custody writer", "commit_group", "unsent")
        trap = proxy.trap("custody settle", "settle_owner", "late")
        assert await store.commit(values.commit(fence, loaded, EventKind.DECIDED)) is CommitAnswer.COMMITTED
        trap.release.set()
        await asyncio.wait_for(trap.answered.wait(), 10)
        assert (await store.read_lane(fence.lane_id)).owner == fence.owner
        run_now = await values.reload(store, loaded)
        await values.step(store, fence, run_now, EventKind.TOOL_RESULT)

    run(database, scenario)


def test_when_another_worker_took_the_lane_meanwhile_it_is_lost(database: str) -> None:
    """The commit itself was done: its run is the other worker's now, as it stands. Neighbours are settled."""

    async def scenario(store: PostgresStore, proxy: Proxy) -> None:
        lost, kept = await values.own_lane(store), await values.own_lane(store)
        (gone,) = await values.admitted(store, lost, values.new_run())
        (stays,) = await values.admitted(store, kept, values.new_run())
        proxy.shut.add("custody settle")
        trap = proxy.trap("custody writer", "commit_group", "unheard")
        answers = asyncio.gather(
            store.commit(values.commit(lost, gone, EventKind.DECIDED)),
            store.commit(values.commit(kept, stays, EventKind.DECIDED)),
        )
        await asyncio.wait_for(trap.sprung.wait(), 10)
        async with a_store(database) as other:
            successor = await values.take(other, lost.key)
            proxy.shut.clear()
            assert tuple(await answers) == (CommitAnswer.LANE_LOST, CommitAnswer.COMMITTED)
            assert (lost.lost, kept.lost) == (True, False)
            await values.step(other, successor, await values.reload(other, gone), EventKind.TOOL_RESULT)

    run(database, scenario)


def test_a_heartbeat_beside_a_settling_does_not_take_the_new_owner_for_a_strangers(database: str) -> None:
    async def scenario(store: PostgresStore, proxy: Proxy) -> None:
        fence = await values.own_lane(store)
        (loaded,) = await values.admitted(store, fence, values.new_run())
        await store.heartbeat(fence, clear_unclean=False)
        proxy.shut.add("custody settle")
        trap = proxy.trap("custody writer", "commit_group", "unheard")
        answer = asyncio.create_task(store.commit(values.commit(fence, loaded, EventKind.DECIDED)))
        await asyncio.wait_for(trap.sprung.wait(), 10)
        # Settling is done and its answer is lost: the row has an owner that the fence does not know yet.
        again = proxy.trap("custody settle", "settle_owner", "unheard")
        proxy.shut.clear()
        await asyncio.wait_for(again.sprung.wait(), 10)
        await store.heartbeat(fence, clear_unclean=False)
        assert await answer is CommitAnswer.COMMITTED
        assert not fence.lost

    run(database, scenario)


@pytest.mark.parametrize("fault", ["unheard", "unsent", "late"])
def test_a_lost_admission_is_admitted_once(
    database: str, fault: Literal["unheard", "unsent", "late"]
) -> None:
    async def scenario(store: PostgresStore, proxy: Proxy) -> None:
        fence = await values.own_lane(store)
        await values.admitted(store, fence, values.new_run())
        start = values.new_run()
        trap = proxy.trap("custody admission", "admit", fault)
        answer = await store.admit(values.batch(fence, [start], dead_letters=[values.dead_letter(1, 2)]))
        assert trap.sprung.is_set()
        assert answer == Admitted(frozenset({RunId(start.facts.run_id)}), 0, 1, input_offset=3)
        trap.release.set()
        if fault == "late":
            await asyncio.wait_for(trap.answered.wait(), 10)
        assert await rows_of(store, fence) == [1, 2, 3]
        assert (fence.input_offset, fence.last_seen, fence.epoch) == (3, 3, 2)
        assert len(await store.load_runs([RunId(start.facts.run_id)])) == 1

    run(database, scenario)


def test_a_lost_admission_of_a_lane_that_was_taken_is_lost(database: str) -> None:
    async def scenario(store: PostgresStore, proxy: Proxy) -> None:
        fence = await values.own_lane(store)
        await values.admitted(store, fence, values.new_run())
        proxy.shut.add("custody settle")
        trap = proxy.trap("custody admission", "admit", "unsent")
        answer = asyncio.create_task(store.admit(values.batch(fence, [values.new_run()])))
        await asyncio.wait_for(trap.sprung.wait(), 10)
        async with a_store(database) as other:
            await values.take(other, fence.key)
        proxy.shut.clear()
        with pytest.raises(LaneLost):
            await answer
        assert fence.lost

    run(database, scenario)


def test_a_lost_acquire_that_executes_late_makes_nobody_the_owner_again(database: str) -> None:
    async def scenario(store: PostgresStore, proxy: Proxy) -> None:
        fence = await values.own_lane(store)
        await store.release(fence)
        row = await store.read_lane(fence.lane_id)
        trap = proxy.trap("custody acquire", "update custody.lane", "late")
        with pytest.raises(Unavailable):
            await values.take(store, fence.key)
        retry = await values.take(store, fence.key)
        assert retry.epoch == row.epoch + 1
        trap.release.set()
        await asyncio.wait_for(trap.answered.wait(), 10)

        async def still_mine() -> bool:
            return (await store.read_lane(fence.lane_id)).owner == retry.owner

        await until(still_mine, "the retry's owner stands")
        await store.heartbeat(retry, clear_unclean=False)

    run(database, scenario)
