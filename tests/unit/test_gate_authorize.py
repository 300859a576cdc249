"""Station 8: what the PEP lets through, and that everything else is a no (I12, DESIGN 13)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from session_custody.core import canonical
from session_custody.core.authorization import AuthorizationRequest, Decision
from session_custody.core.calls import CouldNotAsk, Denied, Malformed, Permit
from session_custody.core.errors import ContractMissing, Unavailable
from session_custody.core.inference import ToolCall
from session_custody.core.manifest import Idempotency, ToolSpec
from session_custody.tools.registry import build_id_of
from tests.unit.tool_app import PIN, RUN, TRACE, App, Pdp


def in_app(work: Callable[[App], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        app = App(**options)
        try:
            await work(app)
        finally:
            await app.close()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_permit_is_about_exactly_this_call_and_names_the_decision_and_the_build() -> None:
    async def work(app: App) -> None:
        permit = await app.permit("look", {"n": 3})
        assert permit.call.arguments == {"n": 3}
        assert permit.args_digest == canonical.digest({"n": 3}).hex()
        assert (permit.policy.decision, permit.policy.decision_id, permit.policy.policy_version) == (
            "allow",
            "d-1",
            "7",
        )
        assert permit.build_id == build_id_of("tests.unit.tool_app")
        assert permit.build_id is not None
        assert len(permit.build_id) == 16

    in_app(work)


def test_the_pdp_sees_the_pinned_subject_and_bundle_and_of_the_arguments_only_the_declared_ones() -> None:
    async def work(app: App) -> None:
        await app.permit("look", {"n": 3, "text": "private"})
        (request,) = app.pdp.asked
        assert request.subject == RUN.subject
        assert (request.policy_profile, request.policy_version) == ("p", "7")
        assert (request.action, request.effect, request.resource) == ("look", "read", "app")
        assert request.declared_args == {"n": 3}
        assert request.trace == TRACE
        assert "private" not in repr(request)

    in_app(work)


@pytest.mark.parametrize(
    ("name", "arguments", "code", "said"),
    [
        ("nobody", {"n": 1}, "unknown_tool", "no tool of this name"),
        ("look", {}, "arguments_invalid", "needs n"),
        ("look", {"n": "CANARY"}, "arguments_invalid", "/n: type"),
        ("look", {"n": 1, "CANARY": 2}, "arguments_invalid", "takes no other keys"),
        ("note", {"note": {"text": "x", "on": "CANARY"}}, "arguments_invalid", "/note/on"),
    ],
)
def test_arguments_that_the_pinned_schema_refuses_are_a_fact_and_the_pdp_is_not_asked(
    name: str, arguments: dict[str, Any], code: str, said: str
) -> None:
    async def work(app: App) -> None:
        answer = await app.authorize(name, arguments)
        assert isinstance(answer, Malformed)
        assert answer.code == code
        assert said in answer.text
        assert "CANARY" not in answer.text
        assert app.pdp.asked == []

    in_app(work)


def test_arguments_that_are_no_json_are_malformed() -> None:
    async def work(app: App) -> None:
        call = ToolCall("c", "look", None, "arguments_not_json")
        answer = await app.gate.authorize(RUN, PIN, app.manifest, call, TRACE)
        assert isinstance(answer, Malformed)

    in_app(work)


def unclean() -> list[Any]:
    def boom(_: AuthorizationRequest) -> Decision:
        raise KeyError("CANARY")

    word: Any = "yes"
    number: Any = 1
    return [
        pytest.param(lambda _: Decision(False, "d", "7", "no"), id="a plain no"),
        pytest.param(lambda _: Decision(word, "d"), id="a truthy text"),
        pytest.param(lambda _: Decision(number, "d"), id="a truthy number"),
        pytest.param(lambda _: Decision(True, ""), id="no decision id"),
        pytest.param(lambda _: Decision(True, "d", obligations=("mask",)), id="an unknown obligation"),
        pytest.param(lambda _: None, id="no decision"),
        pytest.param(lambda _: {"allow": True}, id="another type"),
        pytest.param(boom, id="a fault of the PDP"),
    ]


@pytest.mark.parametrize("answer", unclean())
def test_anything_but_a_clean_true_is_an_audited_deny(answer: Callable[[Any], Any]) -> None:
    async def work(app: App) -> None:
        denied = await app.authorize("look")
        assert isinstance(denied, Denied)
        assert denied.policy.decision == "deny"
        assert denied.policy.decision_id
        assert "CANARY" not in repr(denied)
        assert app.levers.seen == []

    in_app(work, pdp=Pdp(answer))


def test_a_pdp_that_cannot_be_asked_is_no_decision() -> None:
    def gone(_: AuthorizationRequest) -> Decision:
        raise Unavailable("pdp", "connection refused")

    async def silent(_: AuthorizationRequest) -> Decision:
        await asyncio.Event().wait()
        raise AssertionError

    async def work(app: App) -> None:
        assert isinstance(await app.authorize("look"), CouldNotAsk)

    in_app(work, pdp=Pdp(gone))
    in_app(work, pdp=Pdp(silent))


def test_a_pinned_bundle_that_is_gone_parks_and_is_no_deny() -> None:
    def gone(_: AuthorizationRequest) -> Decision:
        raise ContractMissing("policy", "p", "7")

    async def work(app: App) -> None:
        with pytest.raises(ContractMissing):
            await app.authorize("look")

    in_app(work, pdp=Pdp(gone))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"effect": "read", "idempotency": None}, "effect"),
        ({"idempotency": Idempotency.RECONCILE}, "idempotency: reconcile is pinned, key is here"),
        ({"input": {"type": "object"}}, "input"),
        ({"endpoint": "python:tests.unit.tool_app:gone"}, "is not in this app"),
        ({"endpoint": {"http": {"url": "http://127.0.0.1:1/"}}}, "cannot call"),
    ],
)
def test_a_tool_that_differs_from_its_pin_is_not_served_and_the_field_is_named(
    changes: dict[str, Any], field: str
) -> None:
    async def work(app: App) -> None:
        spec = app.manifest.tool("note")
        assert spec is not None
        other = ToolSpec.model_validate(spec.model_dump() | changes)
        manifest = app.manifest.model_copy(update={"tools": (other,)})
        call = ToolCall("c", "note", {"note": {"text": "x", "on": "2026-08-14"}})
        with pytest.raises(ContractMissing, match=field) as caught:
            await app.gate.authorize(RUN, PIN, manifest, call, TRACE)
        assert caught.value.kind == "tool"
        with pytest.raises(ContractMissing, match=field):
            app.registry.compare(manifest)

    in_app(work)


def test_what_a_person_completes_in_a_manifest_does_not_make_the_tool_another_one() -> None:
    async def work(app: App) -> None:
        spec = app.manifest.tool("look")
        assert spec is not None
        completed = spec.model_copy(
            update={"description": "Better.", "visible": ("/result",), "timeout_s": 1.0}
        )
        manifest = app.manifest.model_copy(update={"tools": (completed,)})
        answer = await app.gate.authorize(RUN, PIN, manifest, ToolCall("c", "look", {"n": 1}), TRACE)
        assert isinstance(answer, Permit)
        assert answer.spec is completed

    in_app(work)


def test_a_reference_out_of_the_schema_is_never_fetched() -> None:
    async def work(app: App) -> None:
        spec = app.manifest.tool("look")
        assert spec is not None
        tool = app.registry.get(spec.endpoint)
        assert tool is not None
        schema = {"type": "object", "properties": {"n": {"$ref": "http://127.0.0.1:1/schema"}}}
        entry = replace(tool, schema_digest=canonical.digest(canonical.tame(schema)))
        app.registry._tools[str(spec.endpoint)] = entry
        manifest = app.manifest.model_copy(update={"tools": (spec.model_copy(update={"input": schema}),)})
        with pytest.raises(ContractMissing, match="unusable input schema"):
            await app.gate.authorize(RUN, PIN, manifest, ToolCall("c", "look", {"n": 1}), TRACE)

    in_app(work)
