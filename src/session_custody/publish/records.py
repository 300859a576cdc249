"""Station 12: a row of the outbox as a Kafka record, whole or as a stub.

Rows are published as they stand: an event's value is its hashed body with payload, salt and signature put in,
a dead letter's key and value are the refused record's own, byte for byte.

A row that the broker refuses for ever (too large for the topic, refused by a rule of the broker) must not
stop the lane. It is published as a stub: same topic, key, `ce_id` and place in the order, with the header
`custody_stub` = the broker's word in lower case, `custody_stub_bytes` = size of the value left out.

    stub of an event          the event without its payload; the body holds payload_digest, and its hash is as
                              before, so the chain is whole
    ... refused as well       no value; the header custody_event_hash still names the event for the next one's
                              prev_hash
    stub of a dead letter     no value; custody_stub_sha256 = digest of the value in hex
    ... refused as well       and none of the original's own headers or key
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final, assert_never

from session_custody.core.events import EventKind
from session_custody.ports import OutboxDeadLetter, OutboxEvent, OutboxRow
from session_custody.wire import dead_letter_headers, decode_trace, event_headers, published_value

STUB: Final = "custody_stub"
STUB_BYTES: Final = "custody_stub_bytes"
STUB_SHA256: Final = "custody_stub_sha256"
CUTS_MAX: Final = 2
DETAIL_CHARS_MAX: Final = 200

Headers = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Topics:
    """Names of the topics that publication writes."""

    steps: str = "custody.steps"
    outcomes: str = "custody.outcomes"
    dead_letters: str = "custody.dead-letters"
    cursors: str = "custody.cursors"


@dataclass(frozen=True, slots=True)
class Cut:
    """How much of a refused row is left out: 1 or 2 (see above), and what the broker said."""

    level: int
    word: str


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record to be produced."""

    lane_seq: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def size_bytes(self) -> int:
        return len(self.value or b"") + len(self.key or b"") + sum(len(n) + len(v) for n, v in self.headers)


@dataclass(frozen=True, slots=True)
class Frames:
    """Makes records of rows. `deployment` stands in ce_source, `group` in the headers of dead letters."""

    topics: Topics
    deployment: str
    group: str
    type_prefix: str

    def record(self, row: OutboxRow, cut: Cut | None = None) -> Outgoing:
        """The record of a row; the same bytes every time it is asked for the same row and cut."""
        match row:
            case OutboxEvent():
                return self._event(row, cut)
            case OutboxDeadLetter():
                return self._dead_letter(row, cut)
            case _:
                assert_never(row)

    def _event(self, row: OutboxEvent, cut: Cut | None) -> Outgoing:
        topic = self.topics.outcomes if row.kind is EventKind.OUTCOME else self.topics.steps
        headers = event_headers(
            row,
            decode_trace(row.schema_fingerprint, row.body),
            deployment=self.deployment,
            type_prefix=self.type_prefix,
        )
        value: bytes | None = published_value(
            row.schema_fingerprint, row.body, row.payload, row.salt, row.signature
        )
        if cut is not None:
            headers += _stub(cut, len(value or b""))
            value = (
                published_value(row.schema_fingerprint, row.body, None, row.salt, row.signature)
                if cut.level == 1
                else None
            )
        return Outgoing(row.lane_seq, topic, row.correlation_id.encode(), value, headers)

    def _dead_letter(self, row: OutboxDeadLetter, cut: Cut | None) -> Outgoing:
        topic, value = self.topics.dead_letters, row.value or b""
        if cut is None:
            headers = dead_letter_headers(row, consumer_group=self.group)
            return Outgoing(row.lane_seq, topic, row.key, row.value, headers)
        bare = row if cut.level == 1 else _bare(row)
        headers = [
            *dead_letter_headers(bare, consumer_group=self.group),
            *_stub(cut, len(value)),
            (STUB_SHA256, hashlib.sha256(value).hexdigest().encode()),
        ]
        return Outgoing(row.lane_seq, topic, bare.key, None, headers)


def _stub(cut: Cut, size: int) -> Headers:
    return [(STUB, cut.word.encode()), (STUB_BYTES, str(size).encode())]


def _bare(row: OutboxDeadLetter) -> OutboxDeadLetter:
    return replace(row, key=None, value=None, headers=(), detail=row.detail[:DETAIL_CHARS_MAX])
