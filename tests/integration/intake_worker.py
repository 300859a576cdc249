"""A worker of intake and lanes alone: real consumer, fake store, driver and publication."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import cast

from confluent_kafka import Producer

from session_custody.core.admission import AdmissionRules
from session_custody.core.manifest import ContractKind
from session_custody.intake.admit import Admission
from session_custody.intake.intake import Intake
from session_custody.intake.options import ConsumerSetup
from session_custody.lanes.keeper import LaneKeeper
from session_custody.lanes.timings import LaneTimings
from session_custody.ports import InputTopic, LaneFence, RunStore
from tests.unit.intake_fakes import (
    FakeContracts,
    FakeDriver,
    FakePublication,
    FakeStore,
    FakeTopic,
    FixedClock,
    NoSigner,
)
from tests.unit.intake_records import MANIFEST, TARGET

__all__ = ["ContractKind", "Worker", "broker", "produce", "worker"]

SESSION_S = 6.0
TIMINGS = LaneTimings(
    session_timeout_s=SESSION_S,
    heartbeat_s=0.2,
    reconcile_s=0.1,
    generation_check_s=0.5,
    retry_first_s=0.05,
    retry_max_s=0.3,
    flush_s=0.3,
)


@contextmanager
def broker() -> Iterator[str]:
    """librdkafka's in-process broker; gone with the handle. Always four partitions."""
    owner = Producer({"test.mock.num.brokers": 1})
    metadata = owner.list_topics(timeout=10)
    first = next(iter(metadata.brokers.values()))
    yield f"{first.host}:{first.port}"
    owner.flush(1)


def produce(bootstrap: str, topic: str, records: list[tuple[int, bytes | None, bytes]]) -> None:
    """(partition, key, value) each; returns when the broker has them."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for partition, key, value in records:
        producer.produce(topic, value=value, key=key, partition=partition)
    assert producer.flush(20) == 0


@dataclass
class Worker:
    """One worker's parts. `publications`: each incarnation's, in order of acquiring."""

    store: FakeStore
    driver: FakeDriver
    topic: FakeTopic
    intake: Intake
    keeper: LaneKeeper
    publications: list[FakePublication]
    fatal: list[Exception] = field(default_factory=list)

    async def until(self, condition: Callable[[], bool], within_s: float = 20.0) -> None:
        """Wait for a condition that no statement of the store announces."""
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - the condition lives on another thread
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        await self.keeper.stop()
        await self.intake.stop()


@asynccontextmanager
async def worker(
    bootstrap: str,
    topic: str,
    store: FakeStore,
    *,
    group: str = "custody-test",
    timings: LaneTimings = TIMINGS,
    protocol: str = "classic",
    input_topic: FakeTopic | None = None,
    admin: InputTopic | None = None,
    session_s: float = SESSION_S,
) -> AsyncIterator[Worker]:
    driver = FakeDriver(store)
    fake_topic = input_topic or FakeTopic()
    fatal: list[Exception] = []
    publications: list[FakePublication] = []

    def publication(fence: LaneFence) -> FakePublication:
        publications.append(FakePublication(fence))
        return publications[-1]

    intake = Intake(
        setup=ConsumerSetup(
            connect=lambda: {"bootstrap.servers": bootstrap},
            topic=topic,
            group=group,
            session_timeout_s=session_s,
            group_protocol="consumer" if protocol == "consumer" else "classic",
        ),
        store=cast("RunStore", store),
        admission=Admission(
            contracts=FakeContracts(MANIFEST),
            signer=NoSigner(),
            clock=FixedClock(),
            rules=AdmissionRules(targets=frozenset({TARGET}), dedupe_horizon_s=1e9),
        ),
        on_fatal=fatal.append,
    )
    keeper = LaneKeeper(
        store=cast("RunStore", store),
        driver=driver,
        publication=publication,
        intake=intake,
        topic=admin or fake_topic,
        topic_name=topic,
        clock=FixedClock(),
        timings=timings,
        on_fatal=fatal.append,
    )
    keeper.start()
    intake.start(keeper)
    it = Worker(store, driver, fake_topic, intake, keeper, publications, fatal)
    try:
        yield it
    finally:
        await it.stop()
    assert fatal == []
