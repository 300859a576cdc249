"""One tool call: what the PEP says to it, how it is sent, and how it ends (DESIGN 8, 13)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from session_custody.core.events import PolicyRecord
from session_custody.core.inference import ToolCall
from session_custody.core.manifest import ToolSpec
from session_custody.core.pin import RunId
from session_custody.core.trace import TraceFields


@dataclass(frozen=True, slots=True)
class Permit:
    """The PEP's yes to exactly this call. Only the gate makes one; only the gate takes one."""

    run_id: RunId
    spec: ToolSpec
    call: ToolCall
    args_digest: str
    policy: PolicyRecord
    trace: TraceFields
    build_id: str | None


@dataclass(frozen=True, slots=True)
class Denied:
    policy: PolicyRecord


@dataclass(frozen=True, slots=True)
class Malformed:
    """No such tool in scope, or arguments that its schema refuses: a correctable fact that costs a step."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class CouldNotAsk:
    """The PDP could not be asked: the run parks `policy_unavailable`; the model is not told."""

    detail: str


Authorization = Permit | Denied | Malformed | CouldNotAsk


@dataclass(frozen=True, slots=True)
class Returned:
    value: JsonValue


@dataclass(frozen=True, slots=True)
class ToolErrored:
    """The tool's word that nothing took effect (or, of a read, any failure with its safe code)."""

    code: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Uncertain:
    """A write ended without a word: other exception, timeout, broken connection. The intent stays pending.

    `still_running`: a sync thread lives on past its timeout."""

    code: str
    still_running: bool = False


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The start allowance ran out before the call began: certainly not sent."""


ToolAnswer = Returned | ToolErrored | Uncertain | NotStarted


@dataclass(frozen=True, slots=True)
class ReconciledDone:
    value: JsonValue


@dataclass(frozen=True, slots=True)
class ReconciledNotFound:
    """The key has not taken effect and, from the tool's side, never can any more."""


@dataclass(frozen=True, slots=True)
class ReconciledUnknown:
    code: str


Reconciled = ReconciledDone | ReconciledNotFound | ReconciledUnknown
