"""Record headers: CloudEvents 1.0 in binary mode on events, Spring's names on dead letters, a tolerant look
at input.

Header names are lower case, values UTF-8 text (the two exceptions of dead letters are named below). ce_id is
run_id/event_seq and ce_source carries the run, so a record sent twice is the same event to every consumer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from session_custody.core.errors import RecordRejected
from session_custody.core.events import EventKind
from session_custody.ports import OutboxDeadLetter, OutboxEvent

CONTENT_TYPE_AVRO: Final = "application/avro"
SEQUENCE_DIGITS: Final = 10
HEADER_ID_CHARS_MAX: Final = 500
KEPT_HEADER_BYTES_MAX: Final = 8 * 1024
HASH_HEADER: Final = "custody_event_hash"

Headers = list[tuple[str, bytes]]
RawHeaders = Iterable[tuple[str, bytes | str | None]]

FORBIDDEN: Final = ("authorization", "cookie", "custody-token", "custody-token-ref")
"""Where a credential would stand. Until custody of tokens is built each of them is `token_refused` (I11)."""

KEPT_IN_DEAD_LETTERS: Final = frozenset(
    {
        "content-type",
        "traceparent",
        "tracestate",
        "__key_schema_id",
        "__value_schema_id",
        *(
            "ce_" + name
            for name in (
                "specversion", "id", "source", "type", "subject", "time", "dataschema", "datacontenttype",
                "correlationid", "causationid", "sequence", "partitionkey", "expirytime", "traceparent",
                "tracestate", "runid", "sessionid", "routeid", "loopstep",
            )
        ),
    }
)  # fmt: skip

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_REDRIVES: Final = "custody_dlq_redrive_count"


def event_headers(
    row: OutboxEvent,
    decoded: Mapping[str, Any],
    *,
    deployment: str,
    type_prefix: str,
    traceparent: str | None = None,
) -> Headers:
    """Headers of a step or outcome event. `decoded`: the event, or only its trace fields (`decode_trace`)."""
    trace = decoded.get("trace", decoded)
    headers: Headers = [
        ("content-type", CONTENT_TYPE_AVRO.encode()),
        ("ce_specversion", b"1.0"),
        ("ce_id", event_id(row.run_id, row.event_seq).encode()),
        ("ce_source", f"//custody/{deployment}/runs/{row.run_id}".encode()),
        ("ce_type", event_type(type_prefix, row.kind).encode()),
        ("ce_subject", row.run_id.encode()),
        ("ce_time", rfc3339(row.recorded_at).encode()),
        ("ce_sequence", f"{row.event_seq:0{SEQUENCE_DIGITS}d}".encode()),
        ("ce_correlationid", row.correlation_id.encode()),
        ("ce_partitionkey", row.correlation_id.encode()),
        ("ce_runid", row.run_id.encode()),
        ("ce_routeid", str(trace["route_id"]).encode()),
        ("ce_loopstep", str(trace["loop_step"]).encode()),
        (HASH_HEADER, row.hash.hex().encode()),
    ]
    for name, value in (
        ("ce_sessionid", trace["session_id"]),
        ("ce_causationid", row.causation_id),
        ("traceparent", traceparent),
    ):
        if value is not None:
            headers.append((name, str(value).encode()))
    return headers


def event_id(run_id: str, event_seq: int) -> str:
    """`ce_id` of an event: the same for every sending of it."""
    return f"{run_id}/{event_seq}"


def event_type(type_prefix: str, kind: EventKind) -> str:
    """`ce_type`: `<prefix>.run.<kind>.v1`."""
    return f"{type_prefix}.run.{kind.value}.v1"


def dead_letter_headers(row: OutboxDeadLetter, *, consumer_group: str) -> Headers:
    """Headers of a dead letter: Spring's set, ours as text, and what the original may keep.

    Partition is a 4-byte, offset and timestamp are 8-byte big-endian numbers, as Spring's tools read them.
    Original headers pass by name only; ours stand last and win over theirs.
    """
    timestamp = row.record_timestamp
    ours: Headers = [
        ("kafka_dlt-original-topic", row.topic.encode()),
        ("kafka_dlt-original-partition", row.partition.to_bytes(4, "big", signed=True)),
        ("kafka_dlt-original-offset", row.offset.to_bytes(8, "big", signed=True)),
        ("kafka_dlt-original-consumer-group", consumer_group.encode()),
        ("kafka_dlt-exception-fqcn", f"{RecordRejected.__module__}.{RecordRejected.__qualname__}".encode()),
        ("kafka_dlt-exception-message", f"{row.reason.value}: {row.detail}".encode()),
        ("custody_dlq_id", str(row.dead_letter_id).encode()),
        ("custody_dlq_reason", row.reason.value.encode()),
        ("custody_dlq_attempts", b"1"),
        ("custody_dlq_first_failed_at", rfc3339(row.recorded_at).encode()),
        (_REDRIVES, str(_redrives(row.headers)).encode()),
    ]
    if timestamp is not None:
        milliseconds = int(timestamp.timestamp() * 1000)
        ours += [
            ("kafka_dlt-original-timestamp", milliseconds.to_bytes(8, "big", signed=True)),
            ("kafka_dlt-original-timestamp-type", b"CreateTime"),
        ]
    if row.run_id is not None:
        ours.append(("custody_dlq_run_id", row.run_id.encode()))
    return [*kept_headers(row.headers), *ours]


def kept_headers(headers: Sequence[tuple[str, bytes | None]]) -> Headers:
    """The original headers that a dead letter keeps, exact. Never one that could carry a credential (I11)."""
    return [
        (name, value)
        for name, value in headers
        if value is not None and name.lower() in KEPT_IN_DEAD_LETTERS and len(value) <= KEPT_HEADER_BYTES_MAX
    ]


@dataclass(frozen=True, slots=True)
class InputHeaders:
    """What an input record's headers say.

    What is missing, unreadable or absurd is None: a header is never a reason to refuse a record, except for
    `forbidden` (lower-case names of headers that would carry a credential).
    """

    ce_id: str | None = None
    ce_source: str | None = None
    ce_time: str | None = None
    traceparent: str | None = None
    content_type: str | None = None
    forbidden: tuple[str, ...] = ()


def input_headers(headers: RawHeaders | None) -> InputHeaders:
    """Read headers: names without regard to case, the last one of a name wins (as Kafka's lastHeader)."""
    last: dict[str, bytes | str | None] = {}
    for name, value in headers or ():
        last[name.lower()] = value
    traceparent = _text(last.get("traceparent"))
    if traceparent is not None and not _TRACEPARENT.fullmatch(traceparent):
        traceparent = None
    return InputHeaders(
        ce_id=_text(last.get("ce_id")),
        ce_source=_text(last.get("ce_source")),
        ce_time=_text(last.get("ce_time")),
        traceparent=traceparent,
        content_type=_text(last.get("content-type")),
        forbidden=tuple(name for name in FORBIDDEN if name in last),
    )


def without_forbidden(headers: RawHeaders | None) -> list[tuple[str, bytes | None]]:
    """The headers without those that would carry a credential: what may be stored of a refused record."""
    return [
        (name, value.encode("utf-8", "replace") if isinstance(value, str) else value)
        for name, value in headers or ()
        if name.lower() not in FORBIDDEN
    ]


def rfc3339(moment: datetime) -> str:
    """UTC with a Z, microseconds kept."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _text(value: bytes | str | None) -> str | None:
    # A NUL can stand in no row; an id that is longer than an index entry is no id.
    if value is None:
        return None
    try:
        text = value.decode() if isinstance(value, bytes) else value
        text.encode()
    except UnicodeError:
        return None
    return text if 0 < len(text) <= HEADER_ID_CHARS_MAX and "\x00" not in text else None


def _redrives(headers: Sequence[tuple[str, bytes | None]]) -> int:
    said = [value for name, value in headers if name.lower() == _REDRIVES and value is not None]
    return int(said[-1]) if said and re.fullmatch(rb"[0-9]{1,4}", said[-1]) else 0
