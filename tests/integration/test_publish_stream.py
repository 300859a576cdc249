"""Station 12 on Apache Kafka: what a read_committed consumer sees (I9, DESIGN 6)."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from session_custody import wire
from session_custody.devstack import Address
from session_custody.publish import beginning
from session_custody.publish.beginning import open_outlet
from session_custody.publish.means import Means
from session_custody.publish.outlet import Outlet, TransactionalOutlet
from session_custody.publish.protocol import Fault
from tests.integration.publish_world import Running, World, hash_of, header, until

pytestmark = pytest.mark.kafka


@pytest.fixture
def world(kafka_server: Address, tmp_path: Path) -> World:
    return World.create(kafka_server.url, tmp_path)


def test_every_row_is_published_once_in_order_with_its_headers(world: World) -> None:
    async def story() -> None:
        fence = world.ledger.acquire()
        world.ledger.commit(30)
        world.ledger.finish("run-1")
        world.ledger.refuse_record(b"\xff\x00 exact")
        publisher = world.publisher(fence)
        async with Running(publisher, fence):
            await until(lambda: world.ledger.lane()["published_seq"] == 32, "the floor")
            assert fence.gate_open
            world.ledger.commit(5)
            fence.wake()
            await until(lambda: world.ledger.lane()["published_seq"] == 37, "the floor of the rest")
            assert publisher.backlog == 0
        assert not fence.gate_open

    asyncio.run(story())
    steps = world.check_published()
    assert header(steps[0], "ce_type") == b"custody.run.decided.v1"
    (dead,) = world.records(world.topics.dead_letters)
    assert (dead.key, dead.value) == (b"key", b"\xff\x00 exact")
    assert header(dead, "custody_dlq_reason") == b"undecodable"
    (outcome,) = world.records(world.topics.outcomes)
    assert outcome.key == b"run-1"


def test_a_row_too_large_for_the_topic_becomes_a_stub_and_its_neighbours_are_whole(
    kafka_server: Address, tmp_path: Path
) -> None:
    small = World.create(kafka_server.url, tmp_path, **{"max.message.bytes": "20000"})

    async def story() -> None:
        fence = small.ledger.acquire()
        small.ledger.commit(5)
        small.ledger.commit(1, payload="p" * 50_000)
        small.ledger.refuse_record(b"d" * 50_000)
        small.ledger.commit(5)
        publisher = small.publisher(fence)
        async with Running(publisher, fence):
            await until(lambda: small.ledger.lane()["published_seq"] == 12, "the last row")
            assert publisher.trouble is None

    asyncio.run(story())
    steps = small.check_published()
    (stub,) = [record for record in steps if b"msg_size_too_large" in dict(record.headers).values()]
    assert stub.value is not None
    assert wire.decode_event(stub.value)["payload"] is None
    assert wire.decode_event(stub.value)["payload_digest"] is not None
    assert hashlib.sha256(wire.hashed_body(stub.value)).hexdigest() == hash_of(stub)
    assert int(header(stub, "custody_stub_bytes")) > 50_000
    (dead,) = small.records(small.topics.dead_letters)
    assert dead.value is None
    assert header(dead, "custody_stub_sha256").decode() == hashlib.sha256(b"d" * 50_000).hexdigest()


def test_an_idle_producer_is_closed_and_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Outlet] = []
    discarded: list[object] = []

    def open_and_count(means: Means) -> Outlet:
        opened.append(open_outlet(means))
        return opened[-1]

    def discard_and_count(outlet: TransactionalOutlet) -> None:
        discarded.append(outlet)
        plain_discard(outlet)

    plain_discard = TransactionalOutlet.discard
    monkeypatch.setattr(beginning, "open_outlet", open_and_count)
    monkeypatch.setattr(TransactionalOutlet, "discard", discard_and_count)

    async def story() -> None:
        fence = world.ledger.acquire()
        world.ledger.commit(3)
        async with Running(world.publisher(fence, idle_close_s=0.2), fence):
            await until(lambda: world.ledger.lane()["published_seq"] == 3, "the first rows")
            await until(lambda: discarded, "the idle producer is closed")
            assert fence.gate_open, "nothing has happened that closes it"
            world.ledger.commit(3)
            fence.wake()
            await until(lambda: world.ledger.lane()["published_seq"] == 6, "the rest")

    asyncio.run(story())
    assert len(opened) == 2
    world.check_published()


def test_closing_publishes_what_is_committed(world: World) -> None:
    async def story() -> None:
        fence = world.ledger.acquire()
        publisher = world.publisher(fence, poll_s=30.0, batch_rows_max=7)
        running = Running(publisher, fence)
        await until(lambda: fence.gate_open, "the gate")
        world.ledger.commit(40)
        await publisher.close(20.0)
        await running.task

    asyncio.run(story())
    assert world.ledger.lane()["published_seq"] == 40, "and its floor is saved"
    world.check_published()


def test_rows_behind_a_gap_wait_and_then_fail_closed(world: World) -> None:
    async def story() -> None:
        fence = world.ledger.acquire()
        world.ledger.commit(6)
        world.ledger.do("delete from row where lane_seq = 4")
        publisher = world.publisher(fence)
        async with Running(publisher, fence):
            await until(lambda: publisher.closed_because, "the gap is no passing one")
            assert publisher.closed_because == Fault.GAP.value

    asyncio.run(story())
    assert len(world.records(world.topics.steps)) == 3
