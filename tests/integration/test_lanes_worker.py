"""Intake and lanes together behind a real consumer: what a worker does with its partitions (stations 1-6)."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from session_custody.core.pin import RunId
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
