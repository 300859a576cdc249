"""Signals: what anybody but the owner says to a run (I8), read at its boundaries (DESIGN 5).

Bodies, by kind (whoever inserts a signal makes them with the functions below):

    continue, unpark  {"reason"?, "by"?}
    cancel, park      {"reason"?, "by"?}
    signal            {"answer", "question_id"?, "answered_by"?}
    resolve           {"done": bool, "event_seq": int, "reason": str, "result"?: any JSON, "by"?}
    tool_result       {"key", "ended": "returned" | "error" | "uncertain", "value"?, "code"?, "text"?}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from pydantic import JsonValue

from session_custody.core import bounds, canonical
from session_custody.core.calls import NotStarted, Returned, ToolAnswer, ToolErrored, Uncertain
from session_custody.core.pin import RunId


class SignalKind(StrEnum):
    CONTINUE = "continue"
    ANSWER = "signal"
    CANCEL = "cancel"
    RESOLVE = "resolve"
    PARK = "park"
    UNPARK = "unpark"
    TOOL_RESULT = "tool_result"


@dataclass(frozen=True, slots=True)
class Signal:
    signal_id: int
    run_id: RunId
    kind: SignalKind
    body: Mapping[str, JsonValue]
    causation_id: str | None
    created_at: datetime
    recorded_at: datetime | None


@dataclass(frozen=True, slots=True)
class Resolve:
    """An operator's word on a write in doubt. `event_seq`: the in_doubt that the operator saw."""

    done: bool
    event_seq: int
    reason: str
    result: JsonValue = None
    has_result: bool = False
    by: str | None = None

    def as_body(self) -> dict[str, JsonValue]:
        body: dict[str, JsonValue] = {"done": self.done, "event_seq": self.event_seq, "reason": self.reason}
        if self.has_result:
            body["result"] = self.result
        if self.by is not None:
            body["by"] = self.by
        return body


def read_resolve(body: Mapping[str, JsonValue]) -> Resolve | None:
    """None: not the shape above; the owner refuses it with an event."""
    done, event_seq, reason, by = (body.get(name) for name in ("done", "event_seq", "reason", "by"))
    if not isinstance(done, bool) or not isinstance(event_seq, int) or isinstance(event_seq, bool):
        return None
    return Resolve(
        done,
        event_seq,
        reason if isinstance(reason, str) else "",
        body.get("result"),
        "result" in body,
        by if isinstance(by, str) else None,
    )


def late_result_body(key: str, answer: ToolAnswer) -> dict[str, JsonValue] | None:
    """Body of a `tool_result` signal; None: the answer says nothing (the call was never sent)."""
    match answer:
        case Returned(value):
            return {"key": key, "ended": "returned"} | _value(value)
        case ToolErrored(code, text):
            return {"key": key, "ended": "error", "code": _cut(code), "text": _cut(text)}
        case Uncertain(code):
            return {"key": key, "ended": "uncertain", "code": _cut(code)}
        case NotStarted():
            return None
        case _:
            assert_never(answer)


def _value(value: JsonValue) -> dict[str, JsonValue]:
    """It took effect whatever it returned: what cannot be stored is named by `code` in place of a value."""
    try:
        document = canonical.tame(value)
        size = len(canonical.canonical(document))
    except (ValueError, RecursionError):
        return {"value": None, "code": "result_not_json"}
    if size > bounds.RESULT_BYTES_MAX:
        return {"value": None, "code": "result_too_large"}
    return {"value": document}


def _cut(text: str) -> JsonValue:
    return canonical.tame(text[: bounds.ERROR_TEXT_CHARS_MAX])


@dataclass(frozen=True, slots=True)
class LateEnd:
    """A late result, read. `unstorable`: why a returned value is not in it."""

    key: str
    answer: Returned | ToolErrored | Uncertain
    unstorable: str | None = None


def read_late_result(body: Mapping[str, JsonValue]) -> LateEnd | None:
    """None: not the shape above; the owner refuses it with an event."""
    key, code, text = (body.get(name) for name in ("key", "code", "text"))
    if not isinstance(key, str):
        return None
    code = code if isinstance(code, str) else ""
    match body.get("ended"):
        case "returned":
            return LateEnd(key, Returned(body.get("value")), unstorable=code or None)
        case "error":
            return LateEnd(key, ToolErrored(code, text if isinstance(text, str) else ""))
        case "uncertain":
            return LateEnd(key, Uncertain(code))
        case _:
            return None
