"""A write, from its intent to its end (station 9; I5, I6, DESIGN 8).

Numbered as it happens, with what a crash leaves behind each:

1. PEP, then the intent's commit (`decided` before it, if that is not yet written). Before it: nothing
   happened, the turn or its recorded proposal goes on. Behind it: a pending intent; the next owner cannot
   know whether step 2 happened, so for it every send is a re-send.
2. The send, within the start allowance. A return value ends the intent; on the first send a `ToolErrored`
   ends it too, as the tool's word that nothing took effect. Anything else leaves it pending.
3. The end's commit. Before it: as behind 1.

A pending intent whose end is unknown is left alone until `not_after` (the first call may still be running)
and while a thread is inside it. Then the tool's idempotency decides. These rules were searched as an
explicit-state model; the tests drive this very file through the same kind of histories.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final, assert_never

from session_custody.core import bounds
from session_custody.core.calls import (
    CouldNotAsk,
    Denied,
    Malformed,
    NotStarted,
    Permit,
    ReconciledDone,
    ReconciledNotFound,
    ReconciledUnknown,
    Returned,
    ToolErrored,
    Uncertain,
)
from session_custody.core.commands import (
    Asked,
    Authorize,
    Authorized,
    CallWrite,
    ContractAbsent,
    InSeconds,
    Pause,
    Reconcile,
    Sending,
    WriteEnded,
    unexpected,
)
from session_custody.core.errors import InvariantBroken
from session_custody.core.events import EventKind
from session_custody.core.inference import ToolCall
from session_custody.core.manifest import Idempotency, OnNotFound, ToolSpec
from session_custody.core.progress import Machine, Progress
from session_custody.core.results import (
    args_digest,
    call_key,
    errored,
    refused,
    stage_result,
    stored,
    visible_part,
)
from session_custody.core.run import ParkReason, PendingIntent, Status
from session_custody.core.transcript import NOT_DONE, CallResult, Turn

_GATE_LOOK: Final = timedelta(minutes=1)


def begin_write(p: Progress, turn: Turn, ordinal: int, spec: ToolSpec) -> Machine[bool]:
    """Steps 1 and 2 for the next call of the proposal. False: the run left memory."""
    if not p.gate_open:
        # no intent is written while the lane may not send: it would only run into its start allowance
        yield Pause(until=p.run.expires_at, gate=True)
        return True
    call = turn.calls[ordinal]
    answer = yield from authorize(p, turn.loop_step, call)
    match answer:
        case Permit():
            pass
        case Denied() | Malformed():
            policy = answer.policy if isinstance(answer, Denied) else None
            stage_result(p, turn, ordinal, refused(answer), policy=policy)
            return True
        case CouldNotAsk() | ContractAbsent():
            yield from park_undecided(p, answer)
            return False
        case _:
            assert_never(answer)
    pending = PendingIntent(
        turn.loop_step,
        ordinal,
        call_key(p.run.facts.run_id, turn.loop_step, ordinal),
        args_digest(call),
        call.tool,
    )
    yield from _intend(p, call, permit=answer, pending=pending, attempts=1)
    return (yield from _send(p, turn, answer, first=True))


def settle_intent(p: Progress) -> Machine[bool]:
    """One step for a pending intent whose end is unknown. True: look again; False: the run left memory."""
    pending, turn, call = _pending(p)
    spec = p.spec(pending.tool)
    if spec is None:
        raise InvariantBroken(f"a write of {pending.tool} is pending and its manifest does not name it")
    not_after = p.cp.not_after
    if not_after is not None and p.now < not_after and not _may_overlap(p, spec):
        yield Pause(until=not_after)
        return True
    if p.call_running:
        yield from p.doubt("call_running", call_running=True)
        return False
    if spec.idempotency is Idempotency.NONE:
        yield from p.doubt("outcome_unknown")
        return False
    if spec.idempotency is Idempotency.KEY and p.cp.attempts >= _attempts(p, spec):
        yield from p.doubt("attempts_spent")
        return False
    if not p.gate_open:
        # also before asking: a NotFound bars a key, which is an effect at the tool
        yield Pause(until=p.now + _GATE_LOOK, gate=True)
        return True
    answer = yield from authorize(p, pending.loop_step, call)
    match answer:
        case Permit():
            pass
        case Denied():
            yield from p.doubt("policy_denied")
            return False
        case Malformed(code):
            yield from p.doubt(code)
            return False
        case CouldNotAsk() | ContractAbsent():
            yield from park_undecided(p, answer)
            return False
        case _:
            assert_never(answer)
    if spec.idempotency is Idempotency.KEY:
        attempts = p.cp.attempts + 1
        yield from p.commit(
            replace(p.cp, status=Status.RUNNING, attempts=attempts), not_after=_not_after(p, spec)
        )
        return (yield from _send(p, turn, answer, first=False))
    return (yield from _ask_tool(p, turn, call, spec, answer))


def end_intent(
    p: Progress, result: CallResult, *, permit: Permit | None = None, status: Status
) -> Machine[None]:
    """Step 3: the intent is over. What is staged is committed with it."""
    pending, turn, _ = _pending(p)
    stage_result(p, turn, pending.ordinal, result, permit=permit, key=pending.key, attempt=p.cp.attempts)
    yield from p.commit(replace(p.cp, status=status, pending=None, call_running=False))


def authorize(
    p: Progress, loop_step: int, call: ToolCall
) -> Machine[Permit | Denied | Malformed | CouldNotAsk | ContractAbsent]:
    """Pass the PEP with the pinned subject, again after every resume (I12)."""
    assert p.manifest is not None
    fact = yield Authorize(p.manifest, (call,), p.stage, loop_step)
    if not isinstance(fact, Authorized):
        raise unexpected(fact, "Authorize")
    (answer,) = fact.answers
    return answer


def park_undecided(p: Progress, answer: CouldNotAsk | ContractAbsent) -> Machine[None]:
    """Nobody decided about the call: the model is not told, and a pending intent stays (DESIGN 8)."""
    match answer:
        case CouldNotAsk(detail):
            yield from p.park(ParkReason.POLICY_UNAVAILABLE, detail)
        case ContractAbsent(detail):
            yield from p.park(ParkReason.CONTRACT_MISSING, detail)
        case _:
            assert_never(answer)


# ------------------------------------------------------------------ the parts


def _pending(p: Progress) -> tuple[PendingIntent, Turn, ToolCall]:
    pending, turn = p.cp.pending, p.turn
    if pending is None or turn is None or turn.loop_step != pending.loop_step:
        raise InvariantBroken("the pending intent belongs to no recorded proposal")
    return pending, turn, turn.calls[pending.ordinal]


def _attempts(p: Progress, spec: ToolSpec) -> int:
    return spec.attempts or p.limits.tool_attempts


def _may_overlap(p: Progress, spec: ToolSpec) -> bool:
    """A tool that dedupes overlapping requests is asked again at once; a second time only after not_after, so
    that an outage of the tool does not spend every attempt within a second."""
    safe = spec.idempotency is Idempotency.KEY and spec.overlap == "safe"
    return safe and not p.call_running and p.cp.attempts <= 1


def _not_after(p: Progress, spec: ToolSpec) -> InSeconds:
    return InSeconds(p.limits.start_allowance_s + p.timeout_s(spec) + p.limits.not_after_margin_s)


def _intend(
    p: Progress, call: ToolCall, *, permit: Permit, pending: PendingIntent, attempts: int
) -> Machine[None]:
    """Commit the intent: the send that follows has its key, digest, decision and not_after on record (I5)."""
    event = p.draft(
        EventKind.INTENT,
        record={"ordinal": pending.ordinal, "key": pending.key},
        visible=visible_part(permit.spec, call, None),
        tool=call.tool,
        effect="write",
        ordinal=pending.ordinal,
        call_id=call.call_id,
        idempotency_key=pending.key,
        args_digest=pending.args_digest,
        attempt=attempts,
        policy=permit.policy,
        build_id=permit.build_id,
    )
    new = replace(p.cp, status=Status.RUNNING, pending=pending, attempts=attempts)
    yield from p.commit(new, event, not_after=_not_after(p, permit.spec))


def _sending(p: Progress, permit: Permit) -> Sending:
    """Key and arguments digest are checked together before every send (DESIGN 8)."""
    pending, _, call = _pending(p)
    key = call_key(p.run.facts.run_id, pending.loop_step, pending.ordinal, pending.not_found)
    digest = args_digest(call)
    if pending.key != key or pending.args_digest != digest or permit.args_digest != digest:
        raise InvariantBroken(
            f"the recorded call does not have the key and arguments of intent {pending.key}"
        )
    return Sending(permit, key, max(p.cp.attempts, 1), p.timeout_s(permit.spec))


def _send(p: Progress, turn: Turn, permit: Permit, *, first: bool) -> Machine[bool]:
    """Step 2. A call that did not start in time gets a later not_after, a bounded number of times."""
    for renewals in range(bounds.NOT_AFTER_RENEWALS_MAX + 1):
        fact = yield CallWrite(_sending(p, permit), p.limits.start_allowance_s)
        if not isinstance(fact, WriteEnded):
            raise unexpected(fact, "CallWrite")
        answer = fact.answer
        if not isinstance(answer, NotStarted) or renewals == bounds.NOT_AFTER_RENEWALS_MAX:
            break
        # a gate that an outage closed is no hung thread: waiting for it costs none of the renewals
        yield Pause(until=p.run.expires_at, gate=True)
        yield from p.commit(p.cp, not_after=_not_after(p, permit.spec))
    match answer:
        case Returned(value):
            result = stored(value, p.limits.result_bytes, wrote=True)
            yield from end_intent(p, result, permit=permit, status=Status.RUNNING)
        case ToolErrored(code, text):
            # of a re-send it says nothing about the send before: that one may have landed
            if first:
                yield from end_intent(p, errored(code, text), permit=permit, status=Status.RUNNING)
        case Uncertain():
            pass
        case NotStarted():
            if p.stop is not None:
                yield from p.doubt("not_started")
            else:
                yield from p.park(ParkReason.NOT_STARTED)
            return False
        case _:
            assert_never(answer)
    return True


def _ask_tool(p: Progress, turn: Turn, call: ToolCall, spec: ToolSpec, permit: Permit) -> Machine[bool]:
    """`idempotency: reconcile`: asked, never re-sent blindly. NotFound bars the key; a new one is sent."""
    fact = yield Reconcile(_sending(p, permit))
    if not isinstance(fact, Asked):
        raise unexpected(fact, "Reconcile")
    match fact.answer:
        case ReconciledDone(value):
            result = stored(value, p.limits.result_bytes, wrote=True)
            yield from end_intent(p, result, permit=permit, status=Status.RUNNING)
        case ReconciledUnknown(code):
            return (yield from _ask_later(p, spec, code))
        case ReconciledNotFound():
            return (yield from _not_found(p, turn, call, spec, permit))
        case _:
            assert_never(fact.answer)
    return True


def _ask_later(p: Progress, spec: ToolSpec, code: str) -> Machine[bool]:
    """A question may be repeated, as any read: a moment's outage of the tool is no reason to wake a person.
    It is counted in the attempts, and waits for a not_after of its own, so a new owner waits as well.
    """
    asked = p.cp.attempts
    if asked >= _attempts(p, spec):
        yield from p.doubt(code or "outcome_unknown")
        return False
    wait_s = bounds.ASK_AGAIN_FIRST_S * 2 ** (asked - 1)
    yield from p.commit(replace(p.cp, attempts=asked + 1), not_after=InSeconds(wait_s))
    return True


def _not_found(p: Progress, turn: Turn, call: ToolCall, spec: ToolSpec, permit: Permit) -> Machine[bool]:
    if p.stop is not None:
        # the tool's promise is enough to end it: nothing took effect and nothing can any more
        result = CallResult(
            NOT_DONE, code="stopped", text="The run was stopped before this call took effect."
        )
        yield from end_intent(p, result, permit=permit, status=Status.RUNNING)
        return True
    if spec.on_not_found is not OnNotFound.RESEND:
        yield from p.doubt("not_found")
        return False
    if p.cp.attempts >= _attempts(p, spec):
        yield from p.doubt("attempts_spent")
        return False
    pending, _, _ = _pending(p)
    found = pending.not_found + 1
    key = call_key(p.run.facts.run_id, pending.loop_step, pending.ordinal, found)
    again = replace(pending, not_found=found, key=key)
    yield from _intend(p, call, permit=permit, pending=again, attempts=p.cp.attempts + 1)
    # no send has this key yet: it is a first send again
    return (yield from _send(p, turn, permit, first=True))
