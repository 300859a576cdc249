"""What a call's end becomes: its stored result, its event, the slots it saves (DESIGN 6, 7, 10)."""

from __future__ import annotations

from typing import assert_never

from pydantic import JsonValue

from session_custody.core import bounds, canonical
from session_custody.core.calls import (
    Denied,
    Malformed,
    NotStarted,
    Permit,
    Returned,
    ToolAnswer,
    ToolErrored,
    Uncertain,
)
from session_custody.core.events import EventDraft, EventKind, PolicyRecord
from session_custody.core.inference import ToolCall
from session_custody.core.manifest import Effect, ToolSpec
from session_custody.core.pointers import saved, shown
from session_custody.core.progress import Progress
from session_custody.core.proposal import cut
from session_custody.core.transcript import DENIED, ERROR, MALFORMED, OK, UNSTORABLE, CallResult, Turn


def call_key(run_id: str, loop_step: int, ordinal: int, not_found: int = 0) -> str:
    """The idempotency key: '/' is in no id, so no two calls share one (DESIGN 8)."""
    key = f"{run_id}/{loop_step}/{ordinal}"
    return f"{key}/{not_found}" if not_found else key


def args_digest(call: ToolCall) -> str:
    """Hex SHA-256 of the canonical arguments; checked with the key before every send."""
    return canonical.digest(call.arguments).hex()


def stored(value: JsonValue, limit_bytes: int, *, wrote: bool) -> CallResult:
    """A returned value as it will be stored: bounded and tamed. A write stays done whatever it returned."""
    try:
        document = canonical.tame(value)
        size = len(canonical.canonical(document))
    except (ValueError, RecursionError):
        return _no_value("result_not_json", "The result is no JSON document.", wrote=wrote)
    if size > limit_bytes:
        why = f"The result has {size} bytes, at most {limit_bytes} are stored."
        return _no_value("result_too_large", why, wrote=wrote)
    return CallResult(OK, document)


def _no_value(code: str, text: str, *, wrote: bool) -> CallResult:
    return CallResult(UNSTORABLE if wrote else ERROR, code=code, text=text)


def read_result(answer: ToolAnswer, limit_bytes: int) -> CallResult:
    """How a read ended; whatever went wrong is an error that the model may read by its code."""
    match answer:
        case Returned(value):
            return stored(value, limit_bytes, wrote=False)
        case ToolErrored(code, text):
            return errored(code, text)
        case Uncertain(code):
            return CallResult(ERROR, code=cut(code, 200) or "tool_failed")
        case NotStarted():
            return CallResult(ERROR, code="not_started")
        case _:
            assert_never(answer)


def errored(code: str, text: str) -> CallResult:
    """A tool's own words, bounded: `ToolError("bad\\x00…")` must be as storable as any other (I16)."""
    return CallResult(
        ERROR, code=cut(code, 200) or "tool_failed", text=cut(text, bounds.ERROR_TEXT_CHARS_MAX) or None
    )


def refused(answer: Denied | Malformed) -> CallResult:
    """The PEP's no, as the model may know it: that, and no policy text."""
    match answer:
        case Denied():
            return CallResult(DENIED, code="denied", text="The policy does not allow this call.")
        case Malformed(code, text):
            return CallResult(
                MALFORMED, code=cut(code, 200), text=cut(text, bounds.ERROR_TEXT_CHARS_MAX) or None
            )
        case _:
            assert_never(answer)


def stage_result(
    p: Progress,
    turn: Turn,
    ordinal: int,
    result: CallResult,
    *,
    permit: Permit | None = None,
    policy: PolicyRecord | None = None,
    kind: EventKind = EventKind.TOOL_RESULT,
    reason: str | None = None,
    key: str | None = None,
    attempt: int | None = None,
) -> None:
    """Stage the end of one call: transcript, working slots, last_tool and its event."""
    call = turn.calls[ordinal]
    spec = p.spec(call.tool)
    turn.results[ordinal] = result
    code = result.code
    if result.result == OK:
        p.last_tool = call.tool
        if spec is not None and not _save(p, spec, result.value):
            code = "working_too_large"
    elif not result.failed:
        p.last_tool = call.tool
    p.drafts.append(
        _event(
            p,
            turn,
            ordinal,
            result,
            kind=kind,
            spec=spec,
            code=code,
            policy=policy if permit is None else permit.policy,
            build_id=None if permit is None else permit.build_id,
            reason=reason,
            key=key,
            attempt=attempt,
        )
    )


def _save(p: Progress, spec: ToolSpec, value: JsonValue) -> bool:
    """Fill the slots that the manifest names; False: too large together, they stay as they were."""
    slots = saved(value, spec.saves)
    if not slots:
        return True
    working = p.working | slots
    if len(canonical.canonical(working)) > p.limits.working_bytes:
        return False
    p.working = working
    return True


def _event(
    p: Progress,
    turn: Turn,
    ordinal: int,
    result: CallResult,
    *,
    kind: EventKind,
    spec: ToolSpec | None,
    code: str | None,
    policy: PolicyRecord | None,
    build_id: str | None,
    reason: str | None,
    key: str | None,
    attempt: int | None,
) -> EventDraft:
    call = turn.calls[ordinal]
    return p.draft(
        kind,
        record=result.as_record(ordinal),
        visible=visible_part(spec, call, result),
        tool=call.tool,
        effect=None if spec is None else spec.effect.value,
        ordinal=ordinal,
        call_id=call.call_id,
        idempotency_key=key,
        args_digest=None if call.arguments is None else args_digest(call),
        result_digest=canonical.digest(result.value).hex() if result.result == OK else None,
        result=result.result,
        attempt=attempt,
        code=code,
        reason=reason if reason is not None else result.text,
        policy=policy,
        build_id=build_id,
    )


def visible_part(spec: ToolSpec | None, call: ToolCall, result: CallResult | None) -> JsonValue:
    """What the manifest lets an event of this call carry; without a result, of its arguments alone."""
    if spec is None or call.arguments is None:
        return None
    document: dict[str, JsonValue] = {"args": call.arguments}
    if result is not None and result.result == OK:
        document["result"] = result.value
    return shown(document, spec.visible)


def wrote(spec: ToolSpec | None) -> bool:
    return spec is not None and spec.effect is Effect.WRITE
