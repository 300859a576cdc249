"""Station 12: every librdkafka option that publication sets, in one place, each with its reason.

`connection` is what the settings say of brokers, TLS, SASL and further options; what stands here wins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

KafkaConfig = Mapping[str, str | int | bool]
OnError = Callable[[KafkaError], None]

_SILENT: Final = logging.getLogger("session_custody.librdkafka")
_SILENT.propagate = False
_SILENT.addHandler(logging.NullHandler())


def silent() -> logging.Logger:
    """The logger that librdkafka writes to: it prints nothing by itself."""
    return _SILENT


RECORD_BYTES_MAX: Final = 2 * 1024 * 1024
READER_WAIT_MS: Final = 50


def _events(connection: KafkaConfig, client_id: str, on_error: OnError) -> dict[str, Any]:
    return {
        **connection,
        "client.id": client_id,
        # Credentials that are refused are told here and nowhere else: the call itself only times out.
        "error_cb": on_error,
        # Whatever librdkafka would print on standard error comes by error_cb or as an exception too.
        "log_level": 0,
        "logger": _SILENT,
    }


def _delivery(transaction_timeout_s: float) -> dict[str, Any]:
    return {
        # A batch is offered whole and then waited for: waiting for more records only adds to its latency.
        "linger.ms": 0,
        # An event counts when all in-sync replicas have it (I9).
        "acks": "all",
        # Key and partition are part of the wire contract: Java clients put a key where we put it (DESIGN 15).
        "partitioner": "murmur2_random",
        # A record may not outlive its transaction.
        "delivery.timeout.ms": int(transaction_timeout_s * 1000),
        # The topic says how large a record may be, not the client: a dead letter is the input record and
        # more. A batch of several records stays below the broker's usual 1 MiB.
        "message.max.bytes": RECORD_BYTES_MAX,
        "batch.size": 900_000,
    }


def transactional(
    connection: KafkaConfig,
    *,
    transactional_id: str,
    transaction_timeout_s: float,
    client_id: str,
    on_error: OnError,
) -> dict[str, Any]:
    """One producer per lane. Its id is the lane's: initialising it fences whoever had the lane before."""
    return {
        **_events(connection, client_id, on_error),
        **_delivery(transaction_timeout_s),
        "transactional.id": transactional_id,
        "enable.idempotence": True,
        # A dead owner's open transaction hides what follows it from every read_committed reader for so long.
        "transaction.timeout.ms": int(transaction_timeout_s * 1000),
    }


def at_least_once(
    connection: KafkaConfig, *, transaction_timeout_s: float, client_id: str, on_error: OnError
) -> dict[str, Any]:
    """For brokers without transactions, so perhaps without producer ids: order by one request at a time."""
    return {
        **_events(connection, client_id, on_error),
        **_delivery(transaction_timeout_s),
        "enable.idempotence": False,
        "max.in.flight.requests.per.connection": 1,
    }


def cursor_reader(
    connection: KafkaConfig, *, group: str, client_id: str, on_error: OnError
) -> dict[str, Any]:
    """Reads one cursor partition by assignment. Never joins or commits; librdkafka wants a group all the
    same, so it names the one that our ACLs allow.
    """
    return {
        **_events(connection, client_id, on_error),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # An aborted cursor is no cursor.
        "isolation.level": "read_committed",
        # The offset in the lane row may be gone (topic made anew, or compacted): then everything is read.
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": False,
        # It waits for one record that is there already.
        "fetch.wait.max.ms": READER_WAIT_MS,
    }
