"""Events: what comes in (RunStart, RunResume) and what a run says (DESIGN 7, 15).

Wire field = model attribute = column. The Avro files in `schemas/` are the contract; these are their values.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import AwareDatetime, Field, JsonValue

from session_custody.core import bounds
from session_custody.core.pin import Frozen, Id, SentPin, Subject
from session_custody.core.run import Status
from session_custody.core.trace import TraceFields

FORMAT = 1
"""Number of the row and event format; a worker refuses to drive a checkpoint with a newer one."""


class RunStart(Frozen):
    """A start, decoded. `input` is the JSON text as sent; it was parsed once and found well-formed."""

    correlation_id: Id
    session_id: Id | None = None
    tenant: Id | None = None
    subject: Subject
    decision_id: Id | None = None
    pin: SentPin
    input: str
    expires_at: AwareDatetime | None = None
    parent: Id | None = None
    forked_from: str | None = Field(default=None, max_length=500)


class ResumeKind(StrEnum):
    CONTINUE = "continue"
    SIGNAL = "signal"
    CANCEL = "cancel"


class Answerer(Frozen):
    """Who answered a question; checked by the owner against who may (DESIGN 5)."""

    id: Id
    tenant: Id | None = None
    roles: tuple[Id, ...] = ()


class RunResume(Frozen):
    """A resume, decoded. Carries no pin field (I2)."""

    correlation_id: Id | None = None
    session_id: Id | None = None
    tenant: Id | None = None
    subject: Subject | None = None
    kind: ResumeKind
    question_id: str | None = Field(default=None, max_length=bounds.ID_CHARS_MAX)
    answer: str | None = None
    answered_by: Answerer | None = None
    reason: str | None = Field(default=None, max_length=bounds.REASON_CHARS_MAX)
    activation_target: str | None = Field(default=None, max_length=2_000)


class EventKind(StrEnum):
    """The kinds of DESIGN 7; `ce_type` is `<prefix>.run.<kind>.v1`. `OUTCOME` is an OutcomeEvent, the rest
    StepEvents.
    """

    PINNED = "pinned"
    DECIDED = "decided"
    INTENT = "intent"
    TOOL_RESULT = "tool_result"
    INFERENCE = "inference"
    STAGE_BEGUN = "stage_begun"
    STAGE_ENDED = "stage_ended"
    WAITING = "waiting"
    ANSWERED = "answered"
    PARKED = "parked"
    RESUMED = "resumed"
    IN_DOUBT = "in_doubt"
    RESOLVED = "resolved"
    SIGNAL_REFUSED = "signal_refused"
    REPINNED = "repinned"
    ERASED = "erased"
    OUTCOME = "outcome"


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """The PEP's decision as it stands in `intent` and `tool_result` events (I12)."""

    decision: Literal["allow", "deny"]
    decision_id: str
    policy_version: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class EventDraft:
    """One event as the machine writes it: no number, no hash, no time; the driver adds those.

    `record` is private and whole: what a resume rebuilds the transcript from. `visible` is the payload that
    the manifest lets out (None: nothing). Digests are hex SHA-256 of canonical documents.
    """

    kind: EventKind
    status: Status
    """The run's status once this commit stands."""
    orchestration_step: str
    loop_step: int
    record: JsonValue = None
    visible: JsonValue = None
    tool: str | None = None
    effect: Literal["read", "write"] | None = None
    ordinal: int | None = None
    call_id: str | None = None
    idempotency_key: str | None = None
    args_digest: str | None = None
    result_digest: str | None = None
    result: str | None = None
    """Of a tool_result: ok | error | denied | malformed | not_done | done | unstorable."""
    attempt: int | None = None
    code: str | None = None
    """Machine-readable cause: a tool's error code, a park reason, an exhausted bound, a refused signal's
    cause.
    """
    reason: str | None = None
    """A person's or tool's words, bounded; shown to operators and auditors."""
    policy: PolicyRecord | None = None
    question_id: str | None = None
    answered_by: str | None = None
    causation_id: str | None = None
    """`ce_id` of the start or resume that led here, when one did."""
    build_id: str | None = None
    """Build of a `python:` tool, recorded on each of its steps."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What every event of a run repeats: identity and the constant half of the trace fields."""

    run_id: str
    correlation_id: str
    session_id: str | None
    tenant: str | None
    subject: Subject
    decision_id: str | None
    pin: SentPin
    manifest_version: str | None
    workflow_version: str | None
    policy_version: str | None
    parent: str | None = None
    forked_from: str | None = None

    def trace(self, orchestration_step: str, loop_step: int) -> TraceFields:
        return TraceFields(
            session_id=self.session_id,
            run_id=self.run_id,
            correlation_id=self.correlation_id,
            route_id=self.pin.route_id,
            route_table_version=self.pin.route_table_version,
            manifest_version=self.manifest_version,
            policy_profile=self.pin.policy_profile,
            model_profile=self.pin.model_profile,
            orchestration_step=orchestration_step,
            loop_step=loop_step,
            max_loop_steps=self.pin.max_loop_steps,
        )


@dataclass(frozen=True, slots=True)
class SealedEvent:
    """An event with its number and hash, ready for its step row (I7, I9).

    `body` is the Avro body with payload, salt and signature null; `hash` its SHA-256. `payload` is the
    visible document as JSON text; `salt` 16 random bytes, on every event, so a row written again never looks
    the same: payload_digest in the body is SHA-256(salt || payload) and is never null.
    """

    kind: EventKind
    event_seq: int
    schema_fingerprint: bytes
    body: bytes
    hash: bytes
    salt: bytes
    payload: str | None
    record: str | None
    signature: bytes | None
    occurred_at: datetime
