"""Claims and cursors: what a lane's publisher writes on `custody.cursors` (DESIGN 6, station 12).

A lane is named by its topic and partition, `custody.runs/3`: the same text whatever the cluster is called,
because the cursor topic lives in the cluster of the events it counts. `/` is in no topic name. Two keys for
each lane, since the topic is compacted and a claim must not delete the cursor:

    custody.runs/3/claim    {"v":1,"owner":…,"epoch":…,"nonce":…,"store_id":…}
    custody.runs/3/cursor   {"v":1,"lane_seq":…,"hash":…,"store_id":…,"epoch":…,"owner":…}

Keys and values are UTF-8; values are JSON; further members are for later and ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

HASH_BYTES: Final = 32
VERSION: Final = 1
VALUE_BYTES_MAX: Final = 4096
_NUMBER_MAX: Final = 2**63 - 1


class CursorUnreadable(ValueError):
    """A record on the cursor topic that is none of ours, or damaged. Says what, never the content."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An owner announces itself; it has the lane's cursor once it has read its own nonce back."""

    owner: UUID
    epoch: int
    nonce: UUID
    store_id: UUID


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last published row of a lane: written in the same Kafka transaction as the events up to it.

    `lane_seq` 0 with an empty hash: nothing was published yet.
    """

    lane_seq: int
    hash: bytes
    store_id: UUID
    epoch: int
    owner: UUID


def lane_text(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


def claim_key(lane: str) -> bytes:
    return f"{lane}/claim".encode()


def cursor_key(lane: str) -> bytes:
    return f"{lane}/cursor".encode()


def encode_claim(claim: Claim) -> bytes:
    return _dumps(
        {
            "v": VERSION,
            "owner": str(claim.owner),
            "epoch": claim.epoch,
            "nonce": str(claim.nonce),
            "store_id": str(claim.store_id),
        }
    )


def encode_cursor(cursor: Cursor) -> bytes:
    if len(cursor.hash) != (HASH_BYTES if cursor.lane_seq else 0):
        raise ValueError(f"a cursor at {cursor.lane_seq} with a hash of {len(cursor.hash)} bytes")
    return _dumps(
        {
            "v": VERSION,
            "lane_seq": cursor.lane_seq,
            "hash": cursor.hash.hex(),
            "store_id": str(cursor.store_id),
            "epoch": cursor.epoch,
            "owner": str(cursor.owner),
        }
    )


def decode_claim(value: bytes | None) -> Claim:
    """Raises CursorUnreadable."""
    fields = _loads(value)
    return Claim(
        _uuid(fields, "owner"), _number(fields, "epoch"), _uuid(fields, "nonce"), _uuid(fields, "store_id")
    )


def decode_cursor(value: bytes | None) -> Cursor:
    """Raises CursorUnreadable."""
    fields = _loads(value)
    lane_seq = _number(fields, "lane_seq")
    return Cursor(
        lane_seq,
        _hash(fields, lane_seq),
        _uuid(fields, "store_id"),
        _number(fields, "epoch"),
        _uuid(fields, "owner"),
    )


def decode_record(key: bytes | None, value: bytes | None) -> tuple[str, Claim | Cursor]:
    """(lane, what stands there) of one record of the topic. Raises CursorUnreadable."""
    lane, _, what = (key or b"").decode("utf-8", "replace").rpartition("/")
    if lane and what == "claim":
        return lane, decode_claim(value)
    if lane and what == "cursor":
        return lane, decode_cursor(value)
    raise CursorUnreadable("the key is neither <lane>/claim nor <lane>/cursor")


def _dumps(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _loads(value: bytes | None) -> dict[str, Any]:
    if value is None or len(value) > VALUE_BYTES_MAX:
        raise CursorUnreadable("no value, or too large a one")
    try:
        fields = json.loads(value)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise CursorUnreadable("the value is no JSON object")
    if fields.get("v") != VERSION:
        raise CursorUnreadable(f"the value's version is not {VERSION}")
    return fields


def _number(fields: dict[str, Any], name: str) -> int:
    number = fields.get(name)
    if type(number) is not int or not 0 <= number <= _NUMBER_MAX:
        raise CursorUnreadable(f"{name} is no number of ours")
    return number


def _uuid(fields: dict[str, Any], name: str) -> UUID:
    try:
        return UUID(fields[name])
    except (KeyError, ValueError, TypeError, AttributeError):
        pass
    raise CursorUnreadable(f"{name} is no UUID")


def _hash(fields: dict[str, Any], lane_seq: int) -> bytes:
    try:
        digest = bytes.fromhex(fields["hash"])
    except (KeyError, ValueError, TypeError):
        digest = None
    if digest is None or len(digest) != (HASH_BYTES if lane_seq else 0):
        raise CursorUnreadable("hash is no SHA-256 in hex")
    return digest
