"""Station 10, what the end of a call means (DESIGN 8). By where it comes from, never by its type.

Whatever leaves a tool's function is a tool failure, also a database error or an `Unavailable` of our own that
the tool let through. Only our own `ToolError` is the tool's word that nothing took effect. No text of any
other exception goes anywhere: it may hold an address, a token, a row.

| end | read | write |
|---|---|---|
| a JSON value | `Returned` | `Returned` |
| a value that is no JSON | `ToolErrored(result_not_json)` | `Returned(NOT_JSON)`: done, result not storable |
| `ToolError` | `ToolErrored(its code, its text)` | the same: nothing took effect |
| any other exception | `ToolErrored(code)`, no text | `Uncertain(code)` |
| out of time | `ToolErrored(tool_timeout)` | `Uncertain(tool_timeout)` |
| no thread in time | `ToolErrored(tool_unavailable)`, `NotStarted` with a start allowance | `NotStarted` |
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, assert_never, cast

import httpx
from pydantic import BaseModel, JsonValue

from session_custody.core import bounds, canonical
from session_custody.core.calls import (
    NotStarted,
    Reconciled,
    ReconciledDone,
    ReconciledNotFound,
    ReconciledUnknown,
    Returned,
    ToolAnswer,
    ToolErrored,
    Uncertain,
)
from session_custody.core.manifest import Effect
from session_custody.tools.context import Done, NotFound, TokenUnavailable, ToolError
from session_custody.tools.outgoing import RedirectRefused
from session_custody.tools.threads import Raised, Value

TOOL_FAILED: Final = "tool_failed"
TOOL_TIMEOUT: Final = "tool_timeout"
TOOL_UNAVAILABLE: Final = "tool_unavailable"
REDIRECT_REFUSED: Final = "redirect_refused"
TOKEN_UNAVAILABLE: Final = "token_unavailable"  # noqa: S105 - a code, not a token
CANCELLED: Final = "cancelled"
RESULT_NOT_JSON: Final = "result_not_json"
_CODE: Final = re.compile(r"^[a-z][a-z0-9_.-]{0,99}$")


class _NotJson:
    """Stands where a write returned something that is no document: `core.results.stored` makes it
    `unstorable`, and the write stays done.
    """

    __slots__ = ()


NOT_JSON: Final = cast("JsonValue", _NotJson())
UNSTORABLE: Final[JsonValue] = {"unstorable": RESULT_NOT_JSON}
"""The same where the value must be JSON at once: a late result, a reconciled one."""


def read_answer(end: Value | Raised) -> ToolAnswer:
    match end:
        case Value(value):
            try:
                return Returned(document(value))
            except ValueError:
                return ToolErrored(RESULT_NOT_JSON, "The tool's result is no JSON document.")
        case Raised(ToolError() as error):
            return errored(error)
        case Raised(error):
            return ToolErrored(code_of(error))
        case _:
            assert_never(end)


def write_answer(end: Value | Raised, not_json: JsonValue = NOT_JSON) -> ToolAnswer:
    match end:
        case Value(value):
            try:
                return Returned(document(value))
            except ValueError:
                return Returned(not_json)
        case Raised(ToolError() as error):
            return errored(error)
        case Raised(error):
            return Uncertain(code_of(error))
        case _:
            assert_never(end)


def out_of_time(effect: Effect, *, still_running: bool) -> ToolAnswer:
    if effect is Effect.READ:
        return ToolErrored(TOOL_TIMEOUT)
    return Uncertain(TOOL_TIMEOUT, still_running=still_running)


def not_begun(effect: Effect, *, allowance: bool) -> ToolAnswer:
    if effect is Effect.READ and not allowance:
        return ToolErrored(TOOL_UNAVAILABLE)
    return NotStarted()


def reconciled(end: Value | Raised) -> Reconciled:
    """Only a clear word counts; anything else is unknown, and the run is in doubt."""
    match end:
        case Value(Done(result)):
            try:
                return ReconciledDone(document(result))
            except ValueError:
                return ReconciledDone(UNSTORABLE)
        case Value(NotFound()):
            return ReconciledNotFound()
        case Value():
            return ReconciledUnknown("reconcile_unclear")
        case Raised(ToolError() as error):
            return ReconciledUnknown(errored(error).code)
        case Raised(error):
            return ReconciledUnknown(code_of(error))
        case _:
            assert_never(end)


def errored(error: ToolError) -> ToolErrored:
    """A tool's own words, bounded. What is no code becomes `tool_failed`: codes are searched and counted."""
    code = error.code if _CODE.match(str(error.code)) else TOOL_FAILED
    text = str(error.text or "")[: bounds.ERROR_TEXT_CHARS_MAX]
    return ToolErrored(code, text)


def code_of(error: BaseException) -> str:
    """A safe code for what a tool let through."""
    match error:
        case RedirectRefused():
            return REDIRECT_REFUSED
        case TokenUnavailable():
            return TOKEN_UNAVAILABLE
        case httpx.TimeoutException() | TimeoutError():
            return TOOL_TIMEOUT
        case httpx.TransportError():
            return TOOL_UNAVAILABLE
        case asyncio.CancelledError():
            return CANCELLED
        case _:
            return TOOL_FAILED


def document(value: Any) -> JsonValue:
    """What a tool returned as a document; a pydantic model is dumped first. Raises ValueError."""
    try:
        return canonical.tame(value.model_dump(mode="json") if isinstance(value, BaseModel) else value)
    except Exception as error:  # noqa: BLE001 - whatever its objects raise when they are read is its result
        raise ValueError(f"no JSON ({type(error).__name__})") from None
