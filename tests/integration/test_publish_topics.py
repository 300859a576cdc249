"""Station 12: topics created and checked on Apache Kafka."""

from __future__ import annotations

import time
from dataclasses import replace
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from session_custody.core.errors import Unavailable
from session_custody.devstack import Address
from session_custody.publish import TopicAdmin, Topics, Wanted
from session_custody.publish import topics as topics_module

pytestmark = pytest.mark.kafka


@pytest.fixture
def wanted() -> Wanted:
    name = f"t{uuid4().hex[:8]}"
    return Wanted(
        f"{name}.runs",
        Topics(f"{name}.steps", f"{name}.outcomes", f"{name}.dead", f"{name}.cursors"),
        partitions=3,
    )


def make(server: Address, *topics: NewTopic) -> None:
    """By hand, and known to the broker."""
    admin = AdminClient({"bootstrap.servers": server.url})
    for future in admin.create_topics(list(topics), operation_timeout=10).values():
        future.result(20)
    deadline = time.monotonic() + 20
    while not {topic.topic for topic in topics} <= set(admin.list_topics(timeout=10).topics):
        assert time.monotonic() < deadline, "a topic is not known"


def test_what_create_makes_passes_the_check(kafka_server: Address, wanted: Wanted) -> None:
    admin = TopicAdmin({"bootstrap.servers": kafka_server.url}, wanted)
    assert {finding.problem for finding in admin.check()} == {"is not there"}
    assert list(admin.create(dry_run=True)) == list(wanted.names)
    assert admin.topic_ids() == {}, "a dry run makes nothing"
    assert list(admin.create()) == list(wanted.names)
    assert list(admin.check()) == []
    assert list(admin.create()) == [], "a second time there is nothing to do"
    assert set(admin.topic_ids()) == set(wanted.names)
    assert admin.facts()[wanted.outputs.cursors].partitions == 3
    assert admin.cluster_id() == TopicAdmin({"bootstrap.servers": kafka_server.url}, wanted).cluster_id()


def test_cursors_follow_the_input_that_is_there(kafka_server: Address, wanted: Wanted) -> None:
    make(kafka_server, NewTopic(wanted.runs, 5, 1))
    admin = TopicAdmin({"bootstrap.servers": kafka_server.url}, wanted)
    admin.create()
    assert admin.facts()[wanted.outputs.cursors].partitions == 5


def test_a_cursor_topic_that_could_lose_a_cursor_is_found(kafka_server: Address, wanted: Wanted) -> None:
    cursors, steps = wanted.outputs.cursors, wanted.outputs.steps
    compacted = {"cleanup.policy": "compact"}
    make(kafka_server, NewTopic(cursors, 1, 1), NewTopic(steps, 3, 1, config=compacted))
    admin = TopicAdmin({"bootstrap.servers": kafka_server.url}, replace(wanted, replication_factor=2))
    found = [(finding.topic, finding.problem.split(":")[0]) for finding in admin.check()]
    assert (cursors, "is not compacted only") in found
    assert (cursors, "is compacted too early") in found
    assert (steps, "is compacted") in found
    assert (cursors, "has 1 replica(s), CUSTODY_KAFKA__REPLICATION_FACTOR says 2") in [
        (finding.topic, finding.problem) for finding in admin.check()
    ]


def test_an_unreachable_broker_names_the_setting(wanted: Wanted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "ANSWER_S", 1.0)
    admin = TopicAdmin({"bootstrap.servers": "127.0.0.1:1"}, wanted)
    with pytest.raises(Unavailable, match="CUSTODY_KAFKA__BOOTSTRAP_SERVERS"):
        admin.check()
