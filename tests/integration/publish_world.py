"""A lane for the publisher: rows and the lane row in a SQLite file, so they outlive a killed process."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID, uuid4

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from session_custody import wire
from session_custody.core.errors import LaneLost, RejectReason, Unavailable
from session_custody.core.events import EventDraft, EventKind, RunFacts
from session_custody.core.pin import LaneId, RunId, SentPin, Subject
from session_custody.core.run import Status
from session_custody.ports import (
    CursorCheck,
    LaneFence,
    LaneKey,
    LaneRow,
    OutboxDeadLetter,
    OutboxEvent,
    OutboxRow,
)
from session_custody.publish import LanePublisher, PublishSettings, Topics
from session_custody.publish.outbox import OutboxStore

with warnings.catch_warnings():  # it reads its own files by a function that Python calls old
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, TopicPartition

if TYPE_CHECKING:
    from kafka import ConsumerRecord

ROOT: Final = Path(__file__).parents[2]
LANE: Final = LaneId(1)
WAIT_S: Final = 40.0
SCHEMA: Final = """
create table lane (one integer primary key check (one = 1), topic text, store_id text, owner text,
  epoch integer, next_seq integer,
  published_seq integer, published_hash blob, cursor_offset integer, went_back integer,
  adopted_seq integer, adopted_hash blob);
create table row (lane_seq integer primary key, run_id text, event_seq integer, kind text, fingerprint blob,
  body blob, hash blob, salt blob, payload text, signature blob, recorded_at text, value blob);
"""


class Signer:
    key_id = "0123456789abcdef"

    def sign(self, event_hash: bytes) -> bytes:
        return b"signed" + event_hash


def facts_of(run_id: str) -> RunFacts:
    pin = SentPin(route_id="fraud", route_table_version="1", model_profile="small", policy_profile="ops")
    return RunFacts(run_id, run_id, "sess-1", None, Subject(id="u-1"), None, pin, None, None, None)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The database of one lane."""

    file: Path

    @classmethod
    def create(cls, file: Path, topic: str) -> Ledger:
        ledger = cls(file)
        with closing(sqlite3.connect(file, isolation_level=None)) as database:
            database.execute("pragma journal_mode = wal")
            database.executescript(SCHEMA)
        ledger.do(
            "insert into lane values (1, ?, ?, null, 0, 1, 0, null, 0, 0, null, null)", topic, str(uuid4())
        )
        return ledger

    def do(self, sql: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.file, isolation_level=None, timeout=30)) as database:
            database.row_factory = sqlite3.Row
            return database.execute(sql, values).fetchall()

    def lane(self) -> Any:
        return self.do("select * from lane")[0]

    def commit(self, count: int, runs: int = 4, payload: str = "x") -> None:
        """So many step rows, round robin over the runs; every run's events count up from 1."""
        first = self.lane()["next_seq"]
        for lane_seq in range(first, first + count):
            self._add(lane_seq, f"run-{lane_seq % runs}", EventKind.DECIDED, payload)
        self.do("update lane set next_seq = ?", first + count)

    def finish(self, run_id: str) -> None:
        lane_seq = self.lane()["next_seq"]
        self._add(lane_seq, run_id, EventKind.OUTCOME, "done")
        self.do("update lane set next_seq = ?", lane_seq + 1)

    def refuse_record(self, value: bytes) -> None:
        """One dead letter."""
        lane_seq = self.lane()["next_seq"]
        self.do(
            "insert into row (lane_seq, hash, recorded_at, value) values (?, ?, ?, ?)",
            lane_seq, os.urandom(32), datetime.now(UTC).isoformat(), value,
        )  # fmt: skip
        self.do("update lane set next_seq = ?", lane_seq + 1)

    def _add(self, lane_seq: int, run_id: str, kind: EventKind, payload: str) -> None:
        before = self.do(
            "select hash, event_seq from row where run_id = ? order by event_seq desc limit 1", run_id
        )
        event_seq = before[0]["event_seq"] + 1 if before else 2
        status = Status.SUCCEEDED if kind is EventKind.OUTCOME else Status.RUNNING
        draft = EventDraft(kind, status, "loop", 1, visible=payload)
        previous = before[0]["hash"] if before else b"p" * 32
        now = datetime.now(UTC)
        event = wire.seal(draft, facts_of(run_id), event_seq, previous, now, Signer(), os.urandom(16))
        self.do(
            "insert into row values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, null)",
            lane_seq, run_id, event_seq, kind.value, event.schema_fingerprint, event.body, event.hash,
            event.salt, event.payload, event.signature, now.isoformat(),
        )  # fmt: skip

    def lose_after(self, lane_seq: int) -> None:
        """The database goes back in time: later rows never happened."""
        self.do("delete from row where lane_seq > ?", lane_seq)
        self.do("update lane set next_seq = ?, published_seq = min(published_seq, ?)", lane_seq + 1, lane_seq)

    def acquire(self) -> LaneFence:
        owner = uuid4()
        self.do("update lane set owner = ?, epoch = epoch + 1", str(owner))
        lane = self.lane()
        return LaneFence(LANE, LaneKey("c", lane["topic"], 0), owner, lane["epoch"], "t")

    def adopt(self, seq: int, hash_: bytes | None, floor: int, epoch: int = 0) -> None:
        """`lane adopt-floor` as the store does it."""
        self.do(
            "update lane set adopted_seq = ?, adopted_hash = ?, published_seq = ?, owner = null, "
            "went_back = 0, "
            "next_seq = max(next_seq, ? + 1, ? + 1), epoch = max(epoch, ?) + 1",
            seq, hash_, floor, seq, floor, epoch,
        )  # fmt: skip


@dataclass(slots=True)
class LedgerStore:
    """`OutboxStore` over a ledger. `down` makes every call an outage."""

    ledger: Ledger
    down: bool = False
    floor_down: bool = False
    asked: list[str] = field(default_factory=list)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.down:
            raise Unavailable("postgres")

    async def read_lane(self, lane_id: LaneId) -> LaneRow:
        self._ask("read_lane")
        return self._row()

    def _row(self) -> LaneRow:
        lane = self.ledger.lane()
        return LaneRow(
            LANE, LaneKey("c", lane["topic"], 0), "t", lane["epoch"], _owner(lane), None, lane["next_seq"], 0,
            lane["published_seq"], 0, lane["cursor_offset"], 0, bool(lane["went_back"]), None,
        )  # fmt: skip

    async def heartbeat(self, fence: LaneFence, *, clear_unclean: bool) -> LaneRow:
        self._ask("heartbeat")
        self._fenced(fence, "update lane set owner = owner")
        return self._row()

    async def outbox(self, lane_id: LaneId, after_seq: int, limit: int) -> Sequence[OutboxRow]:
        self._ask("outbox")
        rows = self.ledger.do(
            "select * from row where lane_seq > ? order by lane_seq limit ?", after_seq, limit
        )
        return [_outbox_row(row) for row in rows]

    async def check_cursor(self, lane_id: LaneId, cursor_seq: int | None) -> CursorCheck:
        self._ask("check_cursor")
        lane = self.ledger.lane()
        found = self.ledger.do("select hash from row where lane_seq = ?", cursor_seq)
        return CursorCheck(
            _owner(lane), lane["epoch"], lane["published_seq"], lane["published_hash"], lane["next_seq"],
            bool(lane["went_back"]), found[0]["hash"] if found else None, lane["adopted_seq"],
            lane["adopted_hash"],
        )  # fmt: skip

    async def save_floor(self, fence: LaneFence, seq: int, hash_: bytes, cursor_offset: int) -> None:
        self._ask("save_floor")
        if self.floor_down:
            raise Unavailable("postgres")
        sql = "update lane set published_seq = max(published_seq, ?), published_hash = ?, cursor_offset = ?"
        self._fenced(fence, sql, seq, hash_, cursor_offset)

    async def mark_went_back(self, fence: LaneFence) -> None:
        self._ask("mark_went_back")
        self._fenced(fence, "update lane set went_back = 1")

    async def store_id(self) -> UUID:
        return UUID(self.ledger.lane()["store_id"])

    def _fenced(self, fence: LaneFence, sql: str, *values: object) -> None:
        found = self.ledger.do(f"{sql} where owner = ? returning owner", *values, str(fence.owner))
        if not found:
            fence.lost = True
            fence.gate_open = False
            fence.on_lost()
            raise LaneLost(fence.lane_id)


def _owner(lane: Any) -> UUID | None:
    return UUID(lane["owner"]) if lane["owner"] else None


def _outbox_row(row: Any) -> OutboxRow:
    recorded_at = datetime.fromisoformat(row["recorded_at"])
    if row["run_id"] is None:
        return OutboxDeadLetter(
            row["lane_seq"], UUID(bytes=row["hash"][:16]), RejectReason.UNDECODABLE, "no record",
            "custody.runs", 0, row["lane_seq"], b"key", row["value"], [("ce_id", b"1")], recorded_at, None,
            None, row["hash"],
        )  # fmt: skip
    return OutboxEvent(
        row["lane_seq"], RunId(row["run_id"]), row["run_id"], row["event_seq"], EventKind(row["kind"]),
        row["fingerprint"], row["body"], row["hash"], row["salt"], row["payload"], row["signature"],
        recorded_at, None,
    )  # fmt: skip


def topics_of(name: str) -> Topics:
    return Topics(f"{name}.steps", f"{name}.outcomes", f"{name}.dead", f"{name}.cursors")


@dataclass(frozen=True, slots=True)
class World:
    """One lane with topics of its own on a real broker."""

    brokers: str
    name: str
    topics: Topics
    ledger: Ledger

    @classmethod
    def create(cls, brokers: str, folder: Path, **steps_config: str) -> World:
        name = f"p{uuid4().hex[:8]}"
        topics = topics_of(name)
        admin = AdminClient({"bootstrap.servers": brokers})
        new = [
            NewTopic(topics.steps, 3, 1, config=steps_config),
            NewTopic(topics.outcomes, 3, 1),
            NewTopic(topics.dead_letters, 1, 1, config=steps_config),
            NewTopic(topics.cursors, 1, 1, config={"cleanup.policy": "compact"}),
        ]
        for future in admin.create_topics(new, operation_timeout=10).values():
            future.result(20)
        return cls(brokers, name, topics, Ledger.create(folder / f"{name}.sqlite", f"{name}.runs"))

    def settings(self, **more: Any) -> PublishSettings:
        quick: dict[str, Any] = {
            "group": self.name, "transaction_timeout_s": 5.0, "poll_s": 0.05, "floor_every_s": 0.05,
            "recheck_s": 0.05, "backoff_max_s": 0.5, **more,
        }  # fmt: skip
        return PublishSettings(**quick)

    def publisher(self, fence: LaneFence, store: OutboxStore | None = None, **settings: Any) -> LanePublisher:
        return LanePublisher(
            fence, store or LedgerStore(self.ledger), {"bootstrap.servers": self.brokers}, self.topics,
            "test", self.settings(**settings),
        )  # fmt: skip

    def records(self, topic: str, isolation: str = "read_committed") -> list[ConsumerRecord]:
        """Everything that another client library sees, up to the end as it is now."""
        with KafkaConsumer(
            bootstrap_servers=self.brokers, isolation_level=isolation, auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:  # fmt: skip
            places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
            consumer.assign(places)
            ends = consumer.end_offsets(places)
            found: list[ConsumerRecord] = []
            deadline = time.monotonic() + WAIT_S
            while any(consumer.position(place) < ends[place] for place in places):
                assert time.monotonic() < deadline, "the records did not come"
                for records in consumer.poll(timeout_ms=100).values():
                    found.extend(records)
            return found

    def check_published(self) -> list[ConsumerRecord]:
        """Every row once, none missing, each run's in order and chained. Returns the step records."""
        rows = self.ledger.do("select * from row order by lane_seq")
        steps, outcomes = self.records(self.topics.steps), self.records(self.topics.outcomes)
        dead = self.records(self.topics.dead_letters)
        expected = [row["hash"].hex() for row in rows if row["run_id"]]
        assert sorted(hash_of(record) for record in (*steps, *outcomes)) == sorted(expected)
        assert len(dead) == sum(row["run_id"] is None for row in rows)
        for run_id in {row["run_id"] for row in rows if row["run_id"]}:
            in_steps, in_outcomes = (
                [int(header(record, "ce_sequence")) for record in records if record.key == run_id.encode()]
                for records in (steps, outcomes)
            )
            assert in_steps == sorted(in_steps), "the order within a run"
            numbers = sorted(in_steps + in_outcomes)
            assert numbers == list(range(2, 2 + len(numbers))), "no gap over all topics"
        return steps


def header(record: ConsumerRecord, name: str) -> bytes:
    value = dict(record.headers)[name]
    assert value is not None
    return value


def hash_of(record: ConsumerRecord) -> str:
    return header(record, "custody_event_hash").decode()


async def until(condition: Callable[[], object], what: str, wait_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.01)


def child(world: World, fault: str = "", **settings: object) -> subprocess.Popen[bytes]:
    """See `publish_child`; returns when it owns the lane."""
    spec = {"brokers": world.brokers, "name": world.name, "file": str(world.ledger.file), "fault": fault}
    argument = json.dumps({"spec": spec, "settings": settings})
    epoch = world.ledger.lane()["epoch"]
    process = subprocess.Popen([sys.executable, "-m", "tests.integration.publish_child", argument], cwd=ROOT)
    deadline = time.monotonic() + WAIT_S
    while world.ledger.lane()["epoch"] == epoch:
        assert process.poll() is None, "the child ended"
        assert time.monotonic() < deadline, "the child does not acquire the lane"
        time.sleep(0.02)
    return process


class Running:
    """A publisher at work: `async with Running(publisher, fence)`; closed at the end."""

    def __init__(self, publisher: LanePublisher, fence: LaneFence) -> None:
        self.publisher = publisher
        self.fence = fence
        self.task = asyncio.ensure_future(publisher.run(fence))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.publisher.close(5.0)
        await self.task
