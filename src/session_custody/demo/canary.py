"""Records that must never be seen: written in transactions that are aborted, so that the judge's check can
fail.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import Producer

from session_custody.settings import Settings

ABORTED: Final = 5
LIMIT_S: Final = 30.0
MARK: Final = "custody_demo_aborted"


def abort_some(settings: Settings) -> None:
    """Produce a few marked records to the steps topic and abort their transaction."""
    options = {
        **settings.kafka.connection_options(),
        "transactional.id": f"{settings.kafka.group}-demo-canary",
    }
    producer = Producer(options)
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    for number in range(ABORTED):
        producer.produce(
            settings.kafka.topics.steps, value=b"aborted", key=f"canary-{number}", headers={MARK: b"1"}
        )
    producer.flush(LIMIT_S)
    producer.abort_transaction(LIMIT_S)
