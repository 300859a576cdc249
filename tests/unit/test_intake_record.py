"""A record as it was read: whatever a producer sent, the poll thread goes on (station 1, I16)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from session_custody.core.errors import RejectReason
from session_custody.intake.decode import decode
from session_custody.intake.options import ConsumerSetup, consumer_options
from session_custody.intake.record import from_message


class Sent:
    """What the client hands over, with a header that may be unreadable."""

    def __init__(
        self, headers: object = None, timestamp: tuple[int, int] = (TIMESTAMP_NOT_AVAILABLE, 0)
    ) -> None:
        self._headers = headers
        self._timestamp = timestamp

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return 7

    def key(self) -> bytes:
        return b"k"

    def value(self) -> None:
        return None

    def headers(self) -> object:
        if isinstance(self._headers, Exception):
            raise self._headers
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp


def test_bytes_headers_and_time_are_kept_as_they_came() -> None:
    sent = Sent([("a", b"\xff"), ("a", None)], (TIMESTAMP_CREATE_TIME, 1_500))
    record = from_message(cast("Message", sent))
    assert (record.partition, record.offset, record.key, record.value) == (2, 7, b"k", None)
    assert record.headers == (("a", b"\xff"), ("a", None))
    assert record.recorded_at == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)


@pytest.mark.parametrize("milliseconds", [2**62, -(2**62), 253_402_300_800_000])
def test_a_time_that_no_calendar_holds_is_none(milliseconds: int) -> None:
    record = from_message(cast("Message", Sent(None, (TIMESTAMP_CREATE_TIME, milliseconds))))
    assert record.recorded_at is None


def test_headers_that_the_client_cannot_hand_over_refuse_the_record_and_nothing_else() -> None:
    broken = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    record = from_message(cast("Message", Sent(broken)))
    decoded = decode(record, 0)
    assert decoded.refused is not None
    assert decoded.refused.reason is RejectReason.UNDECODABLE


def test_the_options_that_carry_guarantees_cannot_be_set_past_us() -> None:
    theirs = {
        "enable.auto.commit": "true",
        "auto.offset.reset": "latest",
        "isolation.level": "read_uncommitted",
    }
    options = consumer_options(ConsumerSetup(lambda: theirs, "t", "g", session_timeout_s=6.0))
    assert options["enable.auto.commit"] is False
    assert options["enable.auto.offset.store"] is False
    assert (options["auto.offset.reset"], options["isolation.level"]) == ("earliest", "read_committed")
    assert options["session.timeout.ms"] == 6_000
    assert int(str(options["max.poll.interval.ms"])) >= 6_000


def test_the_new_protocol_has_no_classic_settings() -> None:
    setup = ConsumerSetup(dict, "t", "g", group_protocol="consumer")
    options = consumer_options(setup)
    assert options.keys().isdisjoint(
        {"session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"}
    )
