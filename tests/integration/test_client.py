"""API 2 against a real broker: acknowledged starts, outcomes already there or still to come, named causes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Thread

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from session_custody import wire
from session_custody.client import (
    Answerer,
    CustodyClient,
    DeliveryFailed,
    InvalidRecord,
    NotAllDelivered,
    OutcomesUnreadable,
    OutcomeTimeout,
    RunStart,
    Subject,
)
from session_custody.client.outcomes import OutcomeReader
from session_custody.core import events
from session_custody.core.events import EventDraft, EventKind, RunFacts, RunResume
from session_custody.core.run import Status
from session_custody.devstack import Address
from session_custody.settings import KafkaSettings, TopicNames

pytestmark = pytest.mark.kafka

PARTITIONS = 4


class FixedSigner:
    key_id = "0" * 16

    def sign(self, event_hash: bytes) -> bytes:
        return event_hash * 2


@dataclass(frozen=True)
class Broker:
    settings: KafkaSettings

    @property
    def runs(self) -> str:
        return self.settings.topics.runs

    def records(self, count: int) -> list[tuple[int, bytes, bytes, dict[str, bytes]]]:
        """(partition, key, value, headers) of the first `count` input records."""
        consumer = Consumer(
            {"bootstrap.servers": self.settings.bootstrap_servers, "group.id": uuid.uuid4().hex}
        )
        try:
            consumer.assign([TopicPartition(self.runs, number, 0) for number in range(PARTITIONS)])
            found: list[tuple[int, bytes, bytes, dict[str, bytes]]] = []
            while len(found) < count:
                message = consumer.poll(20)
                assert message is not None, f"{len(found)} of {count} records"
                assert message.error() is None
                place, key, value = message.partition(), message.key(), message.value()
                assert place is not None
                assert key is not None
                assert value is not None
                found.append((place, key, value, headers_of(message)))
            return found
        finally:
            consumer.close()

    def publish_outcome(self, run_id: str, *, transactional_id: str | None = None) -> Producer | None:
        """An outcome on its topic; with a transactional id in a transaction that stays open: its producer."""
        options: dict[str, str] = {"bootstrap.servers": str(self.settings.bootstrap_servers)}
        if transactional_id is not None:
            options["transactional.id"] = transactional_id
        producer = Producer(options)
        if transactional_id is not None:
            producer.init_transactions(20)
            producer.begin_transaction()
        producer.produce(self.settings.topics.outcomes, key=run_id.encode(), value=outcome_value(run_id))
        assert producer.flush(20) == 0
        return producer if transactional_id is not None else None


def headers_of(message: Message) -> dict[str, bytes]:
    headers = message.headers()
    assert isinstance(headers, list)
    return {name: value for name, value in headers if isinstance(value, bytes)}


def start_of(run_id: str, **more: object) -> RunStart:
    fields = {
        "correlation_id": run_id,
        "session_id": "sess-88",
        "subject": Subject(id="u-17", tenant="bank-a"),
        "route_id": "fraud_investigate",
        "route_table_version": "2026.08.1",
        "model_profile": "reasoning-standard",
        "input": {"alert_id": "a-1", "note": "\x00"},
    }
    return RunStart.model_validate(fields | more)


def outcome_value(run_id: str) -> bytes:
    start = start_of(run_id).event()
    facts = RunFacts(run_id, run_id, "sess-88", "bank-a", start.subject, None, start.pin, None, None, None)
    draft = EventDraft(EventKind.OUTCOME, Status.SUCCEEDED, "loop", 3, visible={"text": "done"}, code="final")
    event = wire.seal(draft, facts, 5, b"p" * 32, datetime.now(UTC), FixedSigner(), bytes(16))
    return wire.published_value(
        event.schema_fingerprint, event.body, event.payload, event.salt, event.signature
    )


@pytest.fixture
def broker(kafka_server: Address) -> Iterator[Broker]:
    name = f"client-{uuid.uuid4().hex[:8]}"
    topics = TopicNames(
        runs=f"{name}.runs", steps=f"{name}.steps", outcomes=f"{name}.outcomes",
        dead_letters=f"{name}.dead", cursors=f"{name}.cursors",
    )  # fmt: skip
    admin = AdminClient({"bootstrap.servers": kafka_server.url})
    wanted = [NewTopic(topic, num_partitions=PARTITIONS) for topic in (topics.runs, topics.outcomes)]
    for made in admin.create_topics(wanted).values():
        made.result(20)
    yield Broker(KafkaSettings(bootstrap_servers=kafka_server.url, topics=topics))
    admin.delete_topics([topics.runs, topics.outcomes])


def test_a_start_is_there_when_start_returns(broker: Broker) -> None:
    with CustodyClient(broker.settings, source="//shop/orders") as client:
        assert client.start(start_of("run-1")) == "run-1"
        ((_, key, value, headers),) = broker.records(1)
    assert key == b"run-1"
    decoded = wire.decode_input(value)
    assert isinstance(decoded, events.RunStart)
    assert json.loads(decoded.input) == {"alert_id": "a-1", "note": "\x00"}
    assert headers["ce_id"] == b"run-1/start"
    assert headers["ce_source"] == b"//shop/orders"
    assert headers["ce_type"] == b"custody.run.start.v1"
    assert wire.input_headers(list(headers.items())).forbidden == ()


def test_a_run_and_what_is_said_to_it_share_a_partition_in_order(broker: Broker) -> None:
    with CustodyClient(broker.settings) as client:
        client.start(start_of("run-1"))
        client.resume("run-1")
        client.answer("run-1", question_id="q-1", answer="yes", by=Answerer(id="u-17", roles=("fraud_ops",)))
        client.cancel("run-1", reason="customer called")
        records = broker.records(4)
    assert len({partition for partition, *_ in records}) == 1
    said = [
        decoded
        for _, _, value, _ in records[1:]
        if isinstance(decoded := wire.decode_input(value), RunResume)
    ]
    assert [resume.kind.value for resume in said] == ["continue", "signal", "cancel"]
    assert said[1].answer == '"yes"'
    assert said[1].answered_by == Answerer(id="u-17", roles=("fraud_ops",))
    assert said[2].reason == "customer called"
    assert len({headers["ce_id"] for *_, headers in records}) == 4


def test_many_starts_are_acknowledged_beyond_the_queues_bound(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("session_custody.client.publishing.QUEUE_RECORDS_MAX", 50)
    names = [f"run-{number}" for number in range(500)]
    with CustodyClient(broker.settings) as client:
        assert client.start_many(map(start_of, names)) == names
        assert {key.decode() for _, key, _, _ in broker.records(500)} == set(names)


def test_an_invalid_start_is_never_sent(broker: Broker) -> None:
    with CustodyClient(broker.settings) as client:
        for more, path in (({"input": 2**60}, "input"), ({"tenant": "bank-b"}, "tenant")):
            with pytest.raises(InvalidRecord, match=f"^{path}: "):
                client.start(start_of("run-1", **more))
        client.start(start_of("run-2"))
        assert broker.records(1)[0][1] == b"run-2"


def test_an_outcome_that_is_there_already_is_found(broker: Broker) -> None:
    broker.publish_outcome("run-1")
    with CustodyClient(broker.settings) as client:
        outcome = client.wait("run-1", timeout=20)
    assert (outcome.run_id, outcome.status, outcome.event_seq) == ("run-1", Status.SUCCEEDED, 5)
    assert (outcome.payload, outcome.code) == ({"text": "done"}, "final")


def test_outcomes_to_come_are_waited_for(broker: Broker) -> None:
    seen: list[str] = []
    names = ["run-1", "run-2", "run-3"]
    later = Thread(target=lambda: [broker.publish_outcome(name) for name in names])
    with CustodyClient(broker.settings) as client:
        later.start()
        outcomes = client.wait_many(names, timeout=20, on_outcome=lambda outcome: seen.append(outcome.run_id))
    later.join()
    assert sorted(outcomes) == sorted(seen) == names


def test_a_missing_outcome_is_a_timeout_that_names_it(broker: Broker) -> None:
    broker.publish_outcome("run-1")
    with CustodyClient(broker.settings) as client, pytest.raises(TimeoutError, match="run-2") as caught:
        client.wait_many(["run-1", "run-2"], timeout=2)
    assert isinstance(caught.value, OutcomeTimeout)
    assert caught.value.missing == {"run-2"}
    assert set(caught.value.outcomes) == {"run-1"}


def test_an_aborted_outcome_is_no_outcome(broker: Broker) -> None:
    producer = broker.publish_outcome("run-1", transactional_id=f"t-{uuid.uuid4()}")
    assert producer is not None
    producer.abort_transaction(20)
    with CustodyClient(broker.settings) as client, pytest.raises(OutcomeTimeout):
        client.wait("run-1", timeout=2)


def test_a_time_bound_skips_nothing_that_was_still_open(broker: Broker) -> None:
    since = datetime.now(UTC) - timedelta(seconds=30)
    producer = broker.publish_outcome("run-1", transactional_id=f"t-{uuid.uuid4()}")
    assert producer is not None
    reader = OutcomeReader(broker.settings)
    try:
        reader.begin(
            since, 20
        )  # asked while the transaction is open: the record is there and not yet visible
        producer.commit_transaction(20)
        assert [key for key, _ in reader.read(20)] == [b"run-1"]
    finally:
        reader.close()


def test_a_time_bound_skips_what_is_older(broker: Broker) -> None:
    broker.publish_outcome("run-1")
    with CustodyClient(broker.settings) as client:
        assert (
            client.wait("run-1", timeout=20, since=datetime.now(UTC) - timedelta(minutes=1)).run_id == "run-1"
        )
        with pytest.raises(OutcomeTimeout):
            client.wait("run-1", timeout=2, since=datetime.now(UTC) + timedelta(minutes=1))


def test_a_missing_topic_names_itself(broker: Broker) -> None:
    topics = broker.settings.topics.model_copy(
        update={"runs": "no-such-runs", "outcomes": "no-such-outcomes"}
    )
    with CustodyClient(broker.settings.model_copy(update={"topics": topics})) as client:
        with pytest.raises(OutcomesUnreadable, match="no-such-outcomes: UNKNOWN_TOPIC"):
            client.wait("run-1", timeout=5)
        with pytest.raises(DeliveryFailed) as caught:
            client.start(start_of("run-1"))
        assert caught.value.code in {"_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"}
        with pytest.raises(NotAllDelivered) as many:
            client.start_many([start_of("run-1"), start_of("run-2")])
        assert set(many.value.failed) == {"run-1", "run-2"}
        assert many.value.acknowledged == []


def test_nothing_is_sent_by_a_closed_client(broker: Broker) -> None:
    client = CustodyClient(broker.settings)
    client.close()
    client.close()
    with pytest.raises(Exception, match="closed"):
        client.start(start_of("run-1"))
