"""Station 12 on Apache Kafka: killed, frozen, doubled; nothing is lost, repeated or out of order."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from session_custody.devstack import Address
from session_custody.telemetry import PUBLICATION_CLOSED
from tests.integration.publish_world import Running, World, child, header, until

pytestmark = [pytest.mark.kafka, pytest.mark.crash]


@pytest.fixture
def world(kafka_server: Address, tmp_path: Path) -> World:
    return World.create(kafka_server.url, tmp_path)


async def finish(world: World, **settings: Any) -> None:
    """The next owner publishes what is left."""
    fence = world.ledger.acquire()
    publisher = world.publisher(fence, **settings)
    async with Running(publisher, fence):
        last = world.ledger.lane()["next_seq"] - 1
        await until(lambda: world.ledger.lane()["published_seq"] == last, "the last row")


def test_killed_before_and_after_the_commit_again_and_again(world: World) -> None:
    for fault in ("before@1", "after@1", "before@3", "after@2", "after@4"):
        world.ledger.commit(20)
        victim = child(world, f"kill:publication.{fault}", batch_rows_max=3)
        assert victim.wait(60) == -signal.SIGKILL
    asyncio.run(finish(world))
    world.check_published()
    on_disk = world.records(world.topics.steps, "read_uncommitted")
    assert len(on_disk) > 100, "some were aborted, and none of those was seen"


def test_the_next_owner_does_not_wait_for_the_dead_ones_transaction(world: World) -> None:
    world.ledger.commit(20)
    victim = child(world, "kill:publication.before@2", batch_rows_max=3, transaction_timeout_s=15.0)
    assert victim.wait(60) == -signal.SIGKILL
    began = time.monotonic()
    asyncio.run(finish(world))
    world.check_published()
    assert time.monotonic() - began < 12, "init_transactions ends it"


def test_a_frozen_owner_is_fenced_when_it_wakes_inside_its_transaction(world: World) -> None:
    world.ledger.commit(20)
    zombie = child(world, "stop:publication.before@2", batch_rows_max=3)
    try:
        _, status = os.waitpid(zombie.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        asyncio.run(finish(world))
        world.ledger.commit(5)
        zombie.send_signal(signal.SIGCONT)
        assert zombie.wait(60) == 0, "it finds that it owns nothing, and stops by itself"
    finally:
        zombie.kill()
        zombie.wait()
    asyncio.run(finish(world))
    world.check_published()


def test_two_publishers_on_one_lane(world: World) -> None:
    """A second owner acquires while the first one is at work; both believe in their fences."""

    async def story() -> None:
        first_fence = world.ledger.acquire()
        world.ledger.commit(30)
        first = world.publisher(first_fence, batch_rows_max=2)
        async with Running(first, first_fence) as old:
            await until(lambda: world.ledger.lane()["published_seq"] > 4, "some rows of the first")
            second_fence = world.ledger.acquire()
            world.ledger.commit(30)
            second = world.publisher(second_fence, batch_rows_max=2)
            async with Running(second, second_fence):
                await until(lambda: world.ledger.lane()["published_seq"] == 60, "the last row")
                await asyncio.wait_for(old.task, 30)
                assert first.closed_because is None, "not owner is no alarm"
                assert first_fence.lost
                assert second_fence.gate_open
                assert not first_fence.gate_open

    asyncio.run(story())
    world.check_published()
    assert not [
        sample for metric in PUBLICATION_CLOSED.collect() for sample in metric.samples if sample.value
    ]


def test_a_dead_neighbours_open_transaction_only_delays(world: World) -> None:
    """Two lanes share a cursor partition, and the other one's worker died inside its transaction."""
    neighbour = Producer(
        {
            "bootstrap.servers": world.brokers,
            "transactional.id": f"{world.name}.other",
            "transaction.timeout.ms": 3000,
        }
    )
    neighbour.init_transactions(20)
    neighbour.begin_transaction()
    neighbour.produce(world.topics.cursors, b"{}", b"other/0/cursor", 0)
    neighbour.flush(20)
    world.ledger.commit(5)
    asyncio.run(finish(world))
    world.check_published()


def test_at_least_once_repeats_but_loses_nothing_and_writes_cursors(world: World) -> None:
    mode = {"mode": "at_least_once", "batch_rows_max": 3}
    world.ledger.commit(20)
    assert child(world, "kill:publication.before@2", **mode).wait(60) == -signal.SIGKILL
    asyncio.run(finish(world, **mode))
    steps = world.records(world.topics.steps)
    by_id = {header(record, "ce_id"): record for record in steps}
    assert len(by_id) == 20
    assert len(steps) == 23, "the batch whose cursor was not written"
    assert len(world.records(world.topics.cursors)) > 7
