"""What reaches a model, and what comes back. Only `build_request` makes an InferenceRequest (I11, API 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from session_custody.core.trace import TraceFields

Mask = Callable[[str], str]
"""Takes a text, gives it back with every known secret replaced by a mark."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool in scope, as the model sees it."""

    name: str
    description: str
    input_schema: JsonValue


@dataclass(frozen=True, slots=True)
class UserText:
    text: str
    role: Literal["user"] = "user"


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """What the model proposed in an earlier turn, rebuilt from recorded bytes."""

    text: str | None
    calls: tuple[ToolCall, ...] = ()
    role: Literal["assistant"] = "assistant"


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The result of one call: canonical JSON of the value, or of {"error": code, "text": …}."""

    call_id: str
    tool: str
    content: str
    failed: bool = False
    role: Literal["tool"] = "tool"


Part = UserText | AssistantTurn | ToolOutput


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """The one type that reaches a model. `tools` is None in pattern 0: the request has no such key at all."""

    instructions: str | None
    messages: tuple[Part, ...]
    tools: tuple[ToolSchema, ...] | None
    model_profile: str
    model_target: str | None
    timeout_s: float
    trace: TraceFields


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A proposed call. `arguments` is a document, or None where the model's text was no JSON object
    (`malformed`).
    """

    call_id: str
    tool: str
    arguments: dict[str, JsonValue] | None
    malformed: str | None = None


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    text: str
    data: JsonValue = None


@dataclass(frozen=True, slots=True)
class ToolCalls:
    calls: tuple[ToolCall, ...]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    text: str


Proposal = FinalAnswer | ToolCalls | Question | Refusal


def build_request(
    *,
    instructions: str | None,
    messages: tuple[Part, ...],
    tools: tuple[ToolSchema, ...] | None,
    model_profile: str,
    model_target: str | None,
    timeout_s: float,
    trace: TraceFields,
    mask: Mask,
) -> InferenceRequest:
    """Build the request from allow-listed typed parts, every text masked. The only place that constructs
    one.
    """
    return InferenceRequest(
        instructions=None if instructions is None else mask(instructions),
        messages=tuple(_masked(part, mask) for part in messages),
        tools=tools,
        model_profile=model_profile,
        model_target=model_target,
        timeout_s=timeout_s,
        trace=trace,
    )


def _masked(part: Part, mask: Mask) -> Part:
    match part:
        case UserText():
            masked = mask(part.text)
            return part if masked is part.text else UserText(masked)
        case ToolOutput():
            masked = mask(part.content)
            return (
                part if masked is part.content else ToolOutput(part.call_id, part.tool, masked, part.failed)
            )
        case AssistantTurn(text, calls):
            return AssistantTurn(
                None if text is None else mask(text), tuple([_masked_call(call, mask) for call in calls])
            )


def _masked_call(call: ToolCall, mask: Mask) -> ToolCall:
    if call.arguments is None:
        return call
    return ToolCall(call.call_id, call.tool, {k: _masked_value(v, mask) for k, v in call.arguments.items()})


def _masked_value(value: JsonValue, mask: Mask) -> JsonValue:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, list):
        return [_masked_value(item, mask) for item in value]
    if isinstance(value, dict):
        return {mask(key): _masked_value(item, mask) for key, item in value.items()}
    return value
