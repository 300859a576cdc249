"""Stations 7 and 11: an event's number, body, hash and signature; the value that is published (DESIGN 7, I9).

The body is Avro with payload, salt and signature null. These three are the last fields of the record and one
zero byte each, so the published value is the body with its last three bytes replaced, and a stranger gets the
hashed bytes back by setting the three to null and encoding again. Erasing payload and salt changes no hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

from pydantic import JsonValue

from session_custody.core.canonical import canonical, compact
from session_custody.core.errors import InvariantBroken, RecordRejected, RejectReason
from session_custody.core.events import EventDraft, EventKind, RunFacts, SealedEvent
from session_custody.core.pin import Resolved, RunPin, SentPin
from session_custody.ports import Signer
from session_custody.wire import schemas
from session_custody.wire.decoding import decode_body
from session_custody.wire.encoder import Encode, compile_fields, encode_bytes, encode_string, nullable
from session_custody.wire.framing import SINGLE_OBJECT, Framing

SALT_BYTES: Final = 16
RUNS_REMEMBERED_MAX: Final = 4096
ERASABLE: Final = ("payload", "salt", "signature")
_ALL_NULL: Final = b"\x00\x00\x00"

_RUN_FIELDS: Final = (
    "tenant",
    "subject",
    "decision_id",
    "parent",
    "forked_from",
    "manifest_id",
    "workflow_version",
    "policy_version",
)
_TRACE_CONSTANT: Final = (
    "session_id",
    "run_id",
    "correlation_id",
    "route_id",
    "route_table_version",
    "manifest_version",
    "policy_profile",
    "model_profile",
)
_TRACE_MOVING: Final = ("orchestration_step", "loop_step", "max_loop_steps")
_DRAFT_FIELDS: Final = (
    "causation_id",
    "tool",
    "effect",
    "ordinal",
    "call_id",
    "idempotency_key",
    "args_digest",
    "result_digest",
    "result",
    "attempt",
    "code",
    "reason",
    "policy",
    "question_id",
    "answered_by",
    "build_id",
)


@dataclass(frozen=True, slots=True)
class PinnedParts:
    """What only `pinned` (all of it), `repinned`, or a contract's first load (`resolved`) carries."""

    sent_digest: bytes | None = None
    expires_at: datetime | None = None
    pin: SentPin | None = None
    resolved: Resolved | None = None

    @staticmethod
    def of(pin: RunPin, sent_digest: bytes, expires_at: datetime) -> PinnedParts:
        """The parts of a run's first event."""
        return PinnedParts(sent_digest, expires_at, pin.sent, pin.resolved)


_NOTHING_PINNED: Final = PinnedParts()


@dataclass(frozen=True, slots=True)
class _Encoders:
    fingerprint: bytes
    run: Encode
    trace_constant: Encode
    rest: Encode


def seal(
    draft: EventDraft,
    facts: RunFacts,
    event_seq: int,
    prev_hash: bytes | None,
    occurred_at: datetime,
    signer: Signer | None,
    salt: bytes,
    parts: PinnedParts = _NOTHING_PINNED,
) -> SealedEvent:
    """Seal one event. `salt`: 16 fresh random bytes. `prev_hash`: null for event 1 and only there.

    The outcome is signed with `signer`: there is no unsigned mode. InvariantBroken for what must not be.
    """
    _check(draft, event_seq, prev_hash, occurred_at, salt)
    is_outcome = draft.kind is EventKind.OUTCOME
    if is_outcome and signer is None:
        raise InvariantBroken("an outcome without a signer")
    name = schemas.OUTCOME_EVENT if is_outcome else schemas.STEP_EVENT
    encoders = _encoders(name)
    payload = None if draft.visible is None else compact(draft.visible)
    policy = draft.policy
    fields: dict[str, Any] = {field: getattr(draft, field) for field in _DRAFT_FIELDS}
    fields |= {
        "orchestration_step": draft.orchestration_step,
        "loop_step": draft.loop_step,
        "max_loop_steps": facts.pin.max_loop_steps,
        "event_seq": event_seq,
        "kind": draft.kind,
        "status": draft.status,
        "occurred_at": occurred_at,
        "prev_hash": prev_hash,
        "payload_digest": payload_digest(salt, payload),
        "key_id": signer.key_id if is_outcome and signer is not None else None,
    }
    if policy is not None:
        fields["policy"] = {
            "decision": policy.decision,
            "decision_id": policy.decision_id,
            "policy_version": policy.policy_version,
            "reason": policy.reason,
        }
    if parts is not _NOTHING_PINNED:
        fields |= _pinned_fields(parts)
    body = _run_prefix(name, encoders, facts) + encoders.rest(fields) + _ALL_NULL
    event_hash = hashlib.sha256(body).digest()
    return SealedEvent(
        kind=draft.kind,
        event_seq=event_seq,
        schema_fingerprint=encoders.fingerprint,
        body=body,
        hash=event_hash,
        salt=salt,
        payload=payload,
        record=None if draft.record is None else compact(draft.record),
        signature=signer.sign(event_hash) if is_outcome and signer is not None else None,
        occurred_at=occurred_at,
    )


def payload_digest(salt: bytes, payload: str | None) -> bytes:
    """SHA-256(salt || payload as UTF-8); of the salt alone where nothing is visible."""
    return hashlib.sha256(salt if payload is None else salt + payload.encode()).digest()


def published_value(
    schema_fingerprint: bytes,
    body: bytes,
    payload: str | None,
    salt: bytes | None,
    signature: bytes | None,
    framing: Framing = SINGLE_OBJECT,
) -> bytes:
    """The published record's value: the body with its three nulls replaced by what the row still holds."""
    if body[-3:] != _ALL_NULL:
        raise InvariantBroken("an event body does not end with payload, salt and signature null")
    return framing.frame(schema_fingerprint, body[:-3] + _tail(payload, salt, signature))


def decode_event(value: bytes, framing: Framing = SINGLE_OBJECT) -> dict[str, Any]:
    """A published event as today's record. Raises RecordRejected."""
    framed = framing.unframe(value)
    return decode_body(framed.fingerprint, framed.body)


def hashed_body(value: bytes, framing: Framing = SINGLE_OBJECT) -> bytes:
    """The bytes under a published event's hash. RecordRejected: the value is not ours byte for byte."""
    framed = framing.unframe(value)
    event = decode_body(framed.fingerprint, framed.body)
    tail = _tail(*(event[name] for name in ERASABLE))
    if not framed.body.endswith(tail):
        raise RecordRejected(
            RejectReason.UNDECODABLE, "payload, salt and signature are not the last three fields"
        )
    return framed.body.removesuffix(tail) + _ALL_NULL


def verify_hash(body: bytes, event_hash: bytes) -> bool:
    """Whether a body (of a row, or from `hashed_body`) is the one that was hashed."""
    return body[-3:] == _ALL_NULL and hashlib.sha256(body).digest() == event_hash


def _check(
    draft: EventDraft, event_seq: int, prev_hash: bytes | None, occurred_at: datetime, salt: bytes
) -> None:
    if event_seq < 1 or (event_seq == 1) != (prev_hash is None):
        raise InvariantBroken(
            f"event {event_seq} {'without' if prev_hash is None else 'with'} a hash before it"
        )
    if len(salt) != SALT_BYTES:
        raise InvariantBroken(f"a salt of {len(salt)} bytes")
    if occurred_at.tzinfo is None:
        raise InvariantBroken("an event time without a zone")
    if draft.kind is EventKind.OUTCOME and not draft.status.terminal:
        raise InvariantBroken(f"an outcome with status {draft.status.value}")


def _tail(payload: str | None, salt: bytes | None, signature: bytes | None) -> bytes:
    return _NULLABLE_STRING(payload) + _NULLABLE_BYTES(salt) + _NULLABLE_BYTES(signature)


_NULLABLE_STRING: Final = nullable(encode_string)
_NULLABLE_BYTES: Final = nullable(encode_bytes)


@cache
def _encoders(name: str) -> _Encoders:
    schema = schemas.current(name)
    fields = [field["name"] for field in schema.parsed["fields"]]
    by_name = {field["name"]: field["type"] for field in schema.parsed["fields"]}
    trace = by_name["trace"]
    run_end = fields.index("trace")
    trace_fields = {"type": "record", "fields": trace["fields"]}
    moving = [field for field in trace["fields"] if field["name"] in _TRACE_MOVING]
    # After the run's constants: the moving end of `trace`, then every further field but the last three.
    rest = {"fields": moving + [dict(field) for field in schema.parsed["fields"][run_end + 1 : -3]]}
    if tuple(fields[:run_end]) != _RUN_FIELDS or tuple(fields[-3:]) != ERASABLE:
        raise InvariantBroken(f"{name}: its fields are not in the order that sealing needs")
    return _Encoders(
        fingerprint=schema.fingerprint,
        run=compile_fields(schema.parsed, _RUN_FIELDS),
        trace_constant=compile_fields(trace_fields, _TRACE_CONSTANT),
        rest=compile_fields(rest, [field["name"] for field in rest["fields"]]),
    )


# What every event of a run repeats, encoded once. Keyed by the identity of the RunFacts; the entry keeps it
# alive, so an identity is not given to another one meanwhile.
_prefixes: dict[tuple[str, int], tuple[RunFacts, bytes]] = {}


def _run_prefix(name: str, encoders: _Encoders, facts: RunFacts) -> bytes:
    key = (name, id(facts))
    known = _prefixes.get(key)
    if known is not None and known[0] is facts:
        return known[1]
    prefix = encoders.run(_run_fields(facts)) + encoders.trace_constant(_constant_trace(facts))
    if len(_prefixes) >= RUNS_REMEMBERED_MAX:
        _prefixes.clear()
    _prefixes[key] = (facts, prefix)
    return prefix


def _run_fields(facts: RunFacts) -> Mapping[str, Any]:
    return {
        "tenant": facts.tenant,
        "subject": facts.subject.model_dump(),
        "decision_id": facts.decision_id,
        "parent": facts.parent,
        "forked_from": facts.forked_from,
        "manifest_id": facts.pin.manifest_id,
        "workflow_version": facts.workflow_version,
        "policy_version": facts.policy_version,
    }


def _constant_trace(facts: RunFacts) -> Mapping[str, Any]:
    trace = facts.trace("", 0)
    return {field: getattr(trace, field) for field in _TRACE_CONSTANT}


def _pinned_fields(parts: PinnedParts) -> dict[str, Any]:
    resolved: dict[str, JsonValue] | None = None
    if parts.resolved is not None:
        resolved = parts.resolved.model_dump(mode="json")
        resolved["limits"] = canonical(resolved["limits"]).decode()
    return {
        "sent_digest": parts.sent_digest,
        "expires_at": parts.expires_at,
        "pin": None if parts.pin is None else parts.pin.model_dump(),
        "resolved": resolved,
    }
