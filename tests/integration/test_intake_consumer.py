"""The poll thread alone, against librdkafka's in-process broker (stations 1 and 5)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from uuid import uuid4

import pytest

from session_custody.intake.consumer import GroupConsumer
from session_custody.intake.options import POLL_RECORDS_MAX, WINDOW_RECORDS, ConsumerSetup
from session_custody.intake.partitions import Pause
from session_custody.intake.record import Record
from session_custody.ports import LaneFence
from tests.integration.intake_worker import broker, produce

WITHIN_S = 20.0


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with broker() as address:
        yield address


class Lanes:
    """Opens what is assigned at once, at offset 0, unless told not to."""

    def __init__(self) -> None:
        self.group: GroupConsumer | None = None
        self.opens = True
        self.heard: list[tuple[str, tuple[int, ...]]] = []
        self.tokens: dict[int, int] = {}
        self.drain: Callable[[], None] = lambda: None

    def assigned(self, partitions: Sequence[int]) -> None:
        self.heard.append(("assigned", tuple(sorted(partitions))))
        for partition in partitions if self.opens else ():
            self.open(partition, 0)

    def open(self, partition: int, offset: int) -> None:
        assert self.group is not None
        self.tokens[partition] = self.tokens.get(partition, 0) + 1
        self.group.open(partition, self.tokens[partition], offset)

    def revoked(self, partitions: Sequence[int], budget_s: float) -> None:
        self.heard.append(("revoked", tuple(sorted(partitions))))
        self.drain()

    def lost(self, partitions: Sequence[int]) -> None:
        self.heard.append(("lost", tuple(sorted(partitions))))

    def admitted(self, fence: LaneFence) -> None: ...

    def truncated(self, fence: LaneFence, offset: int) -> None: ...


class Reader:
    """A group consumer whose records are kept."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.lanes = Lanes()
        self.got: list[tuple[int, Record]] = []
        self.trip = 0
        setup = ConsumerSetup(
            lambda: {"bootstrap.servers": bootstrap}, topic, f"group-{uuid4().hex[:8]}", session_timeout_s=6.0
        )
        self.group = GroupConsumer(setup, self.lanes, self._deliver)
        self.lanes.group = self.group
        self.threads: set[int] = set()

    def _deliver(self, partition: int, token: int, records: Sequence[Record]) -> None:
        self.threads.add(threading.get_ident())
        if self.trip:
            self.trip -= 1
            raise ZeroDivisionError
        self.got += [(token, record) for record in records]

    def offsets(self, partition: int = 0) -> list[int]:
        return [record.offset for _, record in list(self.got) if record.partition == partition]

    def until(self, condition: Callable[[], bool]) -> None:
        ends = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < ends, f"not within {WITHIN_S} s; heard {self.lanes.heard}"
            time.sleep(0.01)

    def rounds(self, number: int) -> None:
        """The poll thread has gone round so many times more: whatever was to come has come."""
        passed = threading.Semaphore(0)
        for _ in range(number):
            # a command is run between two polls
            self.group._commands.put(lambda _: passed.release())
            assert passed.acquire(timeout=WITHIN_S)


@contextmanager
def reading(bootstrap: str, topic: str, *, opens: bool = True) -> Iterator[Reader]:
    it = Reader(bootstrap, topic)
    it.lanes.opens = opens
    it.group.start()
    try:
        yield it
    finally:
        it.group.stop()
        assert it.group.join(WITHIN_S)


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"runs-{uuid4().hex[:8]}"
    produce(bootstrap, name, [(0, b"k", b"first")])
    return name


def test_nothing_is_read_before_a_partition_is_opened_and_then_from_its_offset(
    bootstrap: str, topic: str
) -> None:
    produce(bootstrap, topic, [(0, b"k", b"v")] * 9)
    with reading(bootstrap, topic, opens=False) as it:
        it.until(lambda: it.group.is_assigned(0))
        it.rounds(20)
        assert it.got == []
        it.lanes.open(0, 4)
        it.until(lambda: it.offsets() == [4, 5, 6, 7, 8, 9])
        it.lanes.open(0, 7)
        it.until(lambda: it.offsets()[6:] == [7, 8, 9])
        assert [token for token, _ in it.got] == [1] * 6 + [2] * 3


def test_what_is_not_admitted_pauses_its_partition_alone(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, [(0, None, b"v")] * (3 * WINDOW_RECORDS))
    with reading(bootstrap, topic) as it:
        it.until(lambda: len(it.offsets()) >= WINDOW_RECORDS)
        it.rounds(10)
        held = len(it.offsets())
        assert held < WINDOW_RECORDS + POLL_RECORDS_MAX
        produce(bootstrap, topic, [(1, None, b"v")])
        it.until(lambda: it.offsets(1) == [0])
        size = sum(record.size for _, record in it.got if record.partition == 0)
        it.group.done(0, it.lanes.tokens[0], held, size, None)
        it.until(lambda: len(it.offsets()) > held)
        it.until(lambda: len(it.offsets()) >= 2 * WINDOW_RECORDS)
        assert it.offsets() == list(range(len(it.offsets())))


def test_a_pause_ends_only_when_no_reason_is_left(bootstrap: str, topic: str) -> None:
    with reading(bootstrap, topic) as it:
        it.until(lambda: it.offsets() == [0])
        token = it.lanes.tokens[0]
        it.group.pause(0, token, Pause.OUTAGE, paused=True)
        it.group.pause(0, token, Pause.BACKLOG, paused=True)
        it.group.pause(0, token, Pause.OUTAGE, paused=False)
        it.rounds(3)
        produce(bootstrap, topic, [(0, None, b"v")])
        it.rounds(10)
        assert it.offsets() == [0]
        it.group.pause(0, token, Pause.BACKLOG, paused=False)
        it.until(lambda: it.offsets() == [0, 1])


def test_after_a_failure_a_new_consumer_reads_the_same_records(bootstrap: str, topic: str) -> None:
    with reading(bootstrap, topic) as it:
        it.trip = 1
        it.until(lambda: it.offsets() == [0])
        assert [heard[0] for heard in it.lanes.heard] == ["assigned", "revoked", "assigned"]
        assert it.group.state().red is None or "ZeroDivisionError" in str(it.group.state().red)
        assert len(it.threads) == 1


def test_an_abandoned_consumer_is_closed_without_a_drain_and_returns_when_it_may(
    bootstrap: str, topic: str
) -> None:
    with reading(bootstrap, topic) as it:
        it.until(lambda: it.offsets() == [0])
        it.group.abandon()
        it.until(it.group.abandoned)
        assert it.lanes.heard[-1][0] == "lost"
        assert not it.group.is_assigned(0)
        it.group.may_return()
        it.until(lambda: it.group.is_assigned(0))
        assert [heard[0] for heard in it.lanes.heard] == ["assigned", "lost", "assigned"]


def test_leaving_is_for_good_and_says_why(bootstrap: str, topic: str) -> None:
    with reading(bootstrap, topic) as it:
        it.until(lambda: it.group.is_assigned(0))
        it.group.leave("fenced too often")
        it.until(lambda: not it.group.is_assigned(0))
        assert it.group.state().red == "fenced too often"
        assert it.lanes.heard[-1][0] == "revoked"


def test_offsets_of_an_older_opening_are_not_committed_and_late_word_after_the_end_hurts_nobody(
    bootstrap: str, topic: str
) -> None:
    with reading(bootstrap, topic) as it:
        it.until(lambda: it.offsets() == [0])
        old = it.lanes.tokens[0]
        it.lanes.open(0, 0)
        it.until(lambda: it.offsets() == [0, 0])
        it.group.done(0, old, 1, 1, 99)
        it.rounds(2)
        part = it.group._partitions[0]
        assert part.to_commit is None
        assert part.outstanding_records == 1
    it.group.done(0, old, 1, 1, 1)
    it.group.close_partition(0, old)
    it.group.open(0, old, 0)
    assert not it.group.is_assigned(0)
