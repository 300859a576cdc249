"""Station 12 with the real store: floor, comparison and the gate against PostgreSQL and Apache Kafka."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from session_custody.devstack import Address
from session_custody.ports import LaneFence, LaneKey
from session_custody.publish.protocol import Fault
from session_custody.store import PostgresStore
from tests.integration.publish_world import Ledger, Running, World, until
from tests.integration.store_world import a_store, by_hand, migrate

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

INSERT = """
insert into custody.step (run_id, event_seq, lane_id, lane_seq, kind, loop_step, schema_fingerprint, hash,
                          body, payload, salt, signature)
values (%s, %s, %s, %s, %s, 1, %s, %s, %s, %s, %s, %s)
"""


@pytest.fixture
def world(kafka_server: Address, tmp_path: Path) -> World:
    return World.create(kafka_server.url, tmp_path)


async def acquired(store: PostgresStore, world: World) -> LaneFence:
    """The lane under a new owner."""
    key = LaneKey("c", world.ledger.lane()["topic"], 0)
    lane = await store.ensure_lane(key, "t", 0)
    owner = uuid4()
    row = await store.acquire(lane.lane_id, owner, lane.epoch, [])
    assert row is not None
    return LaneFence(row.lane_id, key, owner, row.epoch, row.topic_id, input_offset=row.input_offset)


async def copy_rows(dsn: str, ledger: Ledger, lane_id: int, after: int) -> None:
    """The ledger's rows into Postgres, numbered as they are."""
    async with by_hand(dsn) as connection:
        for row in ledger.do("select * from row where lane_seq > ?", after):
            await connection.execute(
                INSERT,
                (
                    row["run_id"], row["event_seq"], lane_id, row["lane_seq"], row["kind"],
                    row["fingerprint"], row["hash"], row["body"], row["payload"],
                    row["salt"], row["signature"],
                ),
            )  # fmt: skip
        next_seq = ledger.lane()["next_seq"]
        await connection.execute(
            "update custody.lane set next_seq = %s where lane_id = %s", (next_seq, lane_id)
        )


def test_rows_floor_and_a_broken_connection(world: World, database: str) -> None:
    migrate(database)

    async def story() -> None:
        async with a_store(database) as store:
            fence = await acquired(store, world)
            world.ledger.commit(12)
            await copy_rows(database, world.ledger, fence.lane_id, 0)
            publisher = world.publisher(fence, store)
            async with Running(publisher, fence), by_hand(database) as hand:
                floor = -1

                async def floor_is(seq: int) -> None:
                    nonlocal floor
                    while floor != seq:
                        floor = (await store.read_lane(fence.lane_id)).published_seq
                        await asyncio.sleep(0.02)

                await asyncio.wait_for(floor_is(12), 30)
                assert fence.gate_open
                closed: list[bool] = []
                on_broken = fence.on_broken

                def heard() -> None:
                    on_broken()
                    closed.append(fence.gate_open)

                fence.on_broken = heard
                await hand.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where application_name like 'custody %%' and pid <> pg_backend_pid() "
                    "and datname = current_database()"
                )
                await until(lambda: closed, "the store hears of it")
                assert not any(closed)
                await until(lambda: fence.gate_open, "steps 1 and 2 have passed again")
                world.ledger.commit(3)
                await copy_rows(database, world.ledger, fence.lane_id, 12)
                await asyncio.wait_for(floor_is(15), 30)

    asyncio.run(story())
    world.check_published()


def test_postgres_without_the_published_rows_fails_closed_and_is_marked(world: World, database: str) -> None:
    migrate(database)

    async def story() -> None:
        async with a_store(database) as store, by_hand(database) as hand:
            fence = await acquired(store, world)
            world.ledger.commit(6)
            await copy_rows(database, world.ledger, fence.lane_id, 0)
            async with Running(world.publisher(fence, store), fence):
                await until(lambda: len(world.records(world.topics.steps)) == 6, "the rows")
            await hand.execute("alter table custody.step disable trigger step_stays")
            await hand.execute("delete from custody.step where lane_seq > 3")
            await hand.execute("update custody.lane set next_seq = 4, published_seq = 3")
            successor = await acquired(store, world)
            publisher = world.publisher(successor, store)
            async with Running(publisher, successor):
                await until(lambda: publisher.closed_because, "it fails closed")
                assert publisher.closed_because == Fault.ROW_MISSING.value
                assert not successor.gate_open
            assert (await store.read_lane(successor.lane_id)).went_back

    asyncio.run(story())
