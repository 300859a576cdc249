"""A boundary: what the run's signals and the clock mean in the status it stands in (the table of DESIGN 5).

Every signal that was read is consumed by the commit that it led to, or by the run's next one. The columns
that nothing here answers with an event are no-ops by that table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from session_custody.core import bounds
from session_custody.core.calls import Returned, ToolErrored
from session_custody.core.commands import CLEAR, KEEP, Boundary, Commit, Committed, Observed, unexpected
from session_custody.core.effect import end_intent
from session_custody.core.events import EventKind
from session_custody.core.manifest import Idempotency
from session_custody.core.progress import CANCEL, EXPIRY, STOPPED_AS, Machine, Progress
from session_custody.core.proposal import cut
from session_custody.core.results import stage_result, stored
from session_custody.core.run import DRIVEN, ParkReason, Status
from session_custody.core.signals import Signal, SignalKind, read_late_result, read_resolve
from session_custody.core.transcript import DONE, NOT_DONE, UNSTORABLE, CallResult

_STAYS_PARKED: Final = frozenset({ParkReason.OPERATOR, ParkReason.SUSPECT, ParkReason.AWAITING_AUTH})
"""A late result ends the intent of such a run; what else it waits for, it goes on waiting for."""


def boundary(p: Progress) -> Machine[bool]:
    """Read signals and clock. True: the run goes on being driven. False: it leaves memory, all committed."""
    yield from look(p)
    if p.cp.status in DRIVEN and p.stop is not None:
        yield from _stop(p)
    if p.cp.status in DRIVEN and p.park_asked:
        p.park_asked = False
        if p.stop is None:
            yield from p.park(ParkReason.OPERATOR, p.park_words)
    if p.cp.status in DRIVEN:
        return True
    if p.cp.status.terminal:
        yield from absorb(p)
    elif p.consumes or p.drafts:
        yield from p.commit(p.cp)
    return False


def absorb(p: Progress) -> Machine[None]:
    """Behind the outcome: what was read is consumed; only a late result leaves an event (I14, DESIGN 7)."""
    if not p.consumes and not p.drafts:
        return
    fact = yield Commit(
        checkpoint=replace(p.cp, head_seq=p.cp.head_seq + len(p.drafts)),
        drafts=tuple(p.drafts),
        consumes=tuple(p.consumes),
        not_after=KEEP,
        wake_at=KEEP,
        working_changed=False,
        after_end=True,
    )
    if not isinstance(fact, Committed):
        raise unexpected(fact, "Commit")


def look(p: Progress) -> Machine[None]:
    """Take every signal that waits, in order, then see what time it is."""
    pending = p.cp.pending
    fact = yield Boundary(None if pending is None else pending.key)
    if not isinstance(fact, Observed):
        raise unexpected(fact, "Boundary")
    p.now = max(p.now, fact.now)
    p.gate_open = fact.gate_open
    p.call_running = fact.call_running
    for signal in fact.signals:
        p.consumes.append(signal.signal_id)
        p.causation_id = signal.causation_id
        yield from _take(p, signal)
        p.causation_id = None
    yield from _clock(p)


def _take(p: Progress, signal: Signal) -> Machine[None]:
    if p.cp.status.terminal and signal.kind is not SignalKind.TOOL_RESULT:
        return  # counted, no event
    match signal.kind:
        case SignalKind.CONTINUE:
            yield from _continue(p, wakes_doubt=True)
        case SignalKind.UNPARK:
            yield from _continue(p, wakes_doubt=False)
        case SignalKind.CANCEL:
            yield from _end_by(p, CANCEL, _words(signal))
        case SignalKind.PARK:
            yield from _park(p, _words(signal))
        case SignalKind.RESOLVE:
            yield from _resolve(p, signal)
        case SignalKind.TOOL_RESULT:
            yield from _late_result(p, signal)
        case SignalKind.ANSWER:
            question_id = signal.body.get("question_id")
            _refuse(p, "no_question", question_id=question_id if isinstance(question_id, str) else None)
        case _:
            assert_never(signal.kind)


def _refuse(p: Progress, code: str, *, question_id: str | None = None, key: str | None = None) -> None:
    """A refused event, written with the next commit."""
    p.drafts.append(
        p.draft(EventKind.SIGNAL_REFUSED, code=code, question_id=question_id, idempotency_key=key)
    )


# ------------------------------------------------------------------ continue, unpark


def _continue(p: Progress, *, wakes_doubt: bool) -> Machine[None]:
    if p.cp.status is Status.PARKED:
        yield from _resume(p, attempts=0)
    elif p.cp.status is Status.IN_DOUBT and wakes_doubt and not p.call_running:
        pending = p.cp.pending
        spec = None if pending is None else p.spec(pending.tool)
        if spec is not None and spec.idempotency is not Idempotency.NONE:
            yield from _resume(p, attempts=0)
        elif p.cp.call_running:
            # no thread of this process: where it was, nobody can say; the operator's word names its process
            yield from p.commit(replace(p.cp, call_running=False))


def _resume(p: Progress, *, attempts: int) -> Machine[None]:
    """Out of waiting, parked or in_doubt, with a renewed retry budget (DESIGN 5, 7)."""
    new = replace(p.cp, status=Status.RUNNING, attempts=attempts, suspect_count=0, call_running=False)
    yield from p.commit(new, p.draft(EventKind.RESUMED, code=_was(p)))


def _was(p: Progress) -> str:
    return p.cp.park_reason.value if p.cp.park_reason is not None else p.cp.status.value


# ------------------------------------------------------------------ cancel, expiry, park


def _words(signal: Signal) -> str | None:
    reason = signal.body.get("reason")
    return cut(reason, bounds.REASON_CHARS_MAX) if isinstance(reason, str) and reason else None


def _end_by(p: Progress, cause: str, reason: str | None = None) -> Machine[None]:
    """Cancel or expiry. Over a pending intent it only asks to stop; the intent ends first (I14)."""
    first = p.stop is None
    if p.stop is None:
        p.stop, p.stop_reason, p.stop_causation_id = cause, reason, p.causation_id
    match p.cp.status:
        case Status.QUEUED | Status.RUNNING:
            if first and p.cp.pending is not None:
                yield from p.commit(replace(p.cp, stop_requested=p.stop))
        case Status.WAITING:
            yield from p.finish_stopped(STOPPED_AS[p.stop])
        case Status.PARKED:
            if p.cp.pending is None:
                yield from p.finish_stopped(STOPPED_AS[p.stop])
            else:
                yield from p.doubt("stop_requested")
        case Status.IN_DOUBT:
            if first:
                yield from p.commit(replace(p.cp, stop_requested=p.stop))
        case _:
            pass


def _stop(p: Progress) -> Machine[None]:
    if p.cp.pending is None and p.stop is not None:
        yield from p.finish_stopped(STOPPED_AS[p.stop])


def _park(p: Progress, reason: str | None) -> Machine[None]:
    match p.cp.status:
        case Status.QUEUED | Status.RUNNING:
            p.park_asked, p.park_words = True, reason
        case Status.PARKED if p.cp.park_reason is not ParkReason.OPERATOR:
            new = replace(p.cp, park_reason=ParkReason.OPERATOR)
            event = p.draft(EventKind.PARKED, code=ParkReason.OPERATOR.value, reason=reason)
            yield from p.commit(new, event, wake_at=CLEAR)
        case Status.PARKED:
            pass
        case _:
            _refuse(p, p.cp.status.value)


def _clock(p: Progress) -> Machine[None]:
    """Expiry and wake-up; an answer that was read above came first."""
    if p.cp.status.terminal:
        return
    if p.now >= p.run.expires_at and p.cp.status is not Status.IN_DOUBT:
        yield from _end_by(p, EXPIRY)
    if p.cp.status is Status.PARKED and p.cp.wake_at is not None and p.now >= p.cp.wake_at:
        # by itself: one try at what was not there, no new budget
        budget = p.limits.model_attempts - 1
        asked = p.cp.park_reason is ParkReason.MODEL_UNAVAILABLE and p.cp.pending is None
        yield from _resume(p, attempts=min(p.cp.attempts, budget) if asked else p.cp.attempts)


# ------------------------------------------------------------------ the end of a write in doubt


def _resolve(p: Progress, signal: Signal) -> Machine[None]:
    """An operator's word. It names the in_doubt that it saw; any other is refused (DESIGN 8)."""
    word = read_resolve(signal.body)
    pending, turn = p.cp.pending, p.turn
    if word is None:
        _refuse(p, "malformed")
        return
    if p.cp.status is not Status.IN_DOUBT or pending is None or turn is None:
        _refuse(p, "not_in_doubt")
        return
    if word.event_seq != p.cp.doubt_seq:
        _refuse(p, "other_event_seq")
        return
    if not word.done and (p.call_running or (p.cp.not_after is not None and p.now < p.cp.not_after)):
        _refuse(p, "call_may_be_running", key=pending.key)
        return
    if not word.done:
        result = CallResult(
            NOT_DONE, code="not_done", text="An operator found that this did not take effect."
        )
    elif word.has_result:
        kept = stored(word.result, p.limits.result_bytes, wrote=True)
        result = replace(kept, result=DONE) if not kept.failed else kept
    else:
        result = CallResult(DONE)
    reason = cut(word.reason, bounds.REASON_CHARS_MAX)
    stage_result(p, turn, pending.ordinal, result, kind=EventKind.RESOLVED, reason=reason, key=pending.key)
    p.drafts[-1] = replace(p.drafts[-1], answered_by=word.by)
    new = replace(p.cp, status=Status.RUNNING, pending=None)
    yield from p.commit(new, p.draft(EventKind.RESUMED, code=_was(p)))


def _late_result(p: Progress, signal: Signal) -> Machine[None]:
    """A call's end that came after its driver. A return value ends the pending intent of its key; a late
    error never does: somebody may have re-sent (DESIGN 8)."""
    late = read_late_result(signal.body)
    pending = p.cp.pending
    if late is None:
        _refuse(p, "malformed")
    elif pending is None or pending.key != late.key:
        _refuse(p, "late_result", key=late.key)
    elif isinstance(late.answer, Returned):
        yield from _adopt(p, late.answer, late.unstorable)
    else:
        if isinstance(late.answer, ToolErrored):
            _refuse(p, "late_tool_error", key=late.key)
        if p.cp.call_running and not p.call_running:
            yield from p.commit(replace(p.cp, call_running=False))


def _adopt(p: Progress, answer: Returned, unstorable: str | None) -> Machine[None]:
    if unstorable is not None:
        result = CallResult(UNSTORABLE, code=unstorable)
    else:
        result = stored(answer.value, p.limits.result_bytes, wrote=True)
    match p.cp.status:
        case Status.PARKED if p.cp.park_reason in _STAYS_PARKED:
            yield from end_intent(p, result, status=Status.PARKED)
        case Status.PARKED | Status.IN_DOUBT:
            p.drafts.append(p.draft(EventKind.RESUMED, code=_was(p)))
            yield from end_intent(p, result, status=Status.RUNNING)
        case _:
            yield from end_intent(p, result, status=Status.RUNNING)
