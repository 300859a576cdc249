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
from session_custody.core.events import EventDraft, EventKind, PolicyRecord, RunFacts, SealedEvent
from session_custody.core.pin import Resolved, RunPin, SentPin
from session_custody.core.trace import TraceFields
from session_custody.ports import Signer
from session_custody.wire import schemas
from session_custody.wire.decoding import decode_body
from session_custody.wire.encoder import (
    NULL,
    Encode,
    compile_encoder,
    compile_fields,
    encode_bytes,
    encode_long,
    encode_micros,
    encode_string,
    enum_codes,
    nullable,
)
from session_custody.wire.framing import SINGLE_OBJECT, Framing

SALT_BYTES: Final = 16
RUNS_REMEMBERED_MAX: Final = 4096
ERASABLE: Final = ("payload", "salt", "signature")
_ALL_NULL: Final = NULL * len(ERASABLE)
_SOME: Final = b"\x02"
_string: Final = nullable(encode_string)
_bytes: Final = nullable(encode_bytes)
_long: Final = nullable(encode_long)

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
_TRACE_CONSTANT_FIELDS: Final = 8
_MOVING_FIELDS: Final = ("occurred_at", "prev_hash")
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
_PINNED_FIELDS: Final = ("sent_digest", "expires_at", "pin", "resolved")
_SEAL_FIELDS: Final = ("payload_digest", "key_id", *ERASABLE)


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
    """Of one record type. `kinds` is None for outcomes, which have none."""

    fingerprint: bytes
    run: Encode
    trace_constant: Encode
    kinds: Mapping[str, bytes] | None
    statuses: Mapping[str, bytes]
    effects: Mapping[str, bytes]
    policy: Encode
    pinned: Encode


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
    key_id = signer.key_id if is_outcome and signer is not None else None
    body = b"".join(
        (
            _run_prefix(name, encoders, facts),
            encode_string(draft.orchestration_step),
            encode_long(draft.loop_step),
            _long(facts.pin.max_loop_steps),
            encode_long(event_seq),
            b"" if encoders.kinds is None else encoders.kinds[draft.kind],
            encoders.statuses[draft.status],
            encode_micros(occurred_at),
            _bytes(prev_hash),
            _draft_fields(encoders, draft),
            _pinned_fields(encoders, parts),
            _SOME,
            encode_bytes(payload_digest(salt, payload)),
            _string(key_id),
            _ALL_NULL,
        )
    )
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


def _draft_fields(encoders: _Encoders, draft: EventDraft) -> bytes:
    # Written out and not derived: this is the hot path, and nearly all of it is null. The order is
    # _DRAFT_FIELDS, compared with the schema when the encoders are made.
    effect, policy = draft.effect, draft.policy
    return b"".join(
        (
            _string(draft.causation_id),
            _string(draft.tool),
            NULL if effect is None else _SOME + encoders.effects[effect],
            _long(draft.ordinal),
            _string(draft.call_id),
            _string(draft.idempotency_key),
            _string(draft.args_digest),
            _string(draft.result_digest),
            _string(draft.result),
            _long(draft.attempt),
            _string(draft.code),
            _string(draft.reason),
            NULL if policy is None else _SOME + encoders.policy(_policy(policy)),
            _string(draft.question_id),
            _string(draft.answered_by),
            _string(draft.build_id),
        )
    )


def _policy(policy: PolicyRecord) -> Mapping[str, str | None]:
    return {
        "decision": policy.decision,
        "decision_id": policy.decision_id,
        "policy_version": policy.policy_version,
        "reason": policy.reason,
    }


def _pinned_fields(encoders: _Encoders, parts: PinnedParts) -> bytes:
    if encoders.kinds is None:
        if parts is not _NOTHING_PINNED:
            raise InvariantBroken("an outcome with pinned parts")
        return b""
    if parts is _NOTHING_PINNED:
        return NULL * len(_PINNED_FIELDS)
    resolved: dict[str, JsonValue] | None = None
    if parts.resolved is not None:
        resolved = parts.resolved.model_dump(mode="json")
        resolved["limits"] = canonical(resolved["limits"]).decode()
    return encoders.pinned(
        {
            "sent_digest": parts.sent_digest,
            "expires_at": parts.expires_at,
            "pin": None if parts.pin is None else parts.pin.model_dump(),
            "resolved": resolved,
        }
    )


def _tail(payload: str | None, salt: bytes | None, signature: bytes | None) -> bytes:
    return _string(payload) + _bytes(salt) + _bytes(signature)


@cache
def _encoders(name: str) -> _Encoders:
    schema = schemas.current(name)
    types = {field["name"]: field["type"] for field in schema.parsed["fields"]}
    is_step = "kind" in types
    expected = (
        *_RUN_FIELDS, "trace", "event_seq", *(("kind",) if is_step else ()), "status",
        *_MOVING_FIELDS, *_DRAFT_FIELDS, *(_PINNED_FIELDS if is_step else ()), *_SEAL_FIELDS,
    )  # fmt: skip
    trace = types["trace"]
    constant = [field["name"] for field in trace["fields"][:_TRACE_CONSTANT_FIELDS]]
    moving = [field["name"] for field in trace["fields"][_TRACE_CONSTANT_FIELDS:]]
    if tuple(types) != expected or moving != ["orchestration_step", "loop_step", "max_loop_steps"]:
        raise InvariantBroken(f"{name}: its fields are not in the order that sealing needs")
    return _Encoders(
        fingerprint=schema.fingerprint,
        run=compile_fields(schema.parsed, _RUN_FIELDS),
        trace_constant=compile_fields(trace, constant),
        kinds=enum_codes(types["kind"]) if is_step else None,
        statuses=enum_codes(types["status"]),
        effects=enum_codes(types["effect"][1]),
        policy=compile_encoder(types["policy"][1]),
        pinned=compile_fields(schema.parsed, _PINNED_FIELDS if is_step else ()),
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
    return {name: getattr(trace, name) for name in TraceFields.__slots__}
