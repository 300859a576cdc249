"""Station 7, the chat-completions shape: an InferenceRequest as its body, an answer as a Proposal.

Pure. The body holds what the request holds and nothing else; in pattern 0 it has no `tools` key at all.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import JsonValue

from session_custody.core import canonical
from session_custody.core.inference import (
    AssistantTurn,
    FinalAnswer,
    InferenceRequest,
    Part,
    Proposal,
    Refusal,
    ToolCall,
    ToolCalls,
    ToolOutput,
    UserText,
)

CONTENT_FILTER: Final = "content_filter"


class NoProposal(ValueError):
    """The gateway's answer is no chat completion. The text names the place, never content."""


def body_of(request: InferenceRequest) -> dict[str, JsonValue]:
    messages: list[JsonValue] = []
    if request.instructions is not None:
        messages.append({"role": "system", "content": request.instructions})
    messages.extend(_message(part) for part in request.messages)
    body: dict[str, JsonValue] = {
        "model": request.model_target or request.model_profile,
        "messages": messages,
    }
    if request.tools is not None:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.input_schema,
                },
            }
            for tool in request.tools
        ]
    return body


def _message(part: Part) -> JsonValue:
    match part:
        case UserText(text):
            return {"role": "user", "content": text}
        case ToolOutput(call_id, _, content):
            return {"role": "tool", "tool_call_id": call_id, "content": content}
        case AssistantTurn(text, calls):
            message: dict[str, JsonValue] = {"role": "assistant", "content": text}
            if calls:
                message["tool_calls"] = [_sent_call(call) for call in calls]
            return message


def _sent_call(call: ToolCall) -> JsonValue:
    # what the model wrote was no object: it is told so by the call's result, the text itself is gone
    arguments = "{}" if call.arguments is None else canonical.compact(call.arguments)
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.tool, "arguments": arguments},
    }


def read_proposal(body: bytes) -> Proposal:
    """The first choice as a proposal. Raises NoProposal."""
    try:
        answer: Any = json.loads(body)
        choice = answer["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls") or ()
        refusal = message.get("refusal")
        text = _text(message.get("content"))
        if calls:
            return ToolCalls(tuple(_read_call(call) for call in calls), text or None)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise NoProposal(f"no chat completion ({type(error).__name__})") from None
    if isinstance(refusal, str) and refusal:
        return Refusal(refusal)
    if choice.get("finish_reason") == CONTENT_FILTER:
        return Refusal(text or "The model's answer was filtered.")
    return FinalAnswer(text)


def was_cut(body: bytes) -> bool:
    """The answer ended at the gateway's own length limit."""
    try:
        return bool(json.loads(body)["choices"][0].get("finish_reason") == "length")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return False


def usage_of(body: bytes) -> dict[str, int]:
    """Tokens as the gateway counts them: `prompt`, `completion`. Empty when it does not say."""
    try:
        usage = json.loads(body)["usage"]
        found = {side: usage.get(f"{side}_tokens") for side in ("prompt", "completion")}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return {side: count for side, count in found.items() if isinstance(count, int) and count >= 0}


def _text(content: Any) -> str:
    if isinstance(content, list):  # some gateways send parts
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    if content is None:
        return ""
    if not isinstance(content, str):
        raise TypeError("content is no text")
    return content


def _read_call(call: Any) -> ToolCall:
    function = call["function"]
    name, call_id = str(function["name"]), str(call.get("id") or "")
    raw = function.get("arguments")
    try:
        # some gateways send the object itself; none at all is what some models write for a tool without any
        arguments = raw if isinstance(raw, dict) else json.loads(raw or "{}")
    except (ValueError, TypeError, RecursionError):
        return ToolCall(call_id, name, None, "arguments_not_json")
    if not isinstance(arguments, dict):
        return ToolCall(call_id, name, None, "arguments_not_json")
    return ToolCall(call_id, name, arguments)
