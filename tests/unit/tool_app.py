"""An app's tools as the gate's tests serve them, and everything that stands around one call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import httpx
from pydantic import BaseModel, JsonValue

from session_custody import Done, NotFound, ToolContext, tool
from session_custody.core.authorization import AuthorizationRequest, Decision
from session_custody.core.calls import Permit, Reconciled, ToolAnswer
from session_custody.core.events import RunFacts
from session_custody.core.inference import ToolCall
from session_custody.core.manifest import Manifest
from session_custody.core.pin import Resolved, RunId, RunPin, SentPin, Subject
from session_custody.ports import Send, ToolGate
from session_custody.tools.declare import Tool
from session_custody.tools.gate import Gate
from session_custody.tools.registry import Registry

WAIT_S = 20.0
SENT = SentPin(
    route_id="r",
    route_table_version="1",
    model_profile="m",
    manifest_id="app",
    manifest_version="1",
    policy_profile="p",
    policy_version="7",
    max_loop_steps=5,
)
PIN = RunPin(sent=SENT, resolved=Resolved())
RUN = RunFacts(
    run_id="run-1",
    correlation_id="run-1",
    session_id="sess-1",
    tenant="bank-a",
    subject=Subject(id="u-17", tenant="bank-a"),
    decision_id=None,
    pin=SENT,
    manifest_version="1",
    workflow_version=None,
    policy_version="7",
)
TRACE = RUN.trace("loop", 1)


@dataclass
class Levers:
    """What a test sets before a call, and what the tools saw."""

    act: Callable[[ToolContext[Any]], Any] = lambda _: {"ok": True}
    asked: Callable[[ToolContext[Any]], Any] = lambda _: None
    seen: list[dict[str, Any]] = field(default_factory=list)
    entered: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


LEVERS = Levers()


class Note(BaseModel):
    text: str
    on: date


async def _act(ctx: ToolContext, **arguments: Any) -> Any:
    LEVERS.seen.append({"key": ctx.idempotency_key, "attempt": ctx.attempt, **arguments})
    answer = LEVERS.act(ctx)
    return await answer if asyncio.iscoroutine(answer) else answer


@tool(effect="read", policy_args=["n"], saves={"n": "/n"})
async def look(ctx: ToolContext, n: int, text: str = "x") -> Any:
    """Look at n."""
    return await _act(ctx, n=n, text=text)


@tool(effect="write", idempotency="key", overlap="safe", timeout="10s")
async def note(ctx: ToolContext, note: Note) -> Any:
    """Write a note."""
    return await _act(ctx, note=note)


@tool(effect="read")
def look_sync(ctx: ToolContext[httpx.Client], n: int) -> Any:
    """Look, on a thread."""
    LEVERS.seen.append({"n": n, "thread": threading.current_thread().name})
    return LEVERS.act(ctx)


@tool(effect="write", idempotency="reconcile", on_not_found="resend")
def freeze(ctx: ToolContext[httpx.Client], n: int) -> Any:
    """Freeze, on a thread."""
    LEVERS.seen.append({"n": n, "key": ctx.idempotency_key})
    return LEVERS.act(ctx)


@freeze.reconcile
def _frozen(ctx: ToolContext[httpx.Client], n: int) -> Done | NotFound | None:
    answer: Done | NotFound | None = LEVERS.asked(ctx)
    return answer


@tool(effect="write", idempotency="none", on_in_doubt="hold")
async def shout(ctx: ToolContext, n: int) -> Any:
    """Shout once."""
    return await _act(ctx, n=n)


TOOLS: tuple[Tool[..., Any], ...] = (look, note, look_sync, freeze, shout)


def hold() -> Any:
    """What a tool does that hangs until the test lets it go."""
    LEVERS.entered.set()
    assert LEVERS.release.wait(WAIT_S)
    return {"late": True}


class Pdp:
    """Answers as told; remembers what it was asked."""

    def __init__(self, answer: Callable[[AuthorizationRequest], Any] | None = None) -> None:
        self.answer = answer or (lambda _: Decision(True, "d-1", "7"))
        self.asked: list[AuthorizationRequest] = []

    async def decide(self, request: AuthorizationRequest) -> Decision:
        self.asked.append(request)
        answer = self.answer(request)
        decision: Decision = await answer if asyncio.iscoroutine(answer) else answer
        return decision


class App:
    """A gate over these tools, for the length of one test."""

    def __init__(self, pdp: Pdp | None = None, *, threads: int = 4, base_url: str | None = None) -> None:
        global LEVERS  # noqa: PLW0603 - the tools above are module-level, as an app's are
        LEVERS = Levers()
        self.levers = LEVERS
        self.pdp = pdp or Pdp()
        self.registry = Registry(TOOLS)
        self.manifest = Manifest(manifest_id="app", manifest_version="1", tools=self.registry.specs())
        self.late: asyncio.Queue[tuple[RunId, str, ToolAnswer]] = asyncio.Queue()
        gate = Gate(
            self.registry,
            self.pdp,
            late_result=self._late,
            base_url=base_url,
            sync_threads=threads,
            pdp_timeout_s=0.2,
        )
        port: ToolGate = gate  # as the driver takes it
        assert port is gate
        self.gate = gate

    async def _late(self, run_id: RunId, key: str, answer: ToolAnswer) -> None:
        assert not self.gate.running(key)
        await self.late.put((run_id, key, answer))

    async def authorize(self, name: str, arguments: dict[str, JsonValue] | None = None) -> Any:
        call = ToolCall("c-1", name, {"n": 1} if arguments is None else arguments)
        return await self.gate.authorize(RUN, PIN, self.manifest, call, TRACE)

    async def permit(self, name: str, arguments: dict[str, JsonValue] | None = None) -> Permit:
        permit = await self.authorize(name, arguments)
        assert isinstance(permit, Permit)
        return permit

    async def invoke(
        self, name: str, act: Callable[[ToolContext[Any]], Any] | None = None, **send: Any
    ) -> ToolAnswer:
        """Authorize and send once; `act` is what the tool does."""
        if act is not None:
            self.levers.act = act
        arguments: dict[str, JsonValue] = {"n": 1}
        if name == "note":
            arguments = {"note": {"text": "hi", "on": "2026-08-14"}}
        return await self.gate.invoke(await self.permit(name, arguments), RUN, a_send(**send))

    async def reconcile(self, asked: Callable[[ToolContext[Any]], Any], **send: Any) -> Reconciled:
        self.levers.asked = asked
        return await self.gate.reconcile(await self.permit("freeze"), RUN, a_send(**send))

    async def close(self) -> None:
        self.levers.release.set()
        await self.gate.close()


def a_send(
    *,
    key: str = "run-1/1/0",
    attempt: int = 1,
    timeout_s: float = WAIT_S,
    start_by: float | None = None,
    traceparent: str | None = None,
) -> Send:
    return Send(key, attempt, timeout_s, start_by, traceparent)


def raising(error: BaseException) -> Callable[[ToolContext[Any]], Any]:
    def act(_: ToolContext[Any]) -> Any:
        raise error

    return act
