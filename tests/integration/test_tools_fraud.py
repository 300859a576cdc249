"""The fraud example's tools through the gate against the bank's server: both kinds of writes (DESIGN 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from session_custody.contracts.document import read_document
from session_custody.contracts.parse import parse_manifest
from session_custody.core.authorization import AuthorizationRequest, Decision
from session_custody.core.calls import (
    Permit,
    ReconciledDone,
    ReconciledNotFound,
    Returned,
    ToolAnswer,
    ToolErrored,
    Uncertain,
)
from session_custody.core.inference import ToolCall
from session_custody.core.manifest import Manifest
from session_custody.core.pin import RunId
from session_custody.resources import examples_dir
from session_custody.tools.gate import Gate
from session_custody.tools.registry import Registry
from tests.integration.fraud_desk import Bank, a_bank, fraud_tools
from tests.unit.tool_app import PIN, RUN, TRACE, a_send

ALERT = "alert-88421"


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    with a_bank(tmp_path, write_s=1) as bank:
        yield bank


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    with fraud_tools(monkeypatch) as registry:
        yield registry


class Allowing:
    async def decide(self, request: AuthorizationRequest) -> Decision:
        return Decision(True, "d-1", "1")


def manifest(kind: str) -> Manifest:
    file = examples_dir() / "fraud" / f"manifest-{kind}.yaml"
    return parse_manifest(read_document(file.read_text(encoding="utf-8"), file.name))


SHORT_S = 0.4
"""Long enough to reach the bank, too short for its answer to a write."""


class Desk:
    """A gate over the example's tools."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    async def permit(self, kind: str, tool: str, **arguments: Any) -> Permit:
        call = ToolCall("c-1", tool, arguments)
        permit = await self.gate.authorize(RUN, PIN, manifest(kind), call, TRACE)
        assert isinstance(permit, Permit)
        return permit

    async def send(self, permit: Permit, key: str = "run-1/3/0", timeout_s: float = 10.0) -> ToolAnswer:
        return await self.gate.invoke(permit, RUN, a_send(key=key, timeout_s=timeout_s))


def at_the_bank(bank: Bank, registry: Registry, work: Callable[[Desk], Awaitable[None]]) -> None:
    async def late(run_id: RunId, key: str, answer: ToolAnswer) -> None:
        pass

    async def run() -> None:
        gate = Gate(registry, Allowing(), late_result=late, base_url=bank.url, sync_threads=2)
        try:
            await work(Desk(gate))
        finally:
            await gate.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_the_manifests_fit_the_tools(registry: Registry) -> None:
    for kind in ("notes", "filings"):
        registry.compare(manifest(kind))
        assert {spec.name for spec in manifest(kind).tools} < {spec.name for spec in registry.specs()}


def test_an_alert_is_read(bank: Bank, registry: Registry) -> None:
    async def work(desk: Desk) -> None:
        answer = await desk.send(await desk.permit("notes", "get_alert", alert_id=ALERT))
        assert isinstance(answer, Returned)
        assert answer.value == {
            "id": ALERT,
            "account": {"id": "acct-88421"},
            "rule": "velocity",
            "amount": 1990,
        }

    at_the_bank(bank, registry, work)


def test_a_note_that_is_sent_again_under_its_key_is_one_note(bank: Bank, registry: Registry) -> None:
    async def work(desk: Desk) -> None:
        permit = await desk.permit("notes", "add_note", alert_id=ALERT, text="Watch.")
        # out of time, but landed: nobody knows but the bank
        assert await desk.send(permit, timeout_s=SHORT_S) == Uncertain("tool_timeout")
        again = await asyncio.gather(desk.send(permit), desk.send(permit))
        assert list(again) == [Returned({"id": "note-1", "alert_id": ALERT})] * 2
        assert bank.effects() == ["run-1/3/0"]

    at_the_bank(bank, registry, work)


def test_a_filing_is_asked_for_and_never_sent_twice(bank: Bank, registry: Registry) -> None:
    async def work(desk: Desk) -> None:
        permit = await desk.permit("filings", "file_note", alert_id=ALERT, text="Watch.")
        assert await desk.send(permit, timeout_s=SHORT_S) == Uncertain("tool_timeout")
        done = await desk.gate.reconcile(permit, RUN, a_send(key="run-1/3/0"))
        assert done == ReconciledDone({"id": "filing-1", "alert_id": ALERT})
        assert bank.effects() == ["run-1/3/0"]

    at_the_bank(bank, registry, work)


def test_what_was_once_not_found_is_refused_for_ever_under_that_key(bank: Bank, registry: Registry) -> None:
    async def work(desk: Desk) -> None:
        permit = await desk.permit("filings", "file_note", alert_id=ALERT, text="Watch.")
        asked = await desk.gate.reconcile(permit, RUN, a_send(key="run-1/3/0"))
        assert asked == ReconciledNotFound()
        # the first send, late: it must not take effect any more, and its refusal is no word of ours
        assert await desk.send(permit, key="run-1/3/0") == Uncertain("tool_failed")
        assert await desk.send(permit, key="run-1/3/0/1") == Returned({"id": "filing-1", "alert_id": ALERT})
        assert bank.effects() == ["run-1/3/0/1"]

    at_the_bank(bank, registry, work)


def test_a_bank_that_is_gone_is_a_code_to_the_model(registry: Registry) -> None:
    async def work(desk: Desk) -> None:
        permit = await desk.permit("notes", "get_alert", alert_id=ALERT)
        assert await desk.send(permit) == ToolErrored("tool_unavailable")

    at_the_bank(Bank("http://127.0.0.1:1", Path()), registry, work)
