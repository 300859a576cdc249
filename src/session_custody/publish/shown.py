"""Station 12: what Kafka shows of a lane, for an operator's `lane adopt-floor` and for the doctor.

Reads the whole cursor partition up to its end as read_committed shows it. Meant for a lane whose publication
stands still; beside a living publisher it may be a moment old.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from session_custody.core.errors import Unavailable
from session_custody.publish import options
from session_custody.publish.outlet import OutletGone
from session_custody.publish.protocol import Damaged, Entry
from session_custody.publish.reader import READ_MAX, READ_WAIT_S, entry_of
from session_custody.publish.refusals import error_of, setting_of, told
from session_custody.wire import Claim, Cursor, claim_key, cursor_key, lane_text

SHOWN_WAIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Shown:
    """`cursor` None: none is there (adopt it as lane_seq 0). `epoch`: the highest in any claim or cursor, 0
    without one; adopt-floor lifts the lane's above it.
    """

    cursor: Cursor | None
    cursor_offset: int | None
    epoch: int
    damaged: int


def read_shown(
    connection: options.KafkaConfig,
    *,
    group: str,
    cursors: str,
    topic: str,
    partition: int,
    cursor_partition: int,
) -> Shown:
    """Blocking. `topic` and `partition` name the lane. Raises Unavailable("kafka")."""
    heard: list[KafkaError] = []
    made = options.cursor_reader(connection, group=group, client_id="custody-shown", on_error=heard.append)
    lane = lane_text(topic, partition)
    entries: list[Entry] = []
    place = TopicPartition(cursors, cursor_partition, 0)
    consumer = Consumer({**made, "enable.partition.eof": True})
    try:
        consumer.assign([place])
        deadline = time.monotonic() + SHOWN_WAIT_S
        at_end = False
        while not at_end:
            if time.monotonic() >= deadline:
                raise Unavailable(
                    "kafka", next((told(error) for error in heard if setting_of(error)), "timed out")
                )
            for message in consumer.consume(READ_MAX, READ_WAIT_S):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    at_end = True
                    continue
                entry = entry_of(message, {claim_key(lane), cursor_key(lane)})
                if entry is not None:
                    entries.append(entry)
    except KafkaException as exception:
        raise Unavailable("kafka", told(error_of(exception))) from None
    except OutletGone as gone:
        raise Unavailable("kafka", gone.detail) from None
    finally:
        consumer.close()
    return summed_up(entries)


def summed_up(entries: list[Entry]) -> Shown:
    """Pure: the last cursor and the highest epoch."""
    cursor: Cursor | None = None
    cursor_offset: int | None = None
    epoch = damaged = 0
    for entry in entries:
        match entry.record:
            case Claim() as claim:
                epoch = max(epoch, claim.epoch)
            case Cursor() as found:
                cursor, cursor_offset, epoch = found, entry.offset, max(epoch, found.epoch)
            case Damaged():
                damaged += 1
    if cursor is not None and cursor.lane_seq == 0:
        cursor = cursor_offset = None
    return Shown(cursor, cursor_offset, epoch, damaged)
