"""Station 12, its smaller parts without a broker: errors, trouble, stubs, thread, floor, findings."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from confluent_kafka import KafkaError

from session_custody import wire
from session_custody.core.errors import LaneLost, RejectReason, SettingsError, Unavailable
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
from session_custody.publish import PublishSettings, Topics, Wanted, options
from session_custody.publish.floor import Floor, FloorKeeper
from session_custody.publish.protocol import Damaged, Entry
from session_custody.publish.records import Cut, Frames
from session_custody.publish.refusals import setting_of, told
from session_custody.publish.shown import summed_up
from session_custody.publish.thread import OneThread
from session_custody.publish.topics import COMPACTION_LAG_MS, TopicFacts, findings
from session_custody.publish.trouble import Trouble
from session_custody.settings.kafka import OWNED_OPTIONS

NOW = datetime(2026, 8, 14, 2, 11, 5, tzinfo=UTC)
FRAMES = Frames(Topics(), "prod", "custody", "com.bank")


# ------------------------------------------------------------------ errors name the setting


@pytest.mark.parametrize(
    ("code", "setting"),
    [
        (KafkaError._AUTHENTICATION, "CUSTODY_KAFKA__SASL_USERNAME"),
        (KafkaError._SSL, "CUSTODY_KAFKA__SSL_CA_FILE"),
        (KafkaError._TRANSPORT, "CUSTODY_KAFKA__BOOTSTRAP_SERVERS"),
        (KafkaError._ALL_BROKERS_DOWN, "CUSTODY_KAFKA__BOOTSTRAP_SERVERS"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "CUSTODY_KAFKA__GROUP"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "CUSTODY_KAFKA__TOPICS"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "CUSTODY_KAFKA__TOPICS"),
        (KafkaError._UNKNOWN_PARTITION, "CUSTODY_KAFKA__TOPICS__CURSORS"),
    ],
)
def test_what_an_operator_can_mend_names_its_setting(code: int, setting: str) -> None:
    text = setting_of(KafkaError(code))
    assert text is not None
    assert text.startswith(f"{setting}: ")


def test_other_errors_are_told_by_name() -> None:
    assert told(KafkaError(KafkaError._TIMED_OUT)) == "Kafka said _TIMED_OUT"


# ------------------------------------------------------------------ options


def test_nothing_that_publication_owns_can_be_set_past_it() -> None:
    """Each option that carries a guarantee is refused in the settings, and wins over what is given here."""
    given: dict[str, str | int | bool] = {
        "bootstrap.servers": "b:1",
        "acks": "0",
        "isolation.level": "read_uncommitted",
        "linger.ms": 99,
    }
    made = options.transactional(
        given,
        transactional_id="custody.custody.runs.3",
        transaction_timeout_s=10,
        client_id="c",
        on_error=print,
    )
    assert (made["bootstrap.servers"], made["acks"], made["linger.ms"]) == ("b:1", "all", 0)
    reader = options.cursor_reader(given, group="custody", client_id="c", on_error=print)
    assert reader["isolation.level"] == "read_committed"
    for name in ("acks", "transactional.id", "transaction.timeout.ms", "partitioner", "enable.idempotence"):
        assert name in made
        assert name in OWNED_OPTIONS
    assert {"enable.auto.commit", "auto.offset.reset"} <= set(reader) & set(OWNED_OPTIONS)


def test_a_long_transaction_timeout_is_refused() -> None:
    with pytest.raises(SettingsError, match="transaction_timeout_s"):
        PublishSettings("custody", transaction_timeout_s=60)


# ------------------------------------------------------------------ trouble


def test_many_failures_in_a_short_time_are_trouble_and_name_the_setting() -> None:
    now = 100.0
    settings = PublishSettings("g", rebuilds_red=3, rebuilds_window_s=60)
    trouble = Trouble(settings, monotonic=lambda: now)
    trouble.failed("Kafka said _TIMED_OUT")
    trouble.failed("Kafka said _TIMED_OUT")
    early = trouble.detail
    trouble.heard("CUSTODY_KAFKA__SASL_USERNAME: refused")
    trouble.failed("Kafka said _TIMED_OUT")
    assert trouble.detail == "CUSTODY_KAFKA__SASL_USERNAME: refused"
    trouble.failed("CUSTODY_KAFKA__TOPICS: no right")
    assert trouble.detail == "CUSTODY_KAFKA__TOPICS: no right", "what the failure itself names comes first"
    assert early is None, "two are not many"
    now += 61
    assert trouble.detail is None, "it is long ago"


def test_waits_double_up_to_a_bound_and_begin_anew_when_it_went_well() -> None:
    settings = PublishSettings("g", backoff_first_s=0.1, backoff_max_s=1.0)
    trouble = Trouble(settings)
    waits = []
    for _ in range(12):
        trouble.failed("x")
        waits.append(trouble.wait_s())
    assert 0.05 <= waits[0] <= 0.1
    assert all(0.5 <= wait <= 1.0 for wait in waits[5:])
    trouble.went_well()
    trouble.failed("x")
    assert trouble.wait_s() <= 0.1


# ------------------------------------------------------------------ records and stubs


class Signer:
    key_id = "k"

    def sign(self, event_hash: bytes) -> bytes:
        return b"s" + event_hash


def event(kind: EventKind = EventKind.DECIDED, visible: str | None = "shown") -> OutboxEvent:
    pin = SentPin(route_id="fraud", route_table_version="1", model_profile="small", policy_profile="ops")
    facts = RunFacts("run-1", "run-1", None, None, Subject(id="u"), None, pin, None, None, None)
    status = Status.SUCCEEDED if kind is EventKind.OUTCOME else Status.RUNNING
    sealed = wire.seal(
        EventDraft(kind, status, "loop", 1, visible=visible), facts, 4, b"p" * 32, NOW, Signer(), b"r" * 16
    )
    return OutboxEvent(
        9, RunId("run-1"), "run-1", 4, kind, sealed.schema_fingerprint, sealed.body, sealed.hash, sealed.salt,
        sealed.payload, sealed.signature, NOW, None,
    )  # fmt: skip


def dead_letter(value: bytes | None = b"\x00exact") -> OutboxDeadLetter:
    return OutboxDeadLetter(
        10, UUID(int=1), RejectReason.UNDECODABLE, "d" * 900, "custody.runs", 2, 77, b"its key", value,
        [("ce_id", b"1")], NOW, None, "run-1", b"h" * 32,
    )  # fmt: skip


def test_topics_and_keys() -> None:
    step, outcome = FRAMES.record(event()), FRAMES.record(event(EventKind.OUTCOME))
    assert (step.topic, step.key) == ("custody.steps", b"run-1")
    assert (outcome.topic, outcome.key) == ("custody.outcomes", b"run-1")
    assert dict(step.headers)["ce_type"] == b"com.bank.run.decided.v1"
    dead = FRAMES.record(dead_letter())
    assert (dead.topic, dead.key, dead.value) == ("custody.dead-letters", b"its key", b"\x00exact")


def test_the_same_row_gives_the_same_bytes_every_time() -> None:
    row = event()
    assert FRAMES.record(row) == FRAMES.record(row)


def test_a_stub_of_an_event_keeps_its_hash_and_its_payloads_digest() -> None:
    row = event()
    whole, stub = FRAMES.record(row), FRAMES.record(row, Cut(1, "msg_size_too_large"))
    assert stub.value is not None
    assert wire.decode_event(stub.value)["payload"] is None
    assert hashlib.sha256(wire.hashed_body(stub.value)).digest() == row.hash
    headers = dict(stub.headers)
    assert headers["custody_stub"] == b"msg_size_too_large"
    assert headers["custody_stub_bytes"] == str(len(whole.value or b"")).encode()
    assert headers["ce_id"] == dict(whole.headers)["ce_id"]


def test_the_last_stub_of_an_event_still_names_its_hash() -> None:
    row = event()
    stub = FRAMES.record(row, Cut(2, "invalid_record"))
    assert stub.value is None
    assert dict(stub.headers)["custody_event_hash"].decode() == row.hash.hex()


def test_stubs_of_a_dead_letter_name_the_digest_of_what_was_left_out() -> None:
    row = dead_letter()
    for level, key in ((1, b"its key"), (2, None)):
        stub = FRAMES.record(row, Cut(level, "msg_size_too_large"))
        headers = dict(stub.headers)
        assert (stub.key, stub.value) == (key, None)
        assert headers["custody_stub_sha256"].decode() == hashlib.sha256(b"\x00exact").hexdigest()
        assert headers["custody_dlq_reason"] == b"undecodable"
        assert ("ce_id" in headers) == (level == 1)


# ------------------------------------------------------------------ the thread


def test_calls_run_one_at_a_time_in_order_and_errors_come_back() -> None:
    async def story() -> list[object]:
        thread = OneThread("publish test")
        order: list[object] = []

        def fail() -> None:
            order.append("failed")
            raise ValueError("ours")

        futures = [thread.post(lambda n=n: order.append(n)) for n in range(5)]  # type: ignore[misc]
        with pytest.raises(ValueError, match="ours"):
            await thread.call(fail)
        assert all(future.done() for future in futures)
        order.append(await thread.call(threading.current_thread) is not threading.current_thread())
        thread.end()
        return order

    assert asyncio.run(story()) == [0, 1, 2, 3, 4, "failed", True]


# ------------------------------------------------------------------ the floor


class FloorStore:
    """Only what the floor needs."""

    def __init__(self, answers: list[Exception | None]) -> None:
        self.answers = answers
        self.saved: list[int] = []

    async def save_floor(self, fence: LaneFence, seq: int, hash_: bytes, cursor_offset: int) -> None:
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        self.saved.append(seq)

    async def read_lane(self, lane_id: LaneId) -> LaneRow:
        raise NotImplementedError

    async def heartbeat(self, fence: LaneFence, *, clear_unclean: bool) -> LaneRow:
        raise NotImplementedError

    async def outbox(self, lane_id: LaneId, after_seq: int, limit: int) -> list[OutboxRow]:
        raise NotImplementedError

    async def check_cursor(self, lane_id: LaneId, cursor_seq: int | None) -> CursorCheck:
        raise NotImplementedError

    async def mark_went_back(self, fence: LaneFence) -> None:
        raise NotImplementedError

    async def store_id(self) -> UUID:
        raise NotImplementedError


def keeper(store: FloorStore) -> FloorKeeper:
    fence = LaneFence(LaneId(1), LaneKey("c", "t", 0), uuid4(), 1, "id")
    return FloorKeeper(fence, store, 0.0)


def test_only_the_newest_floor_is_saved_and_an_outage_keeps_it() -> None:
    async def story() -> FloorStore:
        store = FloorStore([Unavailable("postgres"), None])
        floor = keeper(store)
        floor.note(Floor(1, b"", 1))
        floor.note(Floor(2, b"", 2))
        assert not await floor.save()
        assert await floor.save()
        assert await floor.save(), "nothing is pending"
        return store

    assert asyncio.run(story()).saved == [2]


def test_a_broken_connection_drops_the_floor_and_a_lost_lane_ends_its_keeper() -> None:
    async def story() -> FloorStore:
        store = FloorStore([LaneLost(1)])
        floor = keeper(store)
        floor.note(Floor(1, b"", 1))
        floor.drop()
        assert await floor.save()
        floor.note(Floor(2, b"", 2))
        await asyncio.wait_for(floor.keep(), 10)
        return store

    assert asyncio.run(story()).saved == []


# ------------------------------------------------------------------ what Kafka shows, what topics lack


def test_what_kafka_shows_is_the_last_cursor_and_the_highest_epoch() -> None:
    store, owner = uuid4(), uuid4()
    entries = [
        Entry(3, wire.Cursor(7, b"7" * 32, store, 4, owner)),
        Entry(5, wire.Claim(owner, 9, uuid4(), store)),
        Entry(6, Damaged("x")),
        Entry(8, wire.Cursor(8, b"8" * 32, store, 6, owner)),
    ]
    shown = summed_up(entries)
    assert shown.cursor is not None
    assert (shown.cursor.lane_seq, shown.cursor_offset, shown.epoch, shown.damaged) == (8, 8, 9, 1)
    assert summed_up([]).cursor is None


GOOD = TopicFacts("id", 12, 3, {"cleanup.policy": "delete", "max.message.bytes": "1048588"})
WANTED = Wanted("custody.runs", Topics(), replication_factor=3)
ALL_GOOD = {
    **dict.fromkeys(WANTED.names, GOOD),
    "custody.dead-letters": replace(GOOD, config={**GOOD.config, "max.message.bytes": "2101248"}),
    "custody.cursors": replace(
        GOOD, config={"cleanup.policy": "compact", "min.compaction.lag.ms": str(COMPACTION_LAG_MS)}
    ),
}


def test_topics_as_they_must_be_have_no_findings() -> None:
    assert list(findings(WANTED, ALL_GOOD)) == []


@pytest.mark.parametrize(
    ("topic", "facts", "word"),
    [
        ("custody.cursors", None, "is not there"),
        ("custody.cursors", replace(ALL_GOOD["custody.cursors"], partitions=3), "12 lanes"),
        (
            "custody.cursors",
            replace(ALL_GOOD["custody.cursors"], config={"cleanup.policy": "compact,delete"}),
            "not compacted only",
        ),
        (
            "custody.cursors",
            replace(ALL_GOOD["custody.cursors"], config={"cleanup.policy": "compact"}),
            "too early",
        ),
        ("custody.steps", replace(GOOD, config={"cleanup.policy": "compact"}), "is compacted"),
        ("custody.outcomes", replace(GOOD, replicas=1), "1 replica"),
        ("custody.dead-letters", GOOD, "no larger records"),
    ],
)
def test_what_a_topic_lacks_is_found_and_has_a_cure(topic: str, facts: TopicFacts | None, word: str) -> None:
    there = {name: known for name, known in ALL_GOOD.items() if name != topic}
    if facts is not None:
        there[topic] = facts
    found = [finding for finding in findings(WANTED, there) if word in finding.problem]
    assert [finding.topic for finding in found] == [topic]
    assert found[0].cure
