"""Station 7: the HTTP model client against a real server, and the chat-completions shape (API 3)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest
import structlog

from session_custody.core.errors import ModelProfileUnknown, Unavailable
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
    ToolSchema,
    UserText,
    build_request,
)
from session_custody.core.secret import Secret
from session_custody.models import HttpModel, ModelUnavailable
from session_custody.models import http as http_module
from session_custody.models.chat import NoProposal, read_proposal
from tests.unit.http_server import Answer, Asked, Server, http_server
from tests.unit.tool_app import TRACE

MESSAGES: tuple[Part, ...] = (
    UserText("hi"),
    AssistantTurn("Let me look.", (ToolCall("c-1", "look", {"n": 1}), ToolCall("c-2", "look", None, "x"))),
    ToolOutput("c-1", "look", '{"ok":true}'),
    ToolOutput("c-2", "look", '{"error":"arguments_not_json"}', failed=True),
)
SCHEMAS = (ToolSchema("look", "Look at n.", {"type": "object"}),)


def a_request(**changes: Any) -> InferenceRequest:
    fields: dict[str, Any] = {
        "instructions": "Do it.",
        "messages": MESSAGES,
        "tools": SCHEMAS,
        "model_profile": "reasoning-standard",
        "model_target": None,
        "timeout_s": 20.0,
        "trace": TRACE,
        "mask": lambda text: text,
    }
    return build_request(**{**fields, **changes})


def completion(**message: Any) -> dict[str, Any]:
    return {
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }


def ask(server: Server, request: InferenceRequest | None = None, **options: Any) -> Proposal:
    async def run() -> Proposal:
        model = HttpModel(f"{server.url}/v1/", **options)
        try:
            return await model.propose(request or a_request())
        finally:
            await model.close()

    return asyncio.run(asyncio.wait_for(run(), 30))


def answering(body: Any, status: int = 200, **headers: str) -> Callable[[Asked], Answer]:
    return lambda _: Answer(status, body, {name.replace("_", "-"): text for name, text in headers.items()})


def test_the_body_is_the_request_and_nothing_else() -> None:
    with http_server(answering(completion(content="done"))) as server:
        assert ask(server) == FinalAnswer("done")
        (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")
    assert asked.body == {
        "model": "reasoning-standard",
        "messages": [
            {"role": "system", "content": "Do it."},
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": "Let me look.",
                "tool_calls": [
                    {"id": "c-1", "type": "function", "function": {"name": "look", "arguments": '{"n":1}'}},
                    {"id": "c-2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "c-1", "content": '{"ok":true}'},
            {"role": "tool", "tool_call_id": "c-2", "content": '{"error":"arguments_not_json"}'},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "look", "description": "Look at n.", "parameters": {"type": "object"}},
            }
        ],
    }


def test_pattern_0_has_no_tools_key_and_the_resolved_target_is_the_model() -> None:
    with http_server(answering(completion(content="done"))) as server:
        ask(server, a_request(tools=None, instructions=None, model_target="gw-large"))
        (asked,) = server.asked
    assert "tools" not in asked.body
    assert asked.body["model"] == "gw-large"
    assert [message["role"] for message in asked.body["messages"]] == ["user", "assistant", "tool", "tool"]


def test_trace_fields_and_the_key_go_as_headers() -> None:
    with http_server(answering(completion(content="done"))) as server:
        with structlog.contextvars.bound_contextvars(traceparent="00-1-2-01"):
            ask(server, api_key=Secret("CANARY-key"))
        (asked,) = server.asked
    assert asked.headers["x-custody-run-id"] == "run-1"
    assert asked.headers["x-custody-loop-step"] == "1"
    assert asked.headers["traceparent"] == "00-1-2-01"
    assert asked.headers["authorization"] == "Bearer CANARY-key"
    assert "CANARY" not in json.dumps(asked.body)
    assert "run-1" not in json.dumps(asked.body)


def a_call(arguments: Any, name: str = "look") -> dict[str, Any]:
    return {"id": "c-9", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("message", "proposal"),
    [
        ({"content": "done"}, FinalAnswer("done")),
        ({"content": [{"type": "text", "text": "do"}, {"type": "text", "text": "ne"}]}, FinalAnswer("done")),
        ({"content": None}, FinalAnswer("")),
        ({"content": "no", "refusal": "I will not."}, Refusal("I will not.")),
        (
            {"content": "look", "tool_calls": [a_call('{"n": 1}')]},
            ToolCalls((ToolCall("c-9", "look", {"n": 1}),), "look"),
        ),
        ({"content": None, "tool_calls": [a_call("")]}, ToolCalls((ToolCall("c-9", "look", {}),))),
        (
            {"content": None, "tool_calls": [a_call({"n": 1})]},
            ToolCalls((ToolCall("c-9", "look", {"n": 1}),)),
        ),
        (
            {"content": None, "tool_calls": [a_call('{"n": ')]},
            ToolCalls((ToolCall("c-9", "look", None, "arguments_not_json"),)),
        ),
        (
            {"content": None, "tool_calls": [a_call("[1]")]},
            ToolCalls((ToolCall("c-9", "look", None, "arguments_not_json"),)),
        ),
    ],
)
def test_what_a_gateway_answers_is_one_proposal(message: dict[str, Any], proposal: Proposal) -> None:
    assert read_proposal(json.dumps(completion(**message)).encode()) == proposal


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": 5}}]}',
        b"[" * 99_999,
    ],
)
def test_what_is_no_completion_is_no_proposal(body: bytes) -> None:
    with pytest.raises(NoProposal):
        read_proposal(body)


def test_a_filtered_answer_is_a_refusal() -> None:
    body = completion(content="")
    body["choices"][0]["finish_reason"] = "content_filter"
    assert isinstance(read_proposal(json.dumps(body).encode()), Refusal)


@pytest.mark.parametrize(
    ("status", "headers", "after_s"),
    [
        (500, {}, None),
        (503, {"retry_after": "7"}, 7.0),
        (429, {"retry_after": "999999"}, 3600.0),
        (429, {"retry_after": "soon"}, None),
        (429, {"retry_after": formatdate(0, usegmt=True)}, 0.0),
        (401, {}, None),
        (302, {"location": "http://127.0.0.1:1/CANARY"}, None),
        (400, {}, None),
    ],
)
def test_what_another_try_may_mend_is_unavailable(
    status: int, headers: dict[str, str], after_s: float | None
) -> None:
    with (
        http_server(answering({"error": {"message": "CANARY"}}, status, **headers)) as server,
        pytest.raises(ModelUnavailable) as caught,
    ):
        ask(server, api_key=Secret("CANARY-key"))
    assert caught.value.what == "model"
    assert caught.value.retry_after_s == after_s
    assert "CANARY" not in str(caught.value)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, None),
        (400, {"code": "model_not_found"}),
        (400, {"message": "The model `reasoning-standard` does not exist"}),
    ],
)
def test_a_model_that_the_gateway_does_not_know_is_an_unknown_profile(status: int, error: Any) -> None:
    with http_server(answering({"error": error}, status)) as server, pytest.raises(ModelProfileUnknown):
        ask(server)


def test_where_profiles_are_listed_an_unlisted_one_is_served_by_nobody() -> None:
    with http_server(answering(completion(content="done"))) as server:
        with pytest.raises(ModelProfileUnknown):
            ask(server, served=["cheap"])
        assert server.asked == []
        assert ask(server, served=["reasoning-standard"]) == FinalAnswer("done")
        # what admission resolved stays, whatever the list says today (I3)
        assert ask(server, a_request(model_target="gw-large"), served=["cheap"]) == FinalAnswer("done")


def test_no_connection_and_no_answer_are_unavailable() -> None:
    with pytest.raises(Unavailable):
        ask(Server("http://127.0.0.1:1", [], lambda _: Answer()))
    hang = threading.Event()

    def silent(_: Asked) -> Answer:
        assert hang.wait(20)
        return Answer()

    with http_server(silent) as server:
        try:
            with pytest.raises(ModelUnavailable, match="no answer in time"):
                ask(server, a_request(timeout_s=0.1))
        finally:
            hang.set()


def test_an_answer_beyond_its_bound_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "ANSWER_BYTES_MAX", 1_000)
    with (
        http_server(answering(completion(content="x" * 2_000))) as server,
        pytest.raises(ModelUnavailable, match="more than 1000 bytes"),
    ):
        ask(server)
