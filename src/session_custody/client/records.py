"""What a producer writes and what it reads: RunStart with flat fields, and an Outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import AwareDatetime, Field, JsonValue

from session_custody.client.failures import InvalidRecord, OutcomesUnreadable
from session_custody.core import events
from session_custody.core.canonical import accept, compact
from session_custody.core.errors import RecordRejected
from session_custody.core.events import ResumeKind, RunResume
from session_custody.core.pin import Frozen, Id, MemoryProfile, Subject
from session_custody.core.run import Status
from session_custody.wire import decode_event
from session_custody.wire.inputs import resume_from_fields, start_from_fields


class RunStart(Frozen):
    """A start as a producer writes it: fields as in RunStart.avsc, but `input` is any JSON value."""

    correlation_id: Id
    session_id: Id | None = None
    tenant: Id | None = None
    subject: Subject
    decision_id: Id | None = None
    route_id: Id
    route_table_version: Id
    activation_target: str | None = None
    manifest_id: Id | None = None
    manifest_version: Id | None = None
    workflow_id: Id | None = None
    workflow_version: Id | None = None
    policy_profile: Id | None = None
    policy_version: Id | None = None
    model_profile: Id
    memory_profile: MemoryProfile | None = None
    max_loop_steps: int | None = None
    input: JsonValue
    expires_at: AwareDatetime | None = None
    parent: Id | None = None
    forked_from: str | None = Field(default=None, max_length=500)

    def event(self) -> events.RunStart:
        """The wire's value. Raises InvalidRecord for what the app would refuse."""
        try:
            text = compact(self.input)
            accept(text)
            return start_from_fields(self.model_dump(exclude={"input"}) | {"input": text})
        except RecordRejected as error:
            problem = error.detail
        except ValueError as error:
            problem = f"input: {error}"
        raise InvalidRecord(problem)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `payload` is what its manifest lets out; `event` the whole OutcomeEvent, decoded."""

    run_id: str
    status: Status
    event_seq: int
    code: str | None
    reason: str | None
    payload: JsonValue
    occurred_at: datetime
    event: Mapping[str, Any] = field(repr=False)


def resume_of(kind: ResumeKind, fields: Mapping[str, Any]) -> RunResume:
    try:
        return resume_from_fields({**fields, "kind": kind})
    except RecordRejected as error:
        problem = error.detail
    raise InvalidRecord(problem)


def outcome_of(value: bytes) -> Outcome:
    try:
        event = decode_event(value)
        status = Status(event["status"])
    except (RecordRejected, ValueError) as error:
        raise OutcomesUnreadable(f"an outcome cannot be read: {error}") from None
    payload = event["payload"]
    return Outcome(
        run_id=event["trace"]["run_id"],
        status=status,
        event_seq=event["event_seq"],
        code=event["code"],
        reason=event["reason"],
        payload=None if payload is None else accept(payload),
        occurred_at=event["occurred_at"],
        event=event,
    )
