"""DESIGN 5: when two starts are the same start, and two resumes the same resume."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from session_custody import wire
from session_custody.core.events import Answerer, ResumeKind, RunResume, RunStart
from session_custody.core.pin import MemoryProfile, SentPin, Subject

PIN = SentPin(route_id="r", route_table_version="1", model_profile="m")
START = RunStart(
    correlation_id="run-1",
    subject=Subject(id="u-17", tenant="bank-a"),
    pin=PIN,
    input='{"b": 1, "a": [1.0, "x"]}',
)


def test_the_digest_is_what_a_stranger_computes() -> None:
    document = {
        "correlation_id": "run-1",
        "subject": {"id": "u-17", "tenant": "bank-a"},
        "route_id": "r",
        "route_table_version": "1",
        "model_profile": "m",
        "input": {"b": 1, "a": [1, "x"]},
    }
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    assert wire.sent_digest(START) == hashlib.sha256(canonical).digest()


@pytest.mark.parametrize(
    "changed",
    [
        {"input": '{"a":[1,"\\u0078"],"b":1.0}'},
        {"expires_at": datetime(2026, 8, 14, tzinfo=UTC)},
        {"parent": "run-0"},
        {"forked_from": "run-0/3"},
        {"session_id": None},
        {"subject": Subject(id="u-17", tenant="bank-a", actor=())},
    ],
)
def test_what_is_not_sent_or_not_said_does_not_count(changed: dict[str, Any]) -> None:
    assert wire.sent_digest(START.model_copy(update=changed)) == wire.sent_digest(START)


@pytest.mark.parametrize(
    "changed",
    [
        {"correlation_id": "run-2"},
        {"session_id": "s"},
        {"tenant": "bank-a"},
        {"subject": Subject(id="u-17", tenant="bank-a", actor=("x",))},
        {"subject": Subject(id="u-17")},
        {"decision_id": "d"},
        {"input": '{"a":[1,"x"],"b":"1"}'},
        {"input": "null"},
        *(
            {"pin": PIN.model_copy(update={name: value})}
            for name, value in {
                "route_id": "r2",
                "route_table_version": "2",
                "activation_target": "t",
                "manifest_id": "x",
                "manifest_version": "x",
                "workflow_id": "x",
                "workflow_version": "x",
                "policy_profile": "x",
                "policy_version": "x",
                "model_profile": "x",
                "memory_profile": MemoryProfile(name="x"),
                "max_loop_steps": 12,
            }.items()
        ),
    ],
)
def test_everything_else_makes_another_start(changed: dict[str, Any]) -> None:
    assert wire.sent_digest(START.model_copy(update=changed)) != wire.sent_digest(START)


def test_every_pin_field_is_covered() -> None:
    covered = {
        "route_id", "route_table_version", "activation_target", "manifest_id", "manifest_version",
        "workflow_id", "workflow_version", "policy_profile", "policy_version", "model_profile",
        "memory_profile", "max_loop_steps",
    }  # fmt: skip
    assert covered == set(SentPin.model_fields)


def test_a_digest_survives_the_wire() -> None:
    decoded = wire.decode_input(wire.encode_start(START))
    assert isinstance(decoded, RunStart)
    assert wire.sent_digest(decoded) == wire.sent_digest(START)


def test_two_resumes_are_the_same_by_their_documents_not_their_spelling() -> None:
    one = RunResume(
        correlation_id="run-1", kind=ResumeKind.SIGNAL, question_id="q", answer='{"a": 1, "b": 2}'
    )
    assert wire.resume_digest(one) == wire.resume_digest(one.model_copy(update={"answer": '{"b":2,"a":1.0}'}))
    others: list[dict[str, Any]] = [
        {"answer": "null"},
        {"question_id": "q2"},
        {"reason": "x"},
        {"answered_by": Answerer(id="u")},
        {"correlation_id": "run-2"},
        {"subject": Subject(id="u")},
    ]
    digests = {wire.resume_digest(one.model_copy(update=changed)) for changed in others}
    assert len(digests | {wire.resume_digest(one)}) == len(others) + 1
