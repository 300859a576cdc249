"""Station 12: what the parts of one lane's publication share, and the ways in which one of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from confluent_kafka import KafkaError

from session_custody.ports import LaneFence
from session_custody.publish.options import KafkaConfig
from session_custody.publish.outbox import OutboxStore
from session_custody.publish.protocol import Fault
from session_custody.publish.records import Topics
from session_custody.publish.thread import OneThread
from session_custody.publish.tuning import PublishSettings


class Over(Exception):
    """This publication ends: the lane has another owner, or somebody closed it."""


class Regate(Exception):
    """Postgres' connection broke, or its answer is in doubt: gate closed, back to step 1 at once."""


class Reopen(Exception):
    """There is work for a producer that was closed when idle: step 1, the gate stays as it is."""


class Closed(Exception):
    """The lane fails closed."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.value)
        self.fault = fault


@dataclass(slots=True, eq=False)
class Means:
    """One incarnation's lane, Postgres, Kafka and the thread. `lane` is its text, `custody.runs/3`."""

    fence: LaneFence
    store: OutboxStore
    config: KafkaConfig
    topics: Topics
    settings: PublishSettings
    lane: str
    thread: OneThread
    heard: Callable[[KafkaError], None]
    """error_cb of every client; called in the thread."""
    bell: asyncio.Event = field(default_factory=asyncio.Event)
    """Rung when there may be something to do."""
    urgent: asyncio.Event = field(default_factory=asyncio.Event)
    """Rung once, when it is to end."""
    broken: bool = False
    closing: bool = False
    close_by: float = 0.0
    """Monotonic: until then what is committed is still published."""
    _owners: set[UUID] = field(default_factory=set)

    def owners(self) -> frozenset[UUID]:
        """Every owner uuid that this incarnation has had or offered: settling changes it in place."""
        self._owners |= {self.fence.owner, *self.fence.tried}
        return frozenset(self._owners)

    def check(self) -> None:
        """Asked before anything that counts. Raises Over, Regate, Closed."""
        if self.fence.lost:
            raise Over
        if self.broken:
            raise Regate
        if self.fence.went_back:
            raise Closed(Fault.WENT_BACK)

    async def ask_with_the_fence(self) -> None:
        """Postgres shows another owner: raises LaneLost, unless a settling of ours has just changed it."""
        await self.store.heartbeat(self.fence, clear_unclean=False)


async def wait(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether the event came in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
