"""Station 2: what a value of the input topic may be, and with which reason everything else is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from session_custody import wire
from session_custody.core import bounds
from session_custody.core.errors import RecordRejected, RejectReason
from session_custody.core.events import Answerer, ResumeKind, RunResume, RunStart
from session_custody.core.pin import MemoryProfile, SentPin, Subject
from session_custody.wire import schemas
from session_custody.wire.encoder import compile_encoder
from session_custody.wire.inputs import ACTORS_MAX, RECORD_BYTES_MAX, ROLES_MAX, TEXT_CHARS_MAX

IDS = st.from_regex(bounds.ID_PATTERN, fullmatch=True)
TEXTS = st.text(st.characters(exclude_characters="\x00", codec="utf-8"), max_size=50)
MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
SUBJECTS = st.builds(
    Subject, id=IDS, tenant=st.none() | IDS, actor=st.lists(IDS, max_size=ACTORS_MAX).map(tuple)
)
PINS = st.builds(
    SentPin,
    route_id=IDS,
    route_table_version=IDS,
    activation_target=st.none() | TEXTS,
    manifest_id=st.none() | IDS,
    manifest_version=st.none() | IDS,
    workflow_id=st.none() | IDS,
    workflow_version=st.none() | IDS,
    policy_profile=st.none() | IDS,
    policy_version=st.none() | IDS,
    model_profile=IDS,
    memory_profile=st.none()
    | st.builds(
        MemoryProfile,
        name=TEXTS,
        ttl_hours=st.none() | st.integers(-(2**31), 2**31 - 1),
        long_term_recall=st.none() | st.booleans(),
    ),
    max_loop_steps=st.none() | st.integers(1, 1000),
)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
).map(json.dumps)
STARTS = st.builds(
    RunStart,
    correlation_id=IDS,
    session_id=st.none() | IDS,
    subject=SUBJECTS,
    decision_id=st.none() | IDS,
    pin=PINS,
    input=DOCUMENTS,
    expires_at=st.none() | MOMENTS,
    parent=st.none() | IDS,
    forked_from=st.none() | TEXTS,
)
RESUMES = st.builds(
    RunResume,
    correlation_id=st.none() | IDS,
    session_id=st.none() | IDS,
    subject=st.none() | SUBJECTS,
    kind=st.sampled_from([ResumeKind.CONTINUE, ResumeKind.CANCEL]),
    reason=st.none() | TEXTS,
    activation_target=st.none() | TEXTS,
) | st.builds(
    RunResume,
    correlation_id=IDS,
    kind=st.just(ResumeKind.SIGNAL),
    question_id=st.none() | IDS,
    answer=DOCUMENTS,
    answered_by=st.none() | st.builds(Answerer, id=IDS, roles=st.lists(IDS, max_size=4).map(tuple)),
)

START: dict[str, Any] = {
    "correlation_id": "run-1",
    "subject": {"id": "u-17", "tenant": "bank-a", "actor": []},
    "route_id": "fraud_investigate",
    "route_table_version": "2026.08.1",
    "model_profile": "reasoning-standard",
    "input": '"hi"',
}
RESUME: dict[str, Any] = {"correlation_id": "run-1", "kind": "continue"}


def framed(fields: dict[str, Any], name: str = schemas.RUN_START) -> bytes:
    schema = schemas.current(name)
    return wire.SINGLE_OBJECT.frame(schema.fingerprint, compile_encoder(schema.parsed)(fields))


def refused(value: bytes | None) -> RecordRejected:
    with pytest.raises(RecordRejected) as caught:
        wire.decode_input(value)
    return caught.value


@given(STARTS)
def test_a_start_comes_back_as_it_was_sent(start: RunStart) -> None:
    assert wire.decode_input(wire.encode_start(start)) == start


@given(RESUMES)
def test_a_resume_comes_back_as_it_was_sent(resume: RunResume) -> None:
    assert wire.decode_input(wire.encode_resume(resume)) == resume


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_rejection(junk: bytes) -> None:
    for value in (junk, wire.encode_start(start_of())[:10] + junk):
        try:
            decoded = wire.decode_input(value)
        except RecordRejected:
            continue
        assert isinstance(decoded, RunStart)


@settings(max_examples=50)
@given(st.data())
def test_a_changed_byte_never_raises_anything_but_a_rejection(data: st.DataObject) -> None:
    value = bytearray(wire.encode_start(start_of()))
    place = data.draw(st.integers(0, len(value) - 1))
    value[place] ^= data.draw(st.integers(1, 255))
    try:
        decoded = wire.decode_input(bytes(value))
    except RecordRejected:
        return
    assert isinstance(decoded, RunStart)


def start_of(**changed: Any) -> RunStart:
    decoded = wire.decode_input(framed(START | changed))
    assert isinstance(decoded, RunStart)
    return decoded


@pytest.mark.parametrize("value", [None, b""])
def test_a_record_without_a_value_is_undecodable(value: bytes | None) -> None:
    assert refused(value).reason is RejectReason.UNDECODABLE


def test_every_byte_is_consumed() -> None:
    error = refused(wire.encode_start(start_of()) + b"\x00")
    assert error.reason is RejectReason.UNDECODABLE
    assert "1 bytes are left" in error.detail


def test_a_truncated_record_is_undecodable_at_every_length() -> None:
    whole = wire.encode_start(start_of())
    for length in range(1, len(whole)):
        assert refused(whole[:length]).reason is RejectReason.UNDECODABLE


def test_an_unknown_fingerprint_is_schema_unknown() -> None:
    error = refused(b"\xc3\x01" + b"12345678" + b"body")
    assert error.reason is RejectReason.SCHEMA_UNKNOWN
    assert b"12345678".hex() in error.detail


def test_a_registry_record_is_told_what_it_is() -> None:
    error = refused(b"\x00\x00\x00\x00\x2a" + b"body")
    assert error.reason is RejectReason.SCHEMA_UNKNOWN
    assert "schema id 42" in error.detail


def test_json_is_told_what_it_is() -> None:
    assert "begins like JSON" in refused(b'{"correlation_id": "run-1"}').detail


def test_an_event_of_ours_does_not_belong_on_the_input_topic() -> None:
    value = wire.SINGLE_OBJECT.frame(schemas.current(schemas.STEP_EVENT).fingerprint, b"")
    assert refused(value).reason is RejectReason.INVALID_EVENT


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"correlation_id": ""}, "correlation_id: "),
        ({"correlation_id": "a/b"}, "correlation_id: "),
        ({"correlation_id": "a" * 201}, "correlation_id: "),
        ({"route_id": "sp ace"}, "route_id: "),
        ({"max_loop_steps": 0}, "max_loop_steps: "),
        ({"max_loop_steps": 1001}, "max_loop_steps: "),
        ({"tenant": "bank-b"}, "tenant: "),
        ({"subject": {"id": "u-17", "tenant": None}, "tenant": "bank-a"}, "tenant: "),
        ({"subject": {"id": "", "tenant": None}}, "subject.id: "),
        ({"subject": {"id": "u", "actor": ["a"] * (ACTORS_MAX + 1)}}, "subject.actor: "),
        ({"activation_target": "a\x00b"}, "activation_target: holds a NUL"),
        ({"memory_profile": {"name": "x" * (TEXT_CHARS_MAX + 1)}}, "memory_profile.name: longer"),
        ({"input": "hi"}, "input: no JSON"),
        ({"input": ""}, "input: no JSON"),
        ({"input": '{"a": 1, "a": 2}'}, "input: an object names a key twice"),
        ({"input": "9007199254740992"}, "input: an integer is beyond"),
        ({"input": "NaN"}, "input: NaN"),
        ({"input": '"\\ud800"'}, "input: a string holds a lone surrogate"),
        ({"input": "[" * 200 + "]" * 200}, "input: nested deeper"),
    ],
)
def test_a_start_of_the_wrong_shape_is_refused_by_field_path(changed: dict[str, Any], path: str) -> None:
    error = refused(framed(START | changed))
    assert error.reason is RejectReason.INVALID_EVENT
    assert error.detail.startswith(path)


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"kind": "UNKNOWN"}, "kind: "),
        ({"kind": "signal"}, "answer: "),
        ({"answer": '"yes"'}, "answer: "),
        ({"kind": "signal", "answer": "yes"}, "answer: no JSON"),
        ({"reason": "a\x00"}, "reason: holds a NUL"),
        ({"subject": {"id": "u", "tenant": "bank-a"}, "tenant": "bank-b"}, "tenant: "),
        (
            {"kind": "signal", "answer": "1", "answered_by": {"id": "u", "roles": ["r"] * (ROLES_MAX + 1)}},
            "answered_by.roles: ",
        ),
    ],
)
def test_a_resume_of_the_wrong_shape_is_refused_by_field_path(changed: dict[str, Any], path: str) -> None:
    error = refused(framed(RESUME | changed, schemas.RUN_RESUME))
    assert error.reason is RejectReason.INVALID_EVENT
    assert error.detail.startswith(path)


def test_a_refusal_never_repeats_a_value() -> None:
    marker = "not-to-be-seen"
    for changed in (
        {"correlation_id": f"{marker} "},
        {"input": f'{{"{marker}": '},
        {"route_id": marker + "/"},
    ):
        assert marker not in str(refused(framed(START | changed)))


@pytest.mark.parametrize(
    ("size", "accepted"), [(bounds.INPUT_BYTES_MAX, True), (bounds.INPUT_BYTES_MAX + 1, False)]
)
def test_the_bound_of_input_counts_bytes(size: int, accepted: bool) -> None:
    text = '"' + "é" * ((size - 2) // 2) + "x" * (size % 2) + '"'
    assert len(text.encode()) == size
    value = framed(START | {"input": text})
    if accepted:
        assert isinstance(wire.decode_input(value), RunStart)
    else:
        assert refused(value).reason is RejectReason.TOO_LARGE


def test_the_bound_of_an_answer() -> None:
    def resume(size: int) -> bytes:
        return framed(RESUME | {"kind": "signal", "answer": '"' + "x" * (size - 2) + '"'}, schemas.RUN_RESUME)

    assert isinstance(wire.decode_input(resume(bounds.ANSWER_BYTES_MAX)), RunResume)
    assert refused(resume(bounds.ANSWER_BYTES_MAX + 1)).reason is RejectReason.TOO_LARGE


def test_a_record_beyond_its_bound_is_not_even_decoded() -> None:
    assert refused(b"\xc3\x01" + bytes(RECORD_BYTES_MAX)).reason is RejectReason.TOO_LARGE


def test_a_nul_inside_a_document_is_kept() -> None:
    assert wire.parse_input(start_of(input='{"a": "\\u0000"}').input) == {"a": "\x00"}


def test_the_largest_exact_integer_is_taken() -> None:
    assert wire.parse_input(start_of(input=str(2**53 - 1)).input) == 2**53 - 1
