"""Intake and lanes together behind a real consumer: what a worker does with its partitions (stations 1-6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from session_custody.core.pin import RunId
from session_custody.lanes.watchdog import Watchdog
from session_custody.wire import encode_start
from tests.integration.intake_worker import broker, produce, worker
from tests.unit.intake_fakes import FakeStore
from tests.unit.intake_records import start

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with broker() as address:
        yield address


@pytest.fixture
def topic() -> str:
    return f"runs-{uuid4().hex[:8]}"


def starts(*places: tuple[int, str]) -> list[tuple[int, bytes | None, bytes]]:
    return [(partition, run_id.encode(), encode_start(start(run_id))) for partition, run_id in places]


async def test_records_of_every_partition_are_admitted_and_their_runs_driven(
    bootstrap: str, topic: str
) -> None:
    places = [(number % 4, f"run-{number}") for number in range(40)]
    produce(bootstrap, topic, starts(*places))
    store = FakeStore()
    async with worker(bootstrap, topic, store) as it:
        await store.until(lambda: len(it.driver.driven) == 40, 30)
        assert {run_id for run_id, _, _ in it.driver.driven} == {RunId(run_id) for _, run_id in places}
        assert [store.row_of(partition).input_offset for partition in range(4)] == [10] * 4
    assert all(row.owner is None for row in store.lanes.values())


async def test_a_worker_whose_loop_hangs_leaves_the_group_and_comes_back_to_its_lanes(
    bootstrap: str, topic: str
) -> None:
    store = FakeStore()
    produce(bootstrap, topic, starts(*((number % 4, f"run-{number}") for number in range(8))))
    async with worker(bootstrap, topic, store) as it:
        await store.until(lambda: len(it.driver.driven) == 8, 30)
        exits: list[int] = []
        dog = Watchdog(it.intake, 0.5, 20.0, exits.append)
        dog.start()
        ends = time.monotonic() + 20
        while not it.intake.abandoned():  # the event loop hangs: nothing else runs on it
            time.sleep(0.01)  # noqa: ASYNC251 - on purpose
            assert time.monotonic() < ends
        produce(bootstrap, topic, starts(*((number % 4, f"more-{number}") for number in range(8))))
        await store.until(lambda: len(it.driver.driven) == 16, 30)
        dog.stop()
        assert exits == []
        assert len(store.acquires) == 4  # nobody took the lanes meanwhile: the incarnations live on
        assert it.keeper.health().owned == (0, 1, 2, 3)


async def test_two_workers_behind_one_group_share_the_lanes_and_each_lane_has_one_owner(
    bootstrap: str, topic: str
) -> None:
    store = FakeStore()
    produce(bootstrap, topic, starts((0, "run-0")))
    async with (
        worker(bootstrap, topic, store, group=topic) as one,
        worker(bootstrap, topic, store, group=topic) as two,
    ):
        await one.until(lambda: len(one.keeper.health().owned) == len(two.keeper.health().owned) == 2, 40)
        places = [(number % 4, f"more-{number}") for number in range(20)]
        produce(bootstrap, topic, starts(*places))
        await store.until(lambda: len(one.driver.driven) + len(two.driver.driven) == 21, 30)
        driven = [run_id for it in (one, two) for run_id, _, _ in it.driver.driven]
        assert len(driven) == len(set(driven)) == 21
