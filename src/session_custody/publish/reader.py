"""Station 12, the blocking side: reading a lane's cursor partition (DESIGN 6, step 1).

A consumer of its own, by assignment: it is made, read and closed in the lane's thread. A plain consumer may
look some tens of milliseconds too early, before a commit is visible (39 were measured), so "everything up
to the end" proves nothing; the own claim does, for it was committed after `init_transactions` had ended what
stood open before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from session_custody.publish.outlet import OutletGone
from session_custody.publish.protocol import Damaged, Entry
from session_custody.publish.refusals import error_of, told
from session_custody.wire import Claim, CursorUnreadable, claim_key, cursor_key, decode_record

READ_MAX: Final = 500
READ_WAIT_S: Final = 0.05
_PASSING: Final = frozenset({KafkaError._PARTITION_EOF, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})


def read_cursors(
    options: dict[str, Any],
    *,
    topic: str,
    partition: int,
    offset: int,
    lane: str,
    nonce: UUID,
    wait_s: float,
    stopped: Callable[[], bool],
) -> list[Entry]:
    """The lane's committed records from `offset` on, until the claim with `nonce` is among them, or in vain.

    Raises OutletGone.
    """
    keys = {claim_key(lane), cursor_key(lane)}
    entries: list[Entry] = []
    deadline = time.monotonic() + wait_s
    consumer = Consumer(options)
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        while time.monotonic() < deadline and not stopped():
            for message in consumer.consume(READ_MAX, READ_WAIT_S):
                entry = entry_of(message, keys)
                if entry is not None:
                    entries.append(entry)
            if any(isinstance(entry.record, Claim) and entry.record.nonce == nonce for entry in entries):
                break
    except KafkaException as exception:
        raise OutletGone(error_of(exception).name(), told(error_of(exception))) from None
    finally:
        consumer.close()
    return entries


def entry_of(message: Message, keys: set[bytes]) -> Entry | None:
    """One record under one of these keys. Raises OutletGone for an error that will not pass."""
    error = message.error()
    if error is not None:
        if error.code() in _PASSING or error.retriable():
            return None
        raise OutletGone(error.name(), told(error))
    key, value, offset = message.key(), message.value(), message.offset()
    if key not in keys or value is None or offset is None:
        return None  # another lane's on a shared partition, or a tombstone
    try:
        _, record = decode_record(key, value)
    except CursorUnreadable as unreadable:
        return Entry(offset, Damaged(str(unreadable)))
    return Entry(offset, record)
