"""API 6 from topics alone: what is committed is checked, what was aborted is not there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from session_custody import wire
from session_custody.audit import verify_topics
from session_custody.core.errors import SettingsError, Unavailable
from session_custody.core.events import EventDraft, EventKind, RunFacts, SealedEvent
from session_custody.core.pin import SentPin, Subject
from session_custody.core.run import Status
from session_custody.devstack import Address
from session_custody.settings import AuditSettings, KafkaSettings, Settings, TopicNames

pytestmark = pytest.mark.kafka

PIN = SentPin(route_id="r", route_table_version="1", model_profile="m")
KINDS = (
    (EventKind.PINNED, Status.QUEUED),
    (EventKind.DECIDED, Status.RUNNING),
    (EventKind.OUTCOME, Status.FAILED),
)


@pytest.fixture
def settings(kafka_server: Address, tmp_path: Path) -> Iterator[Settings]:
    name = f"audit-{uuid.uuid4().hex[:8]}"
    topics = TopicNames(
        runs=f"{name}.runs", steps=f"{name}.steps", outcomes=f"{name}.outcomes",
        dead_letters=f"{name}.dead", cursors=f"{name}.cursors",
    )  # fmt: skip
    admin = AdminClient({"bootstrap.servers": kafka_server.url})
    for made in admin.create_topics(
        [NewTopic(topic, 3) for topic in (topics.steps, topics.outcomes)]
    ).values():
        made.result(20)
    wire.generate_signing_key(tmp_path / "key.pem").export_public_key(tmp_path / "public")
    yield Settings(
        kafka=KafkaSettings(bootstrap_servers=kafka_server.url, topics=topics),
        audit=AuditSettings(signing_key_file=tmp_path / "key.pem", public_keys_dir=tmp_path / "public"),
    )
    admin.delete_topics([topics.steps, topics.outcomes])


def publish(
    settings: Settings, run_ids: list[str], *, abort: bool = False, leave_out: int | None = None
) -> None:
    """Whole runs, published in one transaction as custody does it."""
    key_file = settings.audit.signing_key_file
    assert key_file is not None
    signer = wire.Ed25519Signer.from_pem_file(key_file)
    brokers = settings.kafka.connection_options()
    producer = Producer({**brokers, "transactional.id": f"t-{uuid.uuid4()}", "partitioner": "murmur2_random"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for run_id in run_ids:
        facts = RunFacts(run_id, run_id, None, None, Subject(id="u"), None, PIN, None, None, None)
        previous: SealedEvent | None = None
        for seq, (kind, status) in enumerate(KINDS, 1):
            draft = EventDraft(kind, status, "loop", 0)
            hash_ = None if previous is None else previous.hash
            event = wire.seal(draft, facts, seq, hash_, datetime.now(UTC), signer, os.urandom(16))
            topics = settings.kafka.topics
            topic = topics.outcomes if kind is EventKind.OUTCOME else topics.steps
            value = wire.published_value(
                event.schema_fingerprint, event.body, event.payload, event.salt, event.signature
            )
            if seq != leave_out:
                producer.produce(topic, key=run_id.encode(), value=value)
            previous = event
    if abort:
        producer.flush(20)
        producer.abort_transaction(20)
    else:
        producer.commit_transaction(20)


def test_what_was_committed_is_checked_and_what_was_aborted_is_not_there(settings: Settings) -> None:
    publish(settings, [f"run-{number}" for number in range(20)])
    publish(settings, ["run-0", "run-x"], abort=True)
    report = verify_topics(settings, expect_outcomes=True)
    assert report.findings == ()
    assert (report.ok, report.runs, report.events) == (True, 20, 60)


def test_a_gap_on_the_topic_is_found(settings: Settings) -> None:
    publish(settings, ["run-1"])
    publish(settings, ["run-2"], leave_out=2)
    report = verify_topics(settings)
    assert (report.ok, report.gaps) == (False, 1)
    assert report.findings[0].run_id == "run-2"


def test_a_time_bound_reads_no_older_events(settings: Settings) -> None:
    publish(settings, ["run-1"])
    assert verify_topics(settings, timedelta(minutes=5)).runs == 1
    assert verify_topics(settings, timedelta(minutes=-5)).runs == 0


def test_empty_topics_are_clean(settings: Settings) -> None:
    report = verify_topics(settings)
    assert (report.ok, report.events) == (True, 0)


def test_a_missing_topic_and_missing_keys_are_named(settings: Settings) -> None:
    topics = settings.kafka.topics.model_copy(update={"outcomes": "no-such-outcomes"})
    elsewhere = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"topics": topics})})
    with pytest.raises(Unavailable, match="no-such-outcomes"):
        verify_topics(elsewhere)
    with pytest.raises(SettingsError, match="CUSTODY_AUDIT__PUBLIC_KEYS_DIR"):
        verify_topics(settings.model_copy(update={"audit": AuditSettings()}))
