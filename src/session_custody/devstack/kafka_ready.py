"""Whether a cluster commits transactions."""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

LOOK_WAIT_S: Final = 2.0
TRANSACTION_WAIT_S: Final = 5.0
TOPIC: Final = "custody-devstack-ready"


def transaction_commits(bootstrap: str, brokers: int) -> bool:
    """Commit one transaction of one record in a topic that is removed again.

    False (try again) as long as fewer than `brokers` are registered or anything fails.
    """
    from confluent_kafka import KafkaException, Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "log_level": 0,  # brokers that are not up yet are no news
        "error_cb": lambda _error: None,
        "reconnect.backoff.max.ms": 200,
    }
    topic = f"{TOPIC}-{uuid4().hex[:8]}"
    admin = AdminClient(settings)
    try:
        if len(admin.list_topics(timeout=LOOK_WAIT_S).brokers) < brokers:
            return False
        new = NewTopic(topic, num_partitions=1, replication_factor=-1)
        admin.create_topics([new], operation_timeout=LOOK_WAIT_S)[topic].result(TRANSACTION_WAIT_S)
        try:
            producer = Producer({**settings, "transactional.id": TOPIC, "linger.ms": 0})
            producer.init_transactions(TRANSACTION_WAIT_S)
            producer.begin_transaction()
            producer.produce(topic, b"ready")
            producer.commit_transaction(TRANSACTION_WAIT_S)
        finally:
            admin.delete_topics([topic], operation_timeout=LOOK_WAIT_S)[topic].result(TRANSACTION_WAIT_S)
    except (KafkaException, TimeoutError):
        return False
    return True
