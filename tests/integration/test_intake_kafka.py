"""Intake and lanes on Apache Kafka: rebalances, offsets, a recreated topic (stations 1-6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Literal
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from session_custody.core.pin import RunId
from session_custody.devstack import Address
from session_custody.intake.topic import AdminInputTopic
from session_custody.wire import encode_start
from tests.integration.intake_worker import Worker, produce, worker
from tests.unit.intake_fakes import FakeStore
from tests.unit.intake_records import start

pytestmark = [pytest.mark.anyio, pytest.mark.kafka]

PARTITIONS = 4


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def topic(kafka_server: Address) -> Iterator[str]:
    name = f"runs-{uuid4().hex[:8]}"
    create(kafka_server.url, name)
    yield name
    delete(kafka_server.url, name)


def create(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=PARTITIONS, replication_factor=1)])[name].result(20)


def delete(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(20)


def starts(*run_ids: str) -> list[tuple[int, bytes | None, bytes]]:
    return [
        (place % PARTITIONS, run_id.encode(), encode_start(start(run_id)))
        for place, run_id in enumerate(run_ids)
    ]


def ids(prefix: str, number: int) -> list[str]:
    return [f"{prefix}-{place}" for place in range(number)]


def committed(bootstrap: str, topic: str, group: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    found = consumer.committed([TopicPartition(topic, n) for n in range(PARTITIONS)], timeout=20)
    consumer.close()
    return [place.offset for place in found]


def ended(store: FakeStore, run_ids: list[str]) -> bool:
    return all(
        RunId(run_id) in store.checkpoints and store.checkpoints[RunId(run_id)].status.terminal
        for run_id in run_ids
    )


Protocol = Literal["classic", "consumer"]


@asynccontextmanager
async def joined(
    kafka: Address, topic: str, store: FakeStore, group: str, *, protocol: Protocol = "classic"
) -> AsyncIterator[Worker]:
    async with worker(kafka.url, topic, store, group=group, protocol=protocol) as it:
        yield it


def owned(it: Worker) -> set[int]:
    return set(it.keeper.health().owned)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_lanes_move_to_a_second_worker_and_back_without_losing_or_repeating_a_run(
    kafka_server: Address, topic: str, protocol: Protocol
) -> None:
    store, group = FakeStore(), f"group-{uuid4().hex[:8]}"
    first_runs, second_runs, third_runs = ids("a", 40), ids("b", 40), ids("c", 40)
    async with joined(kafka_server, topic, store, group, protocol=protocol) as one:
        produce(kafka_server.url, topic, starts(*first_runs))
        await store.until(lambda: ended(store, first_runs), 40)
        async with joined(kafka_server, topic, store, group, protocol=protocol) as two:
            await two.until(lambda: len(owned(one)) == len(owned(two)) == 2, 40)
            assert owned(one).isdisjoint(owned(two))
            produce(kafka_server.url, topic, starts(*second_runs))
            await store.until(lambda: ended(store, second_runs), 40)
            assert len(two.driver.driven) == 20
        await one.until(lambda: len(owned(one)) == PARTITIONS, 40)
        produce(kafka_server.url, topic, starts(*third_runs))
        await store.until(lambda: ended(store, third_runs), 40)
    driven = [run_id for it in (one, two) for run_id, _, _ in it.driver.driven]
    assert sorted(driven) == sorted([*first_runs, *second_runs, *third_runs])
    assert all(row.unclean_ends == 0 for row in store.lanes.values())
    assert all(row.owner is None for row in store.lanes.values())


async def test_the_groups_offset_is_the_lanes_and_a_group_that_is_ahead_does_not_skip_a_record(
    kafka_server: Address, topic: str
) -> None:
    store, group = FakeStore(), f"group-{uuid4().hex[:8]}"
    runs = ids("a", 40)
    produce(kafka_server.url, topic, starts(*runs))
    async with joined(kafka_server, topic, store, group):
        await store.until(lambda: ended(store, runs), 40)
    assert committed(kafka_server.url, topic, group) == [10] * PARTITIONS
    # The same group, but a store that knows nothing: Postgres went back behind the group's offset.
    empty = FakeStore()
    async with joined(kafka_server, topic, empty, group):
        await empty.until(lambda: ended(empty, runs), 40)


async def test_a_recreated_topic_is_read_from_its_beginning_by_a_live_worker(
    kafka_server: Address, topic: str
) -> None:
    store, group = FakeStore(), f"group-{uuid4().hex[:8]}"
    before, after = ids("a", 40), ids("b", 8)
    admin = AdminInputTopic(lambda: {"bootstrap.servers": kafka_server.url}, topic)
    async with worker(kafka_server.url, topic, store, group=group, admin=admin) as it:
        produce(kafka_server.url, topic, starts(*before))
        await store.until(lambda: ended(store, before), 40)
        generation = store.row_of(0).topic_id
        delete(kafka_server.url, topic)
        await recreated(kafka_server.url, topic)
        produce(kafka_server.url, topic, starts(*after))
        await store.until(lambda: ended(store, after), 60)
        assert all(row.topic_id != generation for row in store.lanes.values())
        assert all(row.input_offset == 2 for row in store.lanes.values())
        assert len(it.publications) == PARTITIONS  # the lanes stayed: no new incarnation


async def recreated(bootstrap: str, topic: str) -> None:
    """The broker forgets a deleted topic a moment later than it says so."""
    async with asyncio.timeout(30):
        while True:
            try:
                create(bootstrap, topic)
            except Exception:  # noqa: BLE001 - still being deleted
                await asyncio.sleep(0.1)
            else:
                return


async def test_an_abandoned_consumer_comes_back_and_nothing_is_lost(
    kafka_server: Address, topic: str
) -> None:
    store, group = FakeStore(), f"group-{uuid4().hex[:8]}"
    runs, more = ids("a", 20), ids("b", 20)
    async with joined(kafka_server, topic, store, group) as it:
        produce(kafka_server.url, topic, starts(*runs))
        await store.until(lambda: ended(store, runs), 40)
        it.intake.abandon()
        await it.until(it.intake.abandoned, 20)
        produce(kafka_server.url, topic, starts(*more))
        await store.until(lambda: ended(store, more), 40)
        # Nobody took the lanes meanwhile: the same incarnations go on.
        assert len(it.publications) == PARTITIONS
        assert len(store.acquires) == PARTITIONS


async def test_a_worker_that_leaves_hands_its_unfinished_runs_to_the_next_owner(
    kafka_server: Address, topic: str
) -> None:
    store, group = FakeStore(), f"group-{uuid4().hex[:8]}"
    runs = ids("a", 8)
    async with joined(kafka_server, topic, store, group) as one:
        one.driver.hold = True  # its runs are in mid-loop and reach no boundary
        produce(kafka_server.url, topic, starts(*runs))
        await one.until(lambda: len(one.driver.driven) == 8, 40)
        one.intake.leave("the test says so")
        async with joined(kafka_server, topic, store, group) as two:
            await store.until(lambda: ended(store, runs), 40)
            assert sorted(run_id for run_id, _, _ in two.driver.driven) == sorted(map(RunId, runs))
            assert one.intake.health() is not None
        assert "the test says so" in str(one.intake.health())


async def test_an_outage_of_the_store_pauses_intake_and_the_poll_thread_goes_on(
    kafka_server: Address, topic: str
) -> None:
    store, group = FakeStore(), f"group-{uuid4().hex[:8]}"
    async with joined(kafka_server, topic, store, group) as it:
        await it.until(lambda: len(owned(it)) == PARTITIONS, 40)
        with store.outage():
            produce(kafka_server.url, topic, starts(*ids("a", 200)))
            await it.until(lambda: store.refused >= 20)
            state = it.intake.health()
            assert state is not None
            assert state.beat_age_s < 1.0
            assert store.runs == {}
        await store.until(lambda: ended(store, ids("a", 200)), 40)
        assert store.dead_letters == []
