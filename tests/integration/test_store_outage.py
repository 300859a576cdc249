"""Postgres goes away and comes back (DESIGN 4: runs stop at their next commit and go on when it is back)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from session_custody.core.errors import Unavailable
from session_custody.core.events import EventKind
from session_custody.devstack import PostgresConfig, PostgresServer
from session_custody.ports import CommitAnswer, LaneFence, LoadedRun, OutboxRow
from session_custody.store import Migrator, PostgresStore
from tests.conformance import values
from tests.integration.store_world import a_store, by_hand, migrate, until

pytestmark = pytest.mark.postgres


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may kill."""
    with PostgresServer(PostgresConfig(settings={"fsync": "off"})) as server:
        migrate(server.address.url)
        yield server


def test_commits_wait_out_a_crash_of_postgres_and_are_there_once(own_server: PostgresServer) -> None:
    """SIGKILLed under load: what was answered stands, what was offered is answered in the end."""

    async def scenario() -> None:
        async with a_store(own_server.address.url) as store:
            fence = await values.own_lane(store)
            runs = await values.admitted(store, fence, *(values.new_run(order=n) for n in range(12)))
            steps = [0] * len(runs)
            enough = asyncio.Event()

            async def drive(number: int) -> None:
                run = runs[number]
                while steps[number] < 12:
                    commit = values.commit(fence, run, EventKind.DECIDED, EventKind.TOOL_RESULT)
                    assert await store.commit(commit) is CommitAnswer.COMMITTED
                    steps[number] += 1
                    if sum(steps) > 40:
                        enough.set()
                    run = await loaded_again(store, run)

            driving = asyncio.gather(*(drive(number) for number in range(len(runs))))
            await enough.wait()
            await asyncio.to_thread(own_server.kill)
            with pytest.raises(Unavailable):
                await store.heartbeat(fence, clear_unclean=False)
            await asyncio.to_thread(own_server.start)
            await driving
            rows = await store.outbox(fence.lane_id, 0, 10_000)
            assert [row.lane_seq for row in rows] == list(range(1, 12 + 12 * 24 + 1))
            assert not fence.lost
            assert not fence.gate_open

    asyncio.run(scenario())


async def loaded_again(store: PostgresStore, run: LoadedRun) -> LoadedRun:
    """Reads raise during the outage; the owner asks again."""
    while True:
        try:
            return await values.reload(store, run)
        except Unavailable:
            await asyncio.sleep(0.05)


def test_a_backend_that_is_ended_is_replaced(database: str) -> None:
    """An administrator, or whoever acquires, ends the writer's backend while it is idle."""

    async def scenario() -> None:
        async with a_store(database) as store, by_hand(database) as admin:
            fence = await values.own_lane(store)
            (run,) = await values.admitted(store, fence, values.new_run())
            run = await values.step(store, fence, run, EventKind.DECIDED)
            fence.gate_open = True
            await admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name like 'custody %' and datname = current_database()"
            )

            async def gone() -> bool:
                cursor = await admin.execute(
                    "select count(*) as n from pg_stat_activity"
                    " where application_name like 'custody %' and datname = current_database()"
                )
                return await cursor.fetchone() == {"n": 0}

            await until(gone, "every backend of the store is gone")
            answer = await store.commit(values.commit(fence, run, EventKind.TOOL_RESULT))
            assert answer is CommitAnswer.COMMITTED
            assert not fence.gate_open
            assert [row.lane_seq for row in await loaded_outbox(store, fence)] == [1, 2, 3]

    asyncio.run(scenario())


async def loaded_outbox(store: PostgresStore, fence: LaneFence) -> list[OutboxRow]:
    while True:
        try:
            return list(await store.outbox(fence.lane_id, 0, 10))
        except Unavailable:
            await asyncio.sleep(0.05)


def test_a_store_that_closes_during_an_outage_answers_its_runs(own_server: PostgresServer) -> None:
    async def scenario() -> None:
        store = await PostgresStore.open(own_server.address.url)
        fence = await values.own_lane(store)
        (run,) = await values.admitted(store, fence, values.new_run())
        await values.step(store, fence, run, EventKind.DECIDED)
        await asyncio.to_thread(own_server.kill)
        waiting = asyncio.create_task(store.commit(values.commit(fence, run, EventKind.DECIDED)))
        await asyncio.sleep(0)
        await asyncio.wait_for(store.close(), 20)
        with pytest.raises(Unavailable):
            await waiting
        with pytest.raises(Unavailable):
            await store.commit(values.commit(fence, run, EventKind.DECIDED))

    asyncio.run(scenario())


def test_a_password_is_asked_at_every_connect(database: str) -> None:
    """Short-lived passwords: the one of an hour ago is not the one of now."""
    head, _, tail = database.partition("://")
    user_and_password, _, rest = tail.partition("@")
    user, _, password = user_and_password.partition(":")
    asked: list[int] = []

    def give() -> str:
        asked.append(len(asked))
        return password

    async def scenario() -> None:
        without = f"{head}://{user}@{rest}"
        await Migrator(without, password=give).migrate()
        store = await PostgresStore.open(without, password=give)
        try:
            await values.own_lane(store)
        finally:
            await store.close()

    asyncio.run(scenario())
    assert len(asked) >= 3
