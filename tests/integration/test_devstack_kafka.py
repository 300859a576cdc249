"""Apache Kafka from the JRE wheel: data through restarts and kills, three nodes, what it listens on."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from session_custody.devstack import KafkaConfig, KafkaServer
from session_custody.devstack.account import server_account
from tests.integration.devstack_proc import is_dead, listening

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    with KafkaServer() as started:
        yield started


def create_topic(bootstrap: str, replicas: int = 1) -> str:
    name = f"devstack-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, replicas)])[name].result(20)
    return name


def transaction(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.commit_transaction(30)


def committed(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    """The first `count` records that a read_committed consumer sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid4().hex,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        seen: list[bytes | None] = []
        for _ in range(100):
            record = consumer.poll(0.3)
            if record is not None and record.error() is None:
                seen.append(record.value())
            if len(seen) == count:
                break
        return seen
    finally:
        consumer.close()


def test_transactions_outlive_a_restart_and_a_sigkill_on_the_same_port(server: KafkaServer) -> None:
    before, cluster = server.address, server.cluster_id
    topic = create_topic(before.url)
    transaction(before.url, topic, b"one")
    server.restart()
    transaction(before.url, topic, b"two")
    killed = server.pid
    server.kill()
    assert is_dead(killed)
    assert server.start() == before
    transaction(before.url, topic, b"three")
    assert committed(before.url, topic, 3) == [b"one", b"two", b"three"]
    assert AdminClient({"bootstrap.servers": before.url}).describe_cluster().result(20).cluster_id == cluster


def test_every_cluster_has_an_id_of_its_own(server: KafkaServer) -> None:
    other = KafkaServer()
    try:
        assert other.cluster_id != server.cluster_id
    finally:
        other.close()


def test_it_listens_on_the_loopback_address_only(server: KafkaServer) -> None:
    assert {address.rpartition(":")[0] for address in listening(server.pid)} == {"127.0.0.1"}


def test_data_belong_to_the_servers_user_and_the_classes_do_not(server: KafkaServer) -> None:
    account = server_account()
    owner = account.uid if account else os.getuid()
    assert Path(f"/proc/{server.pid}").stat().st_uid == owner
    for folder in (server.home.data, server.home.data / "node-1", server.home.data / "node-1/log"):
        found = folder.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, owner)
    command = Path(f"/proc/{server.pid}/cmdline").read_bytes().split(b"\0")
    jars = command[command.index(b"-cp") + 1].decode().split(":")
    assert len(jars) == 45
    for path in (*jars, command[0].decode()):
        found = Path(path).stat()
        assert found.st_uid in {0, os.getuid()}
        assert not found.st_mode & 0o022


def test_no_topic_is_left_by_the_look_whether_it_is_ready(server: KafkaServer) -> None:
    topics = AdminClient({"bootstrap.servers": server.address.url}).list_topics(timeout=20).topics
    assert not [name for name in topics if name.startswith("custody-devstack")]


def test_a_stopped_node_is_a_signal_away(server: KafkaServer) -> None:
    server.signal("SIGSTOP")
    assert Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "S"}
    server.signal("SIGCONT")
    topic = create_topic(server.address.url)
    transaction(server.address.url, topic, b"goes on")
    assert committed(server.address.url, topic, 1) == [b"goes on"]


def test_a_server_killed_by_somebody_else_is_noticed_and_started_again(server: KafkaServer) -> None:
    killed = server.pid
    os.kill(killed, signal.SIGKILL)
    assert server.ended(10)
    server.start()
    assert server.pid != killed


@pytest.mark.timeout(240)
@pytest.mark.crash
def test_three_nodes_commit_on_while_one_is_killed_and_comes_back() -> None:
    with KafkaServer(KafkaConfig(nodes=3, heap_mb=256)) as cluster:
        bootstrap = cluster.address.url
        assert len(bootstrap.split(",")) == 3
        topic = create_topic(bootstrap, replicas=3)
        transaction(bootstrap, topic, b"three up")
        killed = cluster.pids[2]
        cluster.kill_node(2)
        assert is_dead(killed)
        transaction(bootstrap, topic, b"two up")
        cluster.start_node(2)
        assert sorted(cluster.pids) == [1, 2, 3]
        transaction(bootstrap, topic, b"three again")
        assert committed(bootstrap, topic, 3) == [b"three up", b"two up", b"three again"]
