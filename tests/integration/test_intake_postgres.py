"""Intake and lanes on PostgreSQL: what stands in the rows (stations 3, 4, 6)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from session_custody.core.admission import AdmissionRules
from session_custody.core.errors import RejectReason
from session_custody.core.events import EventDraft, EventKind, ResumeKind
from session_custody.core.pin import LaneId, RunId
from session_custody.core.run import Status
from session_custody.core.signals import SignalKind
from session_custody.intake.admit import Admission
from session_custody.intake.record import Record
from session_custody.intake.stream import LaneStream
from session_custody.lanes.keeper import LaneKeeper
from session_custody.lanes.timings import LaneTimings
from session_custody.ports import (
    CommitAnswer,
    Inbox,
    LaneFence,
    LaneKey,
    LoadedRun,
    OutboxDeadLetter,
    OutboxEvent,
    RunCommit,
)
from session_custody.store import Migrator, PostgresStore
from session_custody.wire import seal
from tests.unit.intake_fakes import FakeContracts, FakePublication, FakeTopic, FixedClock, NoSigner
from tests.unit.intake_records import MANIFEST, TARGET, looping_pin, record, resume, start
from tests.unit.test_intake_stream import Side
from tests.unit.test_lanes_keeper import FakeIntake

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

TOPIC = "custody.runs"
NOW = datetime.now(UTC)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class World:
    """One acquired lane in a real store, and a stream that admits into it."""

    def __init__(self, store: PostgresStore, fence: LaneFence) -> None:
        self.store, self.fence, self.side = store, fence, Side()
        self.offset = 0
        self.stream = LaneStream(fence, 1, store, admission(), self.side)

    async def admit(self, *records: Record) -> None:
        self.stream.feed([replace(each, offset=self.offset + n) for n, each in enumerate(records)])
        self.offset += len(records)
        await until(lambda: bool(self.side.offsets) and self.side.offsets[-1] == self.offset)

    async def letters(self) -> list[OutboxDeadLetter]:
        rows = await self.store.outbox(self.fence.lane_id, 0, 1000)
        return [row for row in rows if isinstance(row, OutboxDeadLetter)]


def admission() -> Admission:
    return Admission(
        contracts=FakeContracts(MANIFEST),
        signer=NoSigner(),
        clock=FixedClock(NOW),
        rules=AdmissionRules(targets=frozenset({TARGET})),
    )


def sent(*arguments: object, **options: object) -> Record:
    return replace(record(*arguments, **options), recorded_at=NOW)  # type: ignore[arg-type]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the other side is a server
            await asyncio.sleep(0.005)


@asynccontextmanager
async def a_store(dsn: str) -> AsyncIterator[PostgresStore]:
    await Migrator(dsn).migrate()
    store = await PostgresStore.open(dsn)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def world(dsn: str) -> AsyncIterator[World]:
    async with a_store(dsn) as store:
        row = await store.ensure_lane(LaneKey("cluster-1", TOPIC, 0), "generation-1", 0)
        owner = uuid4()
        acquired = await store.acquire(row.lane_id, owner, row.epoch, [])
        assert acquired is not None
        fence = LaneFence(LaneId(row.lane_id), row.key, owner, acquired.epoch, row.topic_id, row.next_seq - 1)
        it = World(store, fence)
        try:
            yield it
        finally:
            await it.stream.close(5.0)
            assert it.side.fatal == []


async def test_a_mixed_batch_stands_in_its_rows(database: str) -> None:
    async with world(database) as it:
        await it.admit(
            sent(start("run-1", pin=looping_pin())),
            sent(start("run-1", pin=looping_pin())),
            sent(start("run-1", input='"other"')),
            sent(b"junk", key=b"\x00k", headers=(("h", b"\xff"), ("cookie", b"made-up"))),
            sent(resume("run-1", ResumeKind.CONTINUE)),
            sent(resume("run-2", ResumeKind.CANCEL, reason="early")),
            sent(start("run-3", pin=looping_pin(manifest_version="9"))),
        )
        known = {
            run.run_id: run.status for run in await it.store.known_runs([RunId("run-1"), RunId("run-3")])
        }
        assert known == {"run-1": Status.QUEUED, "run-3": Status.PARKED}
        conflict, junk = await it.letters()
        assert (conflict.reason, conflict.offset, conflict.run_id) == (RejectReason.PIN_CONFLICT, 2, "run-1")
        assert (junk.reason, junk.key, junk.value) == (RejectReason.TOKEN_REFUSED, b"\x00k", b"junk")
        assert list(junk.headers) == [("h", b"\xff")]
        rows = await it.store.outbox(it.fence.lane_id, 0, 100)
        assert [row.lane_seq for row in rows] == list(range(1, len(rows) + 1))
        events = [(row.run_id, row.kind) for row in rows if isinstance(row, OutboxEvent)]
        assert events == [
            ("run-1", EventKind.PINNED),
            ("run-3", EventKind.PINNED),
            ("run-3", EventKind.PARKED),
        ]
        (signal,) = await it.store.signals_for([RunId("run-1")])
        assert signal.kind is SignalKind.CONTINUE
        assert (await it.store.read_lane(it.fence.lane_id)).input_offset == 7


async def test_a_cancel_that_came_before_its_start_is_the_runs_signal(database: str) -> None:
    async with world(database) as it:
        await it.admit(sent(resume("run-1", ResumeKind.CANCEL, reason="early")))
        assert await it.store.due_runs([it.fence.lane_id], [], 10) == []
        await it.admit(sent(start("run-1")))
        (signal,) = await it.store.signals_for([RunId("run-1")])
        assert (signal.kind, dict(signal.body)) == (SignalKind.CANCEL, {"reason": "early"})


async def test_the_same_resume_twice_is_one_signal(database: str) -> None:
    headers: tuple[tuple[str, bytes | None], ...] = (("ce_id", b"e-1"), ("ce_source", b"crm"))
    async with world(database) as it:
        cancel = sent(resume("run-1", ResumeKind.CANCEL), headers=headers)
        await it.admit(sent(start("run-1")), cancel, cancel)
        await it.admit(cancel)
        assert len(await it.store.signals_for([RunId("run-1")])) == 1


async def test_text_that_postgres_cannot_hold_costs_only_its_record_its_content(database: str) -> None:
    async with world(database) as it:
        await it.admit(
            sent(start("run-1")),
            sent(b"junk", headers=(("a\x00b", b"x"),)),
            sent(start("run-2")),
        )
        (letter,) = await it.letters()
        assert (letter.offset, letter.reason) == (1, RejectReason.UNDECODABLE)
        assert len(await it.store.known_runs([RunId("run-1"), RunId("run-2")])) == 2


async def test_a_worker_whose_place_is_taken_learns_it_at_its_next_batch(database: str) -> None:
    async with world(database) as it:
        await it.admit(sent(start("run-1")))
        row = await it.store.read_lane(it.fence.lane_id)
        assert await it.store.acquire(row.lane_id, uuid4(), row.epoch, []) is not None
        it.stream.feed([replace(sent(start("run-2")), offset=it.offset)])
        await until(lambda: it.fence.lost)
        assert await it.store.known_runs([RunId("run-2")]) == []


class Finisher:
    """Drives a run to its outcome in one commit; a cancelled one as its signal says."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.answers: dict[str, CommitAnswer] = {}

    async def drive(self, run: LoadedRun, fence: LaneFence, inbox: Inbox, suspects: bool) -> None:
        inbox.put(run.signals)
        signals = inbox.take()
        cancelled = any(signal.kind is SignalKind.CANCEL for signal in signals)
        status = Status.CANCELLED if cancelled else Status.SUCCEEDED
        draft = EventDraft(EventKind.OUTCOME, status, run.checkpoint.stage, run.checkpoint.loop_step)
        point = run.checkpoint
        event = seal(draft, run.facts, point.head_seq + 1, point.head_hash, NOW, NoSigner(), os.urandom(16))
        after = replace(
            point,
            status=status,
            head_seq=event.event_seq,
            head_hash=event.hash,
            park_reason=None,
            wake_at=None,
        )
        commit = RunCommit(
            fence, RunId(run.facts.run_id), after, (event,), tuple(signal.signal_id for signal in signals)
        )
        self.answers[run.facts.run_id] = await self._store.commit(commit)


async def test_the_reconcile_finds_fresh_cancelled_and_woken_runs_and_ends_them(database: str) -> None:
    fatal: list[Exception] = []
    async with a_store(database) as store:
        driver, intake = Finisher(store), FakeIntake()
        fences: list[LaneFence] = []

        def publication(fence: LaneFence) -> FakePublication:
            fences.append(fence)
            return FakePublication(fence)

        keeper = LaneKeeper(
            store=store,
            driver=driver,
            publication=publication,
            intake=intake,
            topic=FakeTopic(),
            topic_name=TOPIC,
            clock=FixedClock(NOW),
            timings=LaneTimings(session_timeout_s=6.0, heartbeat_s=0.1, reconcile_s=0.1, sweep_s=0.1),
            on_fatal=fatal.append,
            bells=store.notifications,
        )
        keeper.start()
        intake.given = {0}
        keeper.assigned([0])
        await until(lambda: ("open", 0, 0) in intake.did)
        stream = LaneStream(fences[0], 1, store, admission(), Side())
        stream.feed(
            [
                replace(sent(resume("run-2", ResumeKind.CANCEL)), offset=0),
                replace(sent(start("run-1")), offset=1),
                replace(sent(start("run-2")), offset=2),
                replace(sent(start("run-3", pin=looping_pin(manifest_version="9"))), offset=3),
            ]
        )
        await until(lambda: len(driver.answers) == 3)
        assert set(driver.answers.values()) == {CommitAnswer.COMMITTED}
        known = await store.known_runs([RunId(f"run-{n}") for n in (1, 2, 3)])
        assert {run.run_id: run.status for run in known} == {
            "run-1": Status.SUCCEEDED,
            "run-2": Status.CANCELLED,
            "run-3": Status.SUCCEEDED,
        }
        await stream.close(1.0)
        await keeper.stop()
        assert (await store.read_lane(fences[0].lane_id)).owner is None
    assert fatal == []
