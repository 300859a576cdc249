"""CONVENTIONS of headers: CloudEvents on events, Spring's names on dead letters, what never passes (I11)."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session_custody import wire
from session_custody.core.errors import RejectReason
from session_custody.core.events import EventKind
from session_custody.core.pin import RunId
from session_custody.ports import OutboxDeadLetter, OutboxEvent

AT = datetime(2026, 8, 14, 4, 11, 5, 250_000, tzinfo=timezone(timedelta(hours=2)))
EVENT = OutboxEvent(
    lane_seq=9, run_id=RunId("run-9f3c"), correlation_id="run-9f3c", event_seq=7, kind=EventKind.TOOL_RESULT,
    schema_fingerprint=b"", body=b"", hash=b"\xab" * 32, salt=None, payload=None, signature=None,
    recorded_at=AT, causation_id="orders/1",
)  # fmt: skip
TRACE = {"session_id": "sess-88", "route_id": "fraud_investigate", "loop_step": 3}
LETTER = OutboxDeadLetter(
    lane_seq=10, dead_letter_id=UUID(int=5), reason=RejectReason.INVALID_EVENT, detail="input: no JSON",
    topic="custody.runs", partition=3, offset=2**40, key=b"k", value=b"v", headers=(), recorded_at=AT,
    record_timestamp=AT, run_id="run-9f3c", hash=b"",
)  # fmt: skip


def test_an_event_is_a_cloud_event_in_binary_mode() -> None:
    headers = dict(
        wire.event_headers(EVENT, TRACE, deployment="prod", type_prefix="com.example", traceparent="t")
    )
    assert headers == {
        "content-type": b"application/avro",
        "ce_specversion": b"1.0",
        "ce_id": b"run-9f3c/7",
        "ce_source": b"//custody/prod/runs/run-9f3c",
        "ce_type": b"com.example.run.tool_result.v1",
        "ce_subject": b"run-9f3c",
        "ce_time": b"2026-08-14T02:11:05.250000Z",
        "ce_sequence": b"0000000007",
        "ce_correlationid": b"run-9f3c",
        "ce_causationid": b"orders/1",
        "ce_partitionkey": b"run-9f3c",
        "ce_runid": b"run-9f3c",
        "ce_sessionid": b"sess-88",
        "ce_routeid": b"fraud_investigate",
        "ce_loopstep": b"3",
        "custody_event_hash": b"ab" * 32,
        "traceparent": b"t",
    }


def test_what_is_not_known_has_no_header() -> None:
    row = OutboxEvent(**{name: getattr(EVENT, name) for name in EVENT.__slots__} | {"causation_id": None})
    headers = dict(wire.event_headers(row, TRACE | {"session_id": None}, deployment="d", type_prefix="p"))
    assert not {"ce_causationid", "ce_sessionid", "traceparent"} & set(headers)


def test_a_dead_letter_reads_in_springs_tools() -> None:
    headers = dict(wire.dead_letter_headers(LETTER, consumer_group="custody"))
    assert headers["kafka_dlt-original-topic"] == b"custody.runs"
    assert struct.unpack(">i", headers["kafka_dlt-original-partition"]) == (3,)
    assert struct.unpack(">q", headers["kafka_dlt-original-offset"]) == (2**40,)
    assert struct.unpack(">q", headers["kafka_dlt-original-timestamp"]) == (1786673465250,)
    assert headers["kafka_dlt-original-consumer-group"] == b"custody"
    assert headers["kafka_dlt-exception-message"] == b"invalid_event: input: no JSON"
    assert headers["custody_dlq_reason"] == b"invalid_event"
    assert headers["custody_dlq_id"] == str(UUID(int=5)).encode()
    assert headers["custody_dlq_first_failed_at"] == b"2026-08-14T02:11:05.250000Z"
    assert headers["custody_dlq_redrive_count"] == b"0"
    assert headers["custody_dlq_run_id"] == b"run-9f3c"


def letter_with(*headers: tuple[str, bytes | None]) -> list[tuple[str, bytes]]:
    row = OutboxDeadLetter(
        **{name: getattr(LETTER, name) for name in LETTER.__slots__} | {"headers": headers}
    )
    return wire.dead_letter_headers(row, consumer_group="custody")


@pytest.mark.parametrize(
    "name",
    ["authorization", "Authorization", "COOKIE", "custody-token", "Custody-Token-Ref", "x-api-key", "other"],
)
def test_no_header_that_could_carry_a_credential_passes(name: str) -> None:
    assert all(value != b"made-up" for _, value in letter_with((name, b"made-up")))


def test_the_original_event_id_and_the_redrive_count_stay() -> None:
    headers = dict(letter_with(("ce_id", b"o-1"), ("traceparent", b"t"), ("custody_dlq_redrive_count", b"2")))
    assert headers["ce_id"] == b"o-1"
    assert headers["traceparent"] == b"t"
    assert headers["custody_dlq_redrive_count"] == b"2"


def test_input_headers_are_read_without_regard_to_case() -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    read = wire.input_headers(
        [("CE_ID", b"o-1"), ("ce_source", b"//shop"), ("ce_time", b"t"),
         ("Content-Type", b"application/avro"),
         ("TraceParent", traceparent.encode()), ("Authorization", b"x"), ("custody-token", None)]
    )  # fmt: skip
    assert (read.ce_id, read.ce_source, read.ce_time) == ("o-1", "//shop", "t")
    assert (read.content_type, read.traceparent) == ("application/avro", traceparent)
    assert read.forbidden == ("authorization", "custody-token")


def test_the_last_of_repeated_headers_wins() -> None:
    assert wire.input_headers([("ce_id", b"a"), ("ce_id", b"b")]).ce_id == "b"


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"a\x00b", b"x" * 501])
def test_an_unreadable_header_counts_as_absent(value: bytes | None) -> None:
    assert wire.input_headers([("ce_id", value)]).ce_id is None


@pytest.mark.parametrize("value", [b"junk", b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01", b"00-1-2-3"])
def test_a_malformed_traceparent_counts_as_absent(value: bytes) -> None:
    assert wire.input_headers([("traceparent", value)]).traceparent is None


@given(st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=30))))
def test_no_headers_are_a_reason_to_fail(headers: list[tuple[str, bytes | None]]) -> None:
    assert wire.input_headers(headers).forbidden in {(), ("cookie",)}
    assert wire.input_headers(None) == wire.InputHeaders()


def test_what_is_stored_of_a_refused_record_holds_no_forbidden_header() -> None:
    kept = wire.without_forbidden([("Cookie", b"made-up"), ("a", "text"), ("b", None)])
    assert kept == [("a", b"text"), ("b", None)]


def test_times_are_utc() -> None:
    assert wire.rfc3339(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00Z"
