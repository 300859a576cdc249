"""Station 12 on Apache Kafka: what a read_committed consumer sees (I9, DESIGN 6)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from session_custody.devstack import Address
from tests.integration.publish_world import Running, World, header, until

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
