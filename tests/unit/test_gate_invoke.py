"""Station 10: how a call ends, and what its end may be taken for (DESIGN 8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any

import httpx
import psycopg
import pytest
import structlog

from session_custody.clock import boottime
from session_custody.core.calls import (
    NotStarted,
    ReconciledDone,
    ReconciledNotFound,
    ReconciledUnknown,
    Returned,
    ToolErrored,
    Uncertain,
)
from session_custody.core.errors import InvariantBroken, Unavailable
from session_custody.core.results import stored
from session_custody.core.transcript import UNSTORABLE
from session_custody.tools.context import Done, NotFound, ToolContext, ToolError
from session_custody.tools.threads import ThreadCall
from tests.unit.tool_app import RUN, WAIT_S, App, a_send, hold, raising

SHORT_S = 0.05


def in_app(work: Callable[[App], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        app = App(**options)
        try:
            await work(app)
        finally:
            await app.close()

    asyncio.run(asyncio.wait_for(run(), 30))


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0)


def test_a_tool_gets_its_arguments_as_its_hints_say_and_its_value_comes_back() -> None:
    async def work(app: App) -> None:
        assert await app.invoke("note", attempt=2) == Returned({"ok": True})
        (seen,) = app.levers.seen
        assert (seen["key"], seen["attempt"]) == ("run-1/1/0", 2)
        assert seen["note"].on.isoformat() == "2026-08-14"

    in_app(work)


def test_a_context_has_what_the_contract_names_and_nothing_else_of_the_run() -> None:
    async def work(app: App) -> None:
        def act(ctx: ToolContext[Any]) -> Any:
            assert (ctx.run_id, ctx.subject, ctx.trace.loop_step) == ("run-1", RUN.subject, 1)
            return sorted(name for name in dir(ctx) if not name.startswith("_"))

        assert await app.invoke("look", act) == Returned(
            [
                *("attempt", "deadline", "http", "idempotency_key", "log", "run_id", "subject"),
                *("token", "trace"),
            ]
        )

    in_app(work)


def test_what_a_tool_logs_carries_the_trace_fields() -> None:
    async def work(app: App) -> None:
        with structlog.testing.capture_logs() as logged:
            await app.invoke("look", lambda ctx: ctx.log.info("looked", n=1))
        (line,) = logged
        assert (line["event"], line["n"], line["tool"]) == ("looked", 1, "look")
        assert line.items() >= asdict(RUN.trace("loop", 1)).items()

    in_app(work)


OTHER_ERRORS = [
    (ValueError("CANARY"), "tool_failed"),
    (psycopg.OperationalError("CANARY"), "tool_failed"),
    (Unavailable("postgres", "CANARY"), "tool_failed"),
    (InvariantBroken("CANARY"), "tool_failed"),
    (SystemExit("CANARY"), "tool_failed"),
    (KeyboardInterrupt("CANARY"), "tool_failed"),
    (asyncio.CancelledError("CANARY"), "cancelled"),
    (TimeoutError("CANARY"), "tool_timeout"),
    (httpx.ConnectError("http://u:CANARY@h/"), "tool_unavailable"),
]


@pytest.mark.parametrize(("error", "code"), OTHER_ERRORS, ids=[type(e).__name__ for e, _ in OTHER_ERRORS])
@pytest.mark.parametrize("name", ["look", "look_sync"])
def test_whatever_leaves_a_read_is_its_failure_by_code_and_without_text(
    name: str, error: BaseException, code: str
) -> None:
    async def work(app: App) -> None:
        assert await app.invoke(name, raising(error)) == ToolErrored(code, "")

    in_app(work)


@pytest.mark.parametrize(("error", "code"), OTHER_ERRORS, ids=[type(e).__name__ for e, _ in OTHER_ERRORS])
@pytest.mark.parametrize("name", ["note", "freeze", "shout"])
def test_whatever_leaves_a_write_leaves_its_intent_pending(
    name: str, error: BaseException, code: str
) -> None:
    async def work(app: App) -> None:
        assert await app.invoke(name, raising(error)) == Uncertain(code)
        assert not app.gate.running("run-1/1/0")

    in_app(work)


@pytest.mark.parametrize("name", ["look", "look_sync", "note", "freeze", "shout"])
def test_a_tool_error_is_the_tools_word_that_nothing_took_effect(name: str) -> None:
    async def work(app: App) -> None:
        answer = await app.invoke(name, raising(ToolError("alert_not_found", "There is none.")))
        assert answer == ToolErrored("alert_not_found", "There is none.")
        bounded = await app.invoke(name, raising(ToolError("No code! \x00", "x" * 10_000)))
        assert isinstance(bounded, ToolErrored)
        assert (bounded.code, len(bounded.text)) == ("tool_failed", 2_000)

    in_app(work)


def test_a_token_that_cannot_be_had_is_no_word_about_the_effect() -> None:
    async def work(app: App) -> None:
        assert await app.invoke("note", lambda ctx: ctx.token("bank")) == Uncertain("token_unavailable")
        assert await app.invoke("look", lambda ctx: ctx.token("bank")) == ToolErrored("token_unavailable")

    in_app(work)


def test_a_value_that_is_no_json_fails_a_read_and_leaves_a_write_done() -> None:
    async def work(app: App) -> None:
        read = await app.invoke("look", lambda _: object())
        assert isinstance(read, ToolErrored)
        assert read.code == "result_not_json"
        wrote = await app.invoke("note", lambda _: {"a": object()})
        assert isinstance(wrote, Returned)
        assert stored(wrote.value, 1_000, wrote=True).result == UNSTORABLE

    in_app(work)


def test_a_value_is_tamed() -> None:
    async def work(app: App) -> None:
        answer = await app.invoke("look", lambda _: {"n": float("nan"), "big": 2**60, "t": ("\ud800",)})
        assert answer == Returned({"n": "NaN", "big": str(2**60), "t": ["�"]})

    in_app(work)


async def for_ever(_: ToolContext[Any]) -> None:
    await asyncio.Event().wait()


def test_a_coroutine_out_of_time_is_stopped() -> None:
    async def work(app: App) -> None:
        assert await app.invoke("look", for_ever, timeout_s=SHORT_S) == ToolErrored("tool_timeout")
        assert await app.invoke("note", for_ever, timeout_s=SHORT_S) == Uncertain("tool_timeout")
        assert not app.gate.running("run-1/1/0")

    in_app(work)


def test_a_coroutine_that_will_not_be_stopped_goes_on_as_running_and_its_value_comes_late() -> None:
    async def work(app: App) -> None:
        let_go = asyncio.Event()

        async def stubborn(_: ToolContext[Any]) -> Any:
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue
            return {"late": True}

        answer = await app.invoke("note", stubborn, timeout_s=SHORT_S)
        assert answer == Uncertain("tool_timeout", still_running=True)
        assert app.gate.running("run-1/1/0")
        let_go.set()
        assert await app.late.get() == ("run-1", "run-1/1/0", Returned({"late": True}))

    in_app(work)


def test_a_sync_write_past_its_timeout_lives_on_and_its_value_comes_late() -> None:
    async def work(app: App) -> None:
        answer = await app.invoke("freeze", lambda _: hold(), timeout_s=SHORT_S)
        assert answer == Uncertain("tool_timeout", still_running=True)
        assert app.gate.running("run-1/1/0")
        app.levers.release.set()
        assert await app.late.get() == ("run-1", "run-1/1/0", Returned({"late": True}))
        assert not app.gate.running("run-1/1/0")

    in_app(work)


def test_a_late_exception_of_a_write_ends_it_as_running_and_says_nothing_about_its_effect() -> None:
    async def work(app: App) -> None:
        def act(_: ToolContext[Any]) -> Any:
            hold()
            raise ToolError("late", "Too late.")

        await app.invoke("freeze", act, timeout_s=SHORT_S)
        app.levers.release.set()
        assert (await app.late.get())[2] == ToolErrored("late", "Too late.")

    in_app(work)


def test_a_late_read_is_nobodys_business() -> None:
    async def work(app: App) -> None:
        answer = await app.invoke("look_sync", lambda _: hold(), timeout_s=SHORT_S)
        assert answer == ToolErrored("tool_timeout")
        app.levers.release.set()
        await until(lambda: not app.gate.running("run-1/1/0"))
        for _ in range(5):  # long enough for the telling to have begun
            await asyncio.sleep(0)
        assert app.late.empty()

    in_app(work)


@pytest.mark.parametrize("name", ["note", "freeze"])
def test_a_cancelled_invoke_of_a_write_raises_and_a_value_that_still_comes_is_told(name: str) -> None:
    async def work(app: App) -> None:
        entered = asyncio.Event()

        async def finishes(_: ToolContext[Any]) -> Any:
            entered.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return {"late": True}  # the effect had landed

        act = finishes if name == "note" else (lambda _: hold())
        task = asyncio.create_task(app.invoke(name, act))
        await (entered.wait() if name == "note" else asyncio.to_thread(app.levers.entered.wait, WAIT_S))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        app.levers.release.set()
        assert await app.late.get() == ("run-1", "run-1/1/0", Returned({"late": True}))

    in_app(work)


def test_a_call_past_its_start_allowance_is_not_sent() -> None:
    async def work(app: App) -> None:
        for name in ("note", "freeze"):
            assert await app.invoke(name, start_by=boottime() - 0.001) == NotStarted()
        assert app.levers.seen == []

    in_app(work)


def test_a_write_that_finds_no_thread_within_its_allowance_is_never_sent() -> None:
    async def work(app: App) -> None:
        first = asyncio.create_task(app.invoke("freeze", lambda _: hold(), key="run-1/1/0"))
        await asyncio.to_thread(app.levers.entered.wait, WAIT_S)
        answer = await app.invoke("freeze", key="run-1/1/1", start_by=boottime() + SHORT_S)
        assert answer == NotStarted()
        assert not app.gate.running("run-1/1/1")
        app.levers.release.set()
        assert await first == Returned({"late": True})
        assert await app.invoke("look_sync", lambda _: 1) == Returned(1)  # the thread came by the queue
        assert [seen.get("key") for seen in app.levers.seen] == ["run-1/1/0", None]

    in_app(work, threads=1)


def test_a_thread_that_takes_a_call_too_late_does_not_make_it() -> None:
    async def work(app: App) -> None:
        made: list[int] = []
        late = ThreadCall(lambda: made.append(1), boottime() - 0.001, asyncio.get_running_loop())
        late.run()
        in_time = ThreadCall(lambda: made.append(2), boottime() + WAIT_S, asyncio.get_running_loop())
        assert in_time.abandon()
        in_time.run()
        assert (made, late.begun, in_time.begun) == ([], False, False)

    in_app(work)


def test_a_hung_thread_keeps_its_slot_and_the_others_serve() -> None:
    async def work(app: App) -> None:
        hung = await app.invoke("look_sync", lambda _: hold(), timeout_s=SHORT_S, key="run-1/1/0")
        assert hung == ToolErrored("tool_timeout")
        answers = await asyncio.gather(
            *(app.invoke("look_sync", lambda _: 1, key=f"run-1/1/{n}") for n in range(1, 9))
        )
        assert set(map(repr, answers)) == {repr(Returned(1))}
        assert len({seen["thread"] for seen in app.levers.seen}) == 2

    in_app(work, threads=2)


def test_a_permit_for_other_arguments_or_another_run_is_our_own_bug() -> None:
    async def work(app: App) -> None:
        permit = await app.permit("look")
        other = replace(permit, call=replace(permit.call, arguments={"n": 2}))
        for wrong in (other, replace(permit, policy=replace(permit.policy, decision="deny"))):
            with pytest.raises(InvariantBroken):
                await app.gate.invoke(wrong, RUN, a_send())
        with pytest.raises(InvariantBroken):
            await app.gate.invoke(permit, replace(RUN, run_id="run-2"), a_send())
        assert app.levers.seen == []

    in_app(work)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (lambda _: Done({"id": "f-1"}), ReconciledDone({"id": "f-1"})),
        (lambda _: NotFound(), ReconciledNotFound()),
        (lambda _: NotFound, ReconciledUnknown("reconcile_unclear")),
        (lambda _: None, ReconciledUnknown("reconcile_unclear")),
        (lambda _: Done(object()), ReconciledDone({"unstorable": "result_not_json"})),
        (raising(ToolError("bank_closed", "CANARY")), ReconciledUnknown("bank_closed")),
        (raising(httpx.ReadTimeout("CANARY")), ReconciledUnknown("tool_timeout")),
    ],
)
def test_only_a_clear_word_of_the_reconciler_counts(
    asked: Callable[[ToolContext[Any]], Any], answer: object
) -> None:
    async def work(app: App) -> None:
        assert await app.reconcile(asked) == answer

    in_app(work)


def test_a_reconciler_that_does_not_answer_leaves_the_write_unknown() -> None:
    async def work(app: App) -> None:
        assert await app.reconcile(lambda _: hold(), timeout_s=SHORT_S) == ReconciledUnknown("tool_timeout")

    in_app(work)


def test_a_tool_without_a_reconciler_cannot_be_asked() -> None:
    async def work(app: App) -> None:
        permit = await app.permit("shout")
        assert await app.gate.reconcile(permit, RUN, a_send()) == ReconciledUnknown("no_reconciler")

    in_app(work)
