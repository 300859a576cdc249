"""Station 12 on Apache Kafka: the write gate, and every way in which a lane fails closed (DESIGN 4, 6)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from session_custody.devstack import Address
from session_custody.publish import read_shown
from session_custody.publish.protocol import Fault
from tests.integration.publish_world import LedgerStore, Running, World, hash_of, until

pytestmark = pytest.mark.kafka


@pytest.fixture
def world(kafka_server: Address, tmp_path: Path) -> World:
    return World.create(kafka_server.url, tmp_path)


async def publish_all(world: World) -> None:
    fence = world.ledger.acquire()
    async with Running(world.publisher(fence), fence):
        last = world.ledger.lane()["next_seq"] - 1
        await until(lambda: world.ledger.lane()["published_seq"] == last, "the last row")


async def stands_closed(world: World, fault: Fault) -> None:
    """A new owner fails closed with this fault, publishes nothing and opens no gate."""
    fence = world.ledger.acquire()
    publisher = world.publisher(fence)
    async with Running(publisher, fence):
        await until(lambda: publisher.closed_because, "it fails closed")
        assert publisher.closed_because == fault.value
        assert not fence.gate_open


def adopt_what_kafka_shows(world: World, start: int | None = None) -> None:
    """An operator's word, as `custody lane adopt-floor` gives it."""
    shown = read_shown(
        {"bootstrap.servers": world.brokers}, group=world.name, cursors=world.topics.cursors,
        topic=world.ledger.lane()["topic"], partition=0, cursor_partition=0,
    )  # fmt: skip
    seq = shown.cursor.lane_seq if shown.cursor else 0
    floor = start - 1 if start is not None else seq or world.ledger.lane()["published_seq"]
    world.ledger.adopt(seq, shown.cursor.hash if shown.cursor else None, floor, shown.epoch)


def test_the_gate_waits_for_kafka_and_postgres(world: World) -> None:
    async def story() -> None:
        fence = world.ledger.acquire()
        store = LedgerStore(world.ledger, down=True)
        async with Running(world.publisher(fence, store), fence):
            await until(lambda: store.asked.count("read_lane") > 2, "it asks again and again")
            assert not fence.gate_open
            store.down = False
            await until(lambda: fence.gate_open, "the gate")
        assert not fence.gate_open, "a publication that ended guards nothing"

    asyncio.run(story())
    assert [record.value for record in world.records(world.topics.steps)] == []


def test_a_broken_connection_closes_the_gate_until_steps_1_and_2_have_passed(world: World) -> None:
    async def story() -> None:
        heard: list[str] = []
        fence = world.ledger.acquire()
        fence.on_broken = lambda: heard.append("lanes")
        store = LedgerStore(world.ledger)
        async with Running(world.publisher(fence, store), fence):
            await until(lambda: fence.gate_open, "the gate")
            store.down = True
            fence.on_broken()
            assert not fence.gate_open, "at once"
            asked = len(store.asked)
            store.floor_down = True
            store.down = False
            await until(lambda: fence.gate_open, "the gate again")
            again = store.asked[asked:]
            assert again.index("check_cursor") < len(again)
            assert "save_floor" not in again[: again.index("check_cursor")]
        assert heard == ["lanes"], "whoever hung there before is told as well"

    asyncio.run(story())


def test_a_lost_cursor_topic_fails_closed_and_an_operator_goes_on_at_the_floor(world: World) -> None:
    world.ledger.commit(6)
    asyncio.run(publish_all(world))
    admin = AdminClient({"bootstrap.servers": world.brokers})
    admin.delete_topics([world.topics.cursors], operation_timeout=10)[world.topics.cursors].result(20)

    async def topic_again() -> None:
        new = NewTopic(world.topics.cursors, 1, 1, config={"cleanup.policy": "compact"})

        def made() -> bool:
            future = admin.create_topics([new], operation_timeout=5)[world.topics.cursors]
            return future.exception(20) is None

        await until(made, "the topic is there again")

    asyncio.run(topic_again())
    world.ledger.commit(3)
    asyncio.run(stands_closed(world, Fault.CURSOR_MISSING))
    assert len(world.records(world.topics.steps)) == 6
    adopt_what_kafka_shows(world)
    asyncio.run(publish_all(world))
    world.check_published()


def test_a_cursor_below_the_floor_fails_closed(world: World) -> None:
    world.ledger.commit(6)
    asyncio.run(publish_all(world))
    world.ledger.commit(3)
    world.ledger.do("update lane set published_seq = 8")
    asyncio.run(stands_closed(world, Fault.CURSOR_BELOW_FLOOR))
    assert len(world.records(world.topics.steps)) == 6
    assert not world.ledger.lane()["went_back"], "it is Kafka that lost something"


def test_a_store_that_lost_published_rows_stops_owner_and_successor_until_an_operator_speaks(
    world: World,
) -> None:
    async def story() -> None:
        world.ledger.commit(8)
        fence = world.ledger.acquire()
        publisher = world.publisher(fence)
        async with Running(publisher, fence):
            await until(lambda: world.ledger.lane()["published_seq"] == 8, "the floor")
            world.ledger.lose_after(5)
            fence.on_broken()
            await until(lambda: publisher.closed_because, "it fails closed")
            assert publisher.closed_because == Fault.ROW_MISSING.value
            assert not fence.gate_open
            await until(lambda: world.ledger.lane()["went_back"], "the lane row is marked")
        world.ledger.commit(4)  # rows 6 to 9 are written anew
        await stands_closed(world, Fault.WENT_BACK)

    asyncio.run(story())
    published = [hash_of(record) for record in world.records(world.topics.steps)]
    assert len(published) == 8, "nothing of the new history was published"
    adopt_what_kafka_shows(world, start=6)
    world.ledger.commit(2)
    asyncio.run(publish_all(world))
    after = [hash_of(record) for record in world.records(world.topics.steps)]
    rows = [row["hash"].hex() for row in world.ledger.do("select hash from row where lane_seq > 5")]
    assert sorted(after) == sorted(published + rows), "everything from 6 on, once"


def test_went_back_seen_by_the_writer_closes_the_gate(world: World) -> None:
    async def story() -> None:
        fence = world.ledger.acquire()
        publisher = world.publisher(fence)
        async with Running(publisher, fence):
            await until(lambda: fence.gate_open, "the gate")
            fence.went_back = True
            world.ledger.commit(1)
            fence.wake()
            await until(lambda: not fence.gate_open, "the gate is closed")
            await until(lambda: publisher.closed_because, "and says why")
            assert publisher.closed_because == Fault.WENT_BACK.value

    asyncio.run(story())
    assert world.records(world.topics.steps) == []


def test_a_lost_acquire_of_a_successor_is_noticed(world: World) -> None:
    """A3, A4: Postgres goes back behind another owner's acquire; the old owner owns again."""

    async def story() -> None:
        world.ledger.commit(4)
        fence = world.ledger.acquire()
        before = dict(world.ledger.lane())
        publisher = world.publisher(fence)
        async with Running(publisher, fence):
            await until(lambda: world.ledger.lane()["published_seq"] == 4, "no floor is under way")
            successor = world.ledger.acquire()
            async with Running(world.publisher(successor), successor):
                await until(lambda: successor.gate_open, "the successor's gate")
                world.ledger.do("update lane set owner = ?, epoch = ?", before["owner"], before["epoch"])
                fence.on_broken()
                await until(lambda: publisher.closed_because, "the old owner fails closed")
                assert publisher.closed_because in {Fault.RIVAL.value, Fault.WENT_BACK.value}
                assert not fence.gate_open

    asyncio.run(story())
    assert world.ledger.lane()["went_back"]
