"""Stations 3 and 4: what a record becomes when it starts no run: a signal or a dead letter (DESIGN 5)."""

from __future__ import annotations

from typing import Final

from pydantic import JsonValue

from session_custody.core.errors import InvariantBroken, RejectReason
from session_custody.core.events import ResumeKind, RunResume, RunStart
from session_custody.core.pin import RunId
from session_custody.core.signals import SignalKind
from session_custody.intake.decode import Decoded
from session_custody.ports import NewDeadLetter, NewSignal
from session_custody.wire import resume_digest

_KINDS: Final = {
    ResumeKind.CONTINUE: SignalKind.CONTINUE,
    ResumeKind.SIGNAL: SignalKind.ANSWER,
    ResumeKind.CANCEL: SignalKind.CANCEL,
}
_SAID: Final = {"question_id", "answer", "answered_by", "reason", "subject", "tenant", "session_id"}


def signal(decoded: Decoded, run_id: RunId, held: bool, topic_id: str) -> NewSignal:
    """A resume as its run's signal. `body`: what it said, under the names of the wire; `answer` is JSON text.

    A duplicate is known by ce_source, ce_id and digest; without these headers the record's place stands for
    them.
    """
    record, resume = decoded.record, decoded.event
    if not isinstance(resume, RunResume):
        raise InvariantBroken("only a resume becomes a signal")
    body: dict[str, JsonValue] = resume.model_dump(mode="json", include=_SAID, exclude_none=True)
    named = decoded.headers.ce_id is not None and decoded.headers.ce_source is not None
    return NewSignal(
        run_id=run_id,
        kind=_KINDS[resume.kind],
        body=body,
        source="kafka",
        dedupe_source=decoded.headers.ce_source if named else topic_id,
        dedupe_id=decoded.headers.ce_id if named else f"{record.partition}/{record.offset}",
        dedupe_digest=resume_digest(resume),
        causation_id=decoded.headers.ce_id,
        recorded_at=record.recorded_at,
        held=held,
        order=decoded.order,
        raw_value=record.value if held else None,
        raw_key=record.key if held else None,
        raw_headers=decoded.kept_headers if held else (),
        topic_id=topic_id,
        offset=record.offset,
    )


def dead_letter(
    decoded: Decoded, topic_id: str, reason: RejectReason, detail: str, run_id: RunId | None, *, bare: bool
) -> NewDeadLetter:
    """Exact bytes, place and reason (I13), without headers that carry a credential. `bare`: without content,
    because Postgres refused to store it.
    """
    record = decoded.record
    return NewDeadLetter(
        reason=reason,
        detail=detail,
        topic_id=topic_id,
        offset=record.offset,
        key=None if bare else record.key,
        value=None if bare else record.value,
        headers=() if bare else decoded.kept_headers,
        recorded_at=record.recorded_at,
        run_id=run_id or _named_run(decoded),
        order=decoded.order,
    )


def _named_run(decoded: Decoded) -> str | None:
    match decoded.event:
        case RunStart() as start:
            return start.correlation_id
        case RunResume() as resume:
            return resume.correlation_id
        case None:
            return None
