"""How an Avro body stands in a record's value: today the single-object encoding (Avro 1.12, DESIGN 15).

    C3 01 | fingerprint of the writer schema, 8 bytes little-endian | body

`Framing` is the seam for the Schema Registry's prefix and for its schema-id header.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from session_custody.core.errors import RecordRejected, RejectReason

MARKER: Final = b"\xc3\x01"
FINGERPRINT_BYTES: Final = 8
HEADER_BYTES: Final = len(MARKER) + FINGERPRINT_BYTES
_REGISTRY_PREFIX_BYTES: Final = 5


@dataclass(frozen=True, slots=True)
class Framed:
    """A value taken apart. `body` is not decoded yet."""

    fingerprint: bytes
    body: bytes


class Framing(Protocol):
    def frame(self, fingerprint: bytes, body: bytes) -> bytes:
        """The record's value."""

    def unframe(self, value: bytes) -> Framed:
        """Raises RecordRejected: `undecodable` or `schema_unknown`, never with content in its detail."""


class SingleObject:
    """Avro's single-object encoding: a value says by itself with which schema it was written."""

    def frame(self, fingerprint: bytes, body: bytes) -> bytes:
        return MARKER + fingerprint + body

    def unframe(self, value: bytes) -> Framed:
        if value.startswith(MARKER) and len(value) >= HEADER_BYTES:
            return Framed(value[len(MARKER) : HEADER_BYTES], value[HEADER_BYTES:])
        raise _unknown_framing(value)


SINGLE_OBJECT: Final[Framing] = SingleObject()


def _unknown_framing(value: bytes) -> RecordRejected:
    if value[:1] == b"\x00" and len(value) >= _REGISTRY_PREFIX_BYTES:
        schema_id = int.from_bytes(value[1:_REGISTRY_PREFIX_BYTES], "big")
        return RecordRejected(
            RejectReason.SCHEMA_UNKNOWN,
            f"begins like a Schema Registry record (magic byte 0, schema id {schema_id}); this topic takes "
            "the Avro single-object encoding",
        )
    if value[:1] in {b"{", b"["}:
        return RecordRejected(
            RejectReason.UNDECODABLE, "begins like JSON; this topic takes the Avro single-object encoding"
        )
    return RecordRejected(
        RejectReason.UNDECODABLE, f"{len(value)} bytes that do not begin with the single-object marker C3 01"
    )
