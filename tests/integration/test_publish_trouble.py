"""Station 12 on a broker in trouble: timeouts, restarts, forgotten producers; each leads back to step 1."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from session_custody.devstack import ExtraMissing, JarsUnavailable
from session_custody.devstack.kafka import KafkaConfig, KafkaServer
from session_custody.telemetry import PUBLICATION_REBUILDS
from tests.integration.publish_world import Running, World, until
from tests.servers import missing

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

FORGETFUL = {
    "transactional.id.expiration.ms": "1500",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "300",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    """A broker that may be stopped, and that forgets a silent producer after a second and a half."""
    server = KafkaServer(KafkaConfig(extra_properties=FORGETFUL))
    try:
        server.start()
    except (ExtraMissing, JarsUnavailable) as error:
        missing(error)
    yield server
    server.close()


@pytest.fixture
def world(broker: KafkaServer, tmp_path: Path) -> World:
    return World.create(broker.address.url, tmp_path)


def rebuilds() -> dict[str, float]:
    return {
        sample.labels["cause"]: sample.value
        for metric in PUBLICATION_REBUILDS.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }


def new_causes(before: dict[str, float]) -> set[str]:
    return {cause for cause, count in rebuilds().items() if count > before.get(cause, 0)}


def test_a_commit_that_timed_out_throws_the_producer_away(world: World, broker: KafkaServer) -> None:
    async def story() -> None:
        before = rebuilds()
        fence = world.ledger.acquire()
        world.ledger.commit(5)
        publisher = world.publisher(fence, transaction_timeout_s=3.0, batch_rows_max=2)
        async with Running(publisher, fence):
            await until(lambda: world.ledger.lane()["published_seq"] == 5, "the first rows")
            broker.signal("SIGSTOP")
            try:
                world.ledger.commit(10)
                fence.wake()
                await until(lambda: new_causes(before), "a call times out")
                assert fence.gate_open, "Kafka's trouble does not close the gate"
            finally:
                broker.signal("SIGCONT")
            await until(lambda: world.ledger.lane()["published_seq"] == 15, "the rest")
        assert new_causes(before) <= {"_TIMED_OUT", "_FENCED", "INVALID_TXN_STATE", "_TRANSPORT"}

    asyncio.run(story())
    world.check_published()


def test_a_broker_that_was_killed_and_comes_back(world: World, broker: KafkaServer) -> None:
    async def story() -> None:
        fence = world.ledger.acquire()
        publisher = world.publisher(fence, transaction_timeout_s=3.0, rebuilds_red=2, batch_rows_max=3)
        async with Running(publisher, fence):
            world.ledger.commit(5)
            fence.wake()
            await until(lambda: world.ledger.lane()["published_seq"] == 5, "the first rows")
            await asyncio.to_thread(broker.kill)
            world.ledger.commit(20)
            fence.wake()
            await until(lambda: publisher.trouble, "health hears of it")
            assert "CUSTODY_KAFKA__BOOTSTRAP_SERVERS" in (publisher.trouble or "")
            assert publisher.backlog == 20
            await asyncio.to_thread(broker.start)
            await until(lambda: world.ledger.lane()["published_seq"] == 25, "the rest")
            assert publisher.closed_because is None

    asyncio.run(story())
    world.check_published()


def test_a_producer_that_the_broker_has_forgotten_is_made_anew(world: World) -> None:
    """Days of silence, in small: the id expires, the next transaction hears INVALID_PRODUCER_ID_MAPPING."""

    async def story() -> None:
        before = rebuilds()
        fence = world.ledger.acquire()
        publisher = world.publisher(fence)
        async with Running(publisher, fence):
            for done in range(5, 55, 5):
                world.ledger.commit(5)
                fence.wake()
                await until(lambda done=done: world.ledger.lane()["published_seq"] == done, "the rows")  # type: ignore[misc]
                if new_causes(before):
                    break
                await asyncio.sleep(3.0)
        assert "INVALID_PRODUCER_ID_MAPPING" in new_causes(before)

    asyncio.run(story())
    world.check_published()
