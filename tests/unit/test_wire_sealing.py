"""I9: the bytes under an event's hash, and that a stranger with the .avsc alone gets the same ones."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from session_custody import wire
from session_custody.core.errors import InvariantBroken, RecordRejected
from session_custody.core.events import EventDraft, EventKind, PolicyRecord, RunFacts, SealedEvent
from session_custody.core.pin import MemoryProfile, Pattern, Resolved, RunPin, SentPin, Subject
from session_custody.core.run import TERMINAL, Status
from session_custody.resources import schemas_dir
from session_custody.wire import schemas

NOW = datetime(2026, 8, 14, 2, 11, 5, 123456, tzinfo=UTC)
SALT = bytes(range(16))
PREVIOUS = b"p" * 32
PIN = SentPin(
    route_id="fraud_investigate",
    route_table_version="2026.08.1",
    manifest_id="fraud-investigate-v2",
    manifest_version="2026.08.1",
    policy_profile="fraud_ops",
    model_profile="reasoning-standard",
    memory_profile=MemoryProfile(name="short", ttl_hours=4, long_term_recall=False),
    max_loop_steps=12,
)
FACTS = RunFacts(
    run_id="run-9f3c",
    correlation_id="run-9f3c",
    session_id="sess-88",
    tenant="bank-a",
    subject=Subject(id="u-17", tenant="bank-a", actor=("svc-1",)),
    decision_id="d-1",
    pin=PIN,
    manifest_version="2026.08.1",
    workflow_version=None,
    policy_version="7",
)
OUTCOME = EventDraft(EventKind.OUTCOME, Status.SUCCEEDED, "loop", 3, visible="done")


class FixedSigner:
    key_id = "0123456789abcdef"

    def sign(self, event_hash: bytes) -> bytes:
        return b"signed" + event_hash


TEXTS = st.text(st.characters(codec="utf-8"), max_size=80)
MAYBE = st.none() | TEXTS
NUMBERS = st.none() | st.integers(0, 2**31 - 1)
DRAFTS = st.builds(
    EventDraft,
    kind=st.sampled_from(EventKind),
    status=st.sampled_from(sorted(TERMINAL)),
    orchestration_step=TEXTS,
    loop_step=st.integers(0, 1000),
    record=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=2),
    visible=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=2),
    tool=MAYBE,
    effect=st.sampled_from([None, "read", "write"]),
    ordinal=NUMBERS,
    call_id=MAYBE,
    idempotency_key=MAYBE,
    args_digest=MAYBE,
    result_digest=MAYBE,
    result=MAYBE,
    attempt=NUMBERS,
    code=MAYBE,
    reason=MAYBE,
    policy=st.none()
    | st.builds(
        PolicyRecord,
        decision=st.sampled_from(["allow", "deny"]),
        decision_id=TEXTS,
        policy_version=MAYBE,
        reason=MAYBE,
    ),
    question_id=MAYBE,
    answered_by=MAYBE,
    causation_id=MAYBE,
    build_id=MAYBE,
)


def seal(draft: EventDraft, event_seq: int = 4, **more: Any) -> SealedEvent:
    previous = None if event_seq == 1 else PREVIOUS
    return wire.seal(draft, FACTS, event_seq, previous, NOW, FixedSigner(), SALT, **more)


def value_of(event: SealedEvent) -> bytes:
    return wire.published_value(
        event.schema_fingerprint, event.body, event.payload, event.salt, event.signature
    )


def strangers_view(value: bytes, file: str) -> tuple[dict[str, Any], bytes]:
    """The event and its hash by fastavro and the .avsc file alone."""
    schema = fastavro.parse_schema(json.loads((schemas_dir() / file).read_text(encoding="utf-8")))
    event = fastavro.schemaless_reader(BytesIO(value[10:]), schema, None)
    assert isinstance(event, dict)
    stream = BytesIO()
    fastavro.schemaless_writer(stream, schema, event | {"payload": None, "salt": None, "signature": None})
    return event, hashlib.sha256(stream.getvalue()).digest()


@given(DRAFTS, st.integers(2, 2**40))
def test_a_stranger_gets_the_same_hash_from_the_schema_alone(draft: EventDraft, event_seq: int) -> None:
    event = seal(draft, event_seq)
    file = "OutcomeEvent.avsc" if draft.kind is EventKind.OUTCOME else "StepEvent.avsc"
    read, computed = strangers_view(value_of(event), file)
    assert computed == event.hash
    for field in fields(draft):
        if field.name in read and field.name != "policy":
            assert read[field.name] == getattr(draft, field.name)
    assert read["policy"] == (None if draft.policy is None else {
        "decision": draft.policy.decision, "decision_id": draft.policy.decision_id,
        "policy_version": draft.policy.policy_version, "reason": draft.policy.reason,
    })  # fmt: skip
    assert read["event_seq"] == event_seq
    assert read["prev_hash"] == PREVIOUS
    assert read["occurred_at"] == NOW


def test_no_field_of_a_draft_is_left_out_of_its_event() -> None:
    private = {"record", "visible", "orchestration_step", "loop_step"}  # the last two stand in `trace`
    step = {field["name"] for field in schemas.current(schemas.STEP_EVENT).parsed["fields"]}
    assert {field.name for field in fields(EventDraft)} - private <= step


def test_the_trace_fields_stand_verbatim() -> None:
    event = seal(EventDraft(EventKind.DECIDED, Status.RUNNING, "loop", 3))
    expected = {
        "session_id": "sess-88",
        "run_id": "run-9f3c",
        "correlation_id": "run-9f3c",
        "route_id": "fraud_investigate",
        "route_table_version": "2026.08.1",
        "manifest_version": "2026.08.1",
        "policy_profile": "fraud_ops",
        "model_profile": "reasoning-standard",
        "orchestration_step": "loop",
        "loop_step": 3,
        "max_loop_steps": 12,
    }
    assert wire.decode_event(value_of(event))["trace"] == expected
    assert wire.decode_trace(event.schema_fingerprint, event.body) == expected
    assert list(expected) == list(wire.decode_trace(event.schema_fingerprint, event.body))


def test_the_first_event_carries_what_admission_pinned() -> None:
    resolved = Resolved(pattern=Pattern.LOOP, manifest_version="2026.08.1", manifest_digest="ab")
    parts = wire.PinnedParts.of(RunPin(sent=PIN, resolved=resolved), b"d" * 32, NOW)
    event = seal(EventDraft(EventKind.PINNED, Status.QUEUED, "loop", 0, visible={"a": 1}), 1, parts=parts)
    read, computed = strangers_view(value_of(event), "StepEvent.avsc")
    assert computed == event.hash
    assert read["prev_hash"] is None
    assert read["sent_digest"] == b"d" * 32
    assert read["expires_at"] == NOW
    assert read["pin"] == PIN.model_dump()
    assert read["resolved"]["pattern"] == "1"
    assert json.loads(read["resolved"]["limits"])["model_attempts"] == 5


def test_erasing_payload_and_salt_changes_no_hash() -> None:
    event = seal(EventDraft(EventKind.TOOL_RESULT, Status.RUNNING, "loop", 1, visible={"id": "n-1"}))
    erased = wire.published_value(event.schema_fingerprint, event.body, None, None, None)
    assert wire.hashed_body(erased) == wire.hashed_body(value_of(event)) == event.body
    assert wire.verify_hash(wire.hashed_body(erased), event.hash)
    assert "n-1" not in repr(wire.decode_event(erased))


def test_the_payload_is_bound_by_its_digest() -> None:
    event = seal(EventDraft(EventKind.TOOL_RESULT, Status.RUNNING, "loop", 1, visible={"id": "é"}))
    read = wire.decode_event(value_of(event))
    assert read["payload"] == '{"id":"é"}'
    assert read["payload_digest"] == hashlib.sha256(SALT + '{"id":"é"}'.encode()).digest()


def test_an_event_written_again_never_looks_the_same() -> None:
    draft = EventDraft(EventKind.DECIDED, Status.RUNNING, "loop", 1)
    again = wire.seal(draft, FACTS, 4, PREVIOUS, NOW, None, bytes(16))
    assert again.hash != seal(draft).hash


def test_a_replay_is_byte_identical() -> None:
    assert value_of(seal(OUTCOME)) == value_of(seal(OUTCOME))


def test_only_outcomes_are_signed_and_they_always_are() -> None:
    outcome = seal(OUTCOME)
    assert outcome.signature == b"signed" + outcome.hash
    assert wire.decode_event(value_of(outcome))["key_id"] == FixedSigner.key_id
    step = seal(EventDraft(EventKind.DECIDED, Status.RUNNING, "loop", 1))
    assert step.signature is None
    assert wire.decode_event(value_of(step))["key_id"] is None
    with pytest.raises(InvariantBroken):
        wire.seal(OUTCOME, FACTS, 4, PREVIOUS, NOW, None, SALT)


def test_the_record_stays_private() -> None:
    event = seal(EventDraft(EventKind.DECIDED, Status.RUNNING, "loop", 1, record={"text": "kept-private"}))
    assert event.record == '{"text":"kept-private"}'
    assert b"kept-private" not in value_of(event)


@pytest.mark.parametrize(
    ("event_seq", "previous", "salt", "at"),
    [
        (1, PREVIOUS, SALT, NOW),
        (2, None, SALT, NOW),
        (0, None, SALT, NOW),
        (2, PREVIOUS, b"short", NOW),
        (2, PREVIOUS, SALT, NOW.replace(tzinfo=None)),
    ],
)
def test_what_must_not_be_sealed_is_not(
    event_seq: int, previous: bytes | None, salt: bytes, at: datetime
) -> None:
    draft = EventDraft(EventKind.DECIDED, Status.RUNNING, "loop", 1)
    with pytest.raises(InvariantBroken):
        wire.seal(draft, FACTS, event_seq, previous, at, None, salt)


def test_an_outcome_is_terminal() -> None:
    with pytest.raises(InvariantBroken):
        seal(replace(OUTCOME, status=Status.PARKED))


def test_a_lone_surrogate_of_a_model_stops_no_run() -> None:
    event = seal(EventDraft(EventKind.DECIDED, Status.RUNNING, "loop", 1, call_id="a\ud800b"))
    assert wire.decode_event(value_of(event))["call_id"] == "a�b"


def test_a_body_that_is_no_sealed_one_is_not_published() -> None:
    event = seal(OUTCOME)
    with pytest.raises(InvariantBroken):
        wire.published_value(event.schema_fingerprint, event.body + b"x", None, None, None)


def test_a_changed_value_has_another_hash_or_is_refused() -> None:
    event = seal(OUTCOME)
    value = value_of(event)
    for place in range(10, len(value) - 80):
        changed = value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
        try:
            body = wire.hashed_body(changed)
        except RecordRejected:
            continue
        read = wire.decode_event(changed)
        unchanged = wire.verify_hash(body, event.hash)
        assert not (
            unchanged and read["payload_digest"] == wire.payload_digest(read["salt"], read["payload"])
        )


def test_the_constant_part_belongs_to_its_run() -> None:
    draft = EventDraft(EventKind.DECIDED, Status.RUNNING, "loop", 1)
    for number in range(5000):  # more runs than are remembered
        facts = replace(FACTS, run_id=f"run-{number}", correlation_id=f"run-{number}")
        event = wire.seal(draft, facts, 2, PREVIOUS, NOW, None, SALT)
        if number % 499 == 0:
            assert wire.decode_trace(event.schema_fingerprint, event.body)["run_id"] == f"run-{number}"
