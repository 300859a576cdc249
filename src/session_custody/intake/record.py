"""Station 1: one record of the input topic, as it was read. Nothing is decoded yet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

RECORD_OVERHEAD_BYTES: Final = 100
"""Counted for each record beside its content, so that a flood of empty records has a size too."""

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """Exact bytes and place. `recorded_at`: the record's timestamp, aware UTC. `unreadable`: the client could
    not hand its headers over (a name that is no UTF-8).
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    recorded_at: datetime | None
    unreadable: bool = False

    @property
    def size(self) -> int:
        return RECORD_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"")


def from_message(message: Message) -> Record:
    """A record of a message without an error; raises nothing, whatever a producer sent: the poll thread would
    meet it again and again. A timestamp that no calendar holds counts as none.
    """
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    headers: Headers = ()
    unreadable = False
    try:
        headers = tuple((name, _octets(value)) for name, value in _pairs(message))
    except Exception:  # noqa: BLE001 - the record is refused for it (I13), its neighbours go on (I16)
        unreadable = True
    return Record(
        partition=partition,
        offset=offset,
        key=_octets(message.key()),
        value=_octets(message.value()),
        headers=headers,
        recorded_at=_moment(*message.timestamp()),
        unreadable=unreadable,
    )


def _pairs(message: Message) -> list[tuple[str, object]]:
    headers = message.headers()
    if not headers:
        return []
    return list(headers.items()) if isinstance(headers, dict) else [(name, value) for name, value in headers]


def _octets(value: object) -> bytes | None:
    # A producer may send anything; the client hands text over where it takes a header for text.
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "surrogatepass")


def _moment(kind: int, milliseconds: int) -> datetime | None:
    if kind == TIMESTAMP_NOT_AVAILABLE:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return None
