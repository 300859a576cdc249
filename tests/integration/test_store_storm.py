"""A storm of lost answers, lost requests and late statements over everything that is fenced, from a seed.

Each commit that was answered stands once, nothing is numbered twice, no lane is lost to itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Literal

import pytest

from session_custody.core.errors import Unavailable
from session_custody.core.events import EventKind
from session_custody.core.pin import RunId
from session_custody.ports import Admitted, CommitAnswer, LaneFence, LoadedRun, OutboxEvent
from session_custody.store import PostgresStore
from tests.conformance import values
from tests.integration.store_proxy import Proxy, Trap
from tests.integration.store_world import a_store_behind_a_proxy

pytestmark = pytest.mark.postgres

STEPS = 20
RUNS = 5
ADMISSIONS = 15
PLACES = [
    *[("custody writer", "commit_group")] * 4,
    *[("custody admission", "admit")] * 3,
    ("custody admission", "insert_runs"),
    ("custody settle", "settle_owner"),
    ("custody lanes", "update custody.lane"),
]
FAULTS: list[Literal["unheard", "unsent", "late"]] = ["unheard", "unsent", "late"]


async def blow(proxy: Proxy, dice: random.Random, sprung: list[str]) -> None:
    """One trap after the other, each in its place; late statements are let through a little after."""
    late: list[Trap] = []
    try:
        while True:
            purpose, text = dice.choice(PLACES)
            trap = proxy.trap(purpose, text, dice.choice(FAULTS))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(trap.sprung.wait(), dice.uniform(0.02, 0.3))
            if trap in proxy.traps:
                proxy.traps.remove(trap)
                continue
            sprung.append(text)
            late.append(trap)
            while len(late) > 3:
                late.pop(0).release.set()
    finally:
        proxy.traps.clear()
        for trap in late:
            trap.release.set()


async def drive(store: PostgresStore, fence: LaneFence, run: LoadedRun) -> list[bytes]:
    """Commit the run's steps; the hashes of what was answered as committed."""
    hashes = [run.checkpoint.head_hash]
    for number in range(STEPS):
        kinds = (EventKind.DECIDED, EventKind.TOOL_RESULT)[: number % 3]
        commit = values.commit(fence, run, *kinds, attempts=number)
        assert await store.commit(commit) is CommitAnswer.COMMITTED
        hashes += [event.hash for event in commit.events]
        run = await patiently(store, run)
        assert run.checkpoint.version == number + 2
    return hashes


async def patiently(store: PostgresStore, run: LoadedRun) -> LoadedRun:
    while True:
        try:
            return await values.reload(store, run)
        except Unavailable:
            await asyncio.sleep(0.02)


async def admit(store: PostgresStore, fence: LaneFence) -> list[RunId]:
    """Offer batches as intake does: the same again after an outage."""
    created: list[RunId] = []
    for _ in range(ADMISSIONS):
        start = values.new_run()
        while True:
            try:
                answer = await store.admit(values.batch(fence, [start]))
            except Unavailable:
                await asyncio.sleep(0.02)
                continue
            assert isinstance(answer, Admitted)
            break
        created.append(RunId(start.facts.run_id))
    return created


async def beat(store: PostgresStore, fence: LaneFence) -> None:
    while True:
        with contextlib.suppress(Unavailable):
            await store.heartbeat(fence, clear_unclean=False)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_is_lost_nothing_is_written_twice_or_not_at_all(database: str, seed: int) -> None:
    async def scenario() -> None:
        async with a_store_behind_a_proxy(database) as (store, proxy):
            fences = [await values.own_lane(store, number) for number in range(2)]
            runs = {
                fence.lane_id: await values.admitted(
                    store, fence, *(values.new_run(order=n) for n in range(RUNS))
                )
                for fence in fences
            }
            sprung: list[str] = []
            side = [asyncio.create_task(blow(proxy, random.Random(seed), sprung))]
            side += [asyncio.create_task(beat(store, fence)) for fence in fences]
            work = [drive(store, fence, run) for fence in fences for run in runs[fence.lane_id]]
            driving = asyncio.gather(*work)
            created = await asyncio.gather(*(admit(store, fence) for fence in fences))
            hashes = await driving
            for task in side:
                task.cancel()
            await asyncio.gather(*side, return_exceptions=True)
            expected = {hash_ for of_run in hashes for hash_ in of_run}
            for fence, ids in zip(fences, created, strict=True):
                assert not fence.lost
                assert not fence.went_back
                rows = list(await store.outbox(fence.lane_id, 0, 10_000))
                assert [row.lane_seq for row in rows] == list(range(1, len(rows) + 1))
                seen: dict[str, list[OutboxEvent]] = {}
                for row in rows:
                    assert isinstance(row, OutboxEvent)
                    seen.setdefault(row.run_id, []).append(row)
                for events in seen.values():
                    assert [row.event_seq for row in events] == list(range(1, len(events) + 1))
                admitted = {run.facts.run_id for run in runs[fence.lane_id]} | set(ids)
                assert set(seen) == admitted
                driven = {row.hash for row in rows if row.run_id not in ids}
                assert driven <= expected
                expected -= driven
                assert (await store.read_lane(fence.lane_id)).input_offset == RUNS + ADMISSIONS
            assert expected == set()
            assert sprung

    asyncio.run(scenario())
