"""A worker whose event loop hangs gives its lanes away, or ends (DESIGN 4)."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import cast

import pytest

from session_custody.lanes.watchdog import EXIT_STATUS, Watchdog
from session_custody.ports import IntakeControl

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Group:
    def __init__(self, *, closes: bool) -> None:
        self._closes = closes
        self.told = threading.Event()
        self.times = 0

    def abandon(self) -> None:
        self.times += 1
        self.told.set()

    def abandoned(self) -> bool:
        return self._closes


def hang(until: threading.Event) -> None:
    """What a careless tool does to the event loop."""
    assert until.wait(10)


async def test_a_hanging_loop_gives_its_lanes_away_once() -> None:
    group, exits = Group(closes=True), list[int]()
    dog = Watchdog(cast("IntakeControl", group), 0.2, 0.5, exits.append)
    dog.start()
    hang(group.told)
    await asyncio.sleep(0)
    dog.stop()
    assert (group.times, exits) == (1, [])


async def test_if_the_consumer_cannot_be_closed_the_process_ends() -> None:
    group, ended = Group(closes=False), threading.Event()
    statuses: list[int] = []

    def leave(status: int) -> None:
        statuses.append(status)
        ended.set()

    dog = Watchdog(cast("IntakeControl", group), 0.1, 0.3, leave)
    dog.start()
    began = time.monotonic()
    hang(ended)
    dog.stop()
    assert statuses == [EXIT_STATUS]
    assert time.monotonic() - began >= 0.3


async def test_a_loop_that_answers_is_left_alone() -> None:
    group = Group(closes=True)
    dog = Watchdog(cast("IntakeControl", group), 0.2, 0.5, lambda _: None)
    dog.start()
    for _ in range(20):
        await asyncio.sleep(0.02)
    dog.stop()
    assert group.times == 0
