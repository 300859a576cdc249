"""One fraud investigation through stations 7-11 with the real model client, PEP, PDP, contracts and tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from session_custody.clock import boottime
from session_custody.contracts import StoreContracts, publish
from session_custody.core.events import RunFacts
from session_custody.core.pin import Pattern, Resolved, RunPin, SentPin, Subject
from session_custody.core.run import ParkReason, Status
from session_custody.loop import Driver
from session_custody.models import HttpModel, ScriptedModel
from session_custody.policy import PolicyRouter
from session_custody.ports import Inbox, LoadedRun, ModelClient, RunStore
from session_custody.redaction import KnownValues
from session_custody.resources import examples_dir
from session_custody.tools.gate import Gate
from session_custody.tools.registry import Registry
from tests.integration.fraud_desk import Bank, ContractTable, a_bank, a_model, fraud_tools
from tests.unit.driver_stations import RUN_ID, Clocks, Signing, Store, a_fence, a_run

FRAUD = examples_dir() / "fraud"


class BootClock(Clocks):
    def boottime(self) -> float:
        return boottime()


@dataclass
class Desk:
    bank: Bank
    registry: Registry
    store: Store

    @property
    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.store.events]

    def drive(self, kind: str, model: ModelClient, *, mask: KnownValues | None = None) -> Status:
        """One run of the example from its start to where it leaves memory."""

        async def late(*_: object) -> None:
            raise AssertionError("nothing was late")

        async def run() -> None:
            table = ContractTable()
            await publish(table, FRAUD)
            contracts = StoreContracts(table)
            gate = Gate(
                self.registry,
                PolicyRouter(contracts),
                late_result=late,
                base_url=self.bank.url,
                sync_threads=2,
            )
            driver = Driver(
                store=cast("RunStore", self.store),
                contracts=contracts,
                model=model,
                gate=gate,
                clock=BootClock(),
                signer=Signing(),
                mask=(mask or KnownValues()).mask,
            )
            try:
                await driver.drive(investigation(kind), a_fence(), Inbox(), suspects=False)
            finally:
                await gate.close()
                if isinstance(model, HttpModel):
                    await model.close()

        asyncio.run(asyncio.wait_for(run(), 60))
        return self.store.commits[-1].checkpoint.status


def investigation(kind: str) -> LoadedRun:
    sent = SentPin(
        route_id="fraud_investigate",
        route_table_version="2026.08.1",
        manifest_id=f"fraud-investigate-{kind}",
        manifest_version="2026.08.1",
        policy_profile="fraud_ops_read_plus_notes",
        policy_version="1",
        model_profile="reasoning-standard",
        max_loop_steps=12,
    )
    facts = RunFacts(
        RUN_ID,
        RUN_ID,
        "sess-88",
        "bank-a",
        Subject(id="u-17", tenant="bank-a"),
        None,
        sent,
        "2026.08.1",
        None,
        "1",
    )
    return replace(
        a_run(),
        facts=facts,
        pin=RunPin(sent=sent, resolved=Resolved(pattern=Pattern.LOOP)),
        input='{"alert_id":"alert-88421"}',
        pinned_at=datetime.now(UTC),
    )


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with a_bank(tmp_path, write_s=0) as bank, fraud_tools(monkeypatch) as registry:
        yield Desk(bank, registry, Store())


READS_THEN_A_WRITE = [
    *("decided", "tool_result"),
    *("decided", "tool_result", "tool_result"),
    *("decided", "intent", "tool_result"),
    *("decided", "outcome"),
]


@pytest.mark.parametrize("kind", ["notes", "filings"])
def test_an_investigation_ends_with_one_note(desk: Desk, kind: str, tmp_path: Path) -> None:
    with a_model(tmp_path) as (url, log):
        assert desk.drive(kind, HttpModel(url)) is Status.SUCCEEDED
        asked = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert desk.kinds == READS_THEN_A_WRITE
    assert desk.bank.effects() == [f"{RUN_ID}/3/0"]
    assert [question["run_id"] for question in asked] == [RUN_ID] * 4
    checkpoint = desk.store.commits[-1].checkpoint
    assert checkpoint.working == {"alert_id": "alert-88421", "account_id": "acct-88421"}
    assert (checkpoint.loop_step, checkpoint.last_tool) == (
        4,
        "file_note" if kind == "filings" else "add_note",
    )


def test_the_scripted_model_drives_the_same_investigation(desk: Desk) -> None:
    model = ScriptedModel.from_file(FRAUD / "model.yaml")
    assert desk.drive("notes", model) is Status.SUCCEEDED
    assert desk.kinds == READS_THEN_A_WRITE
    assert desk.bank.effects() == [f"{RUN_ID}/3/0"]


def test_a_known_value_in_a_tools_result_does_not_reach_the_model(desk: Desk, tmp_path: Path) -> None:
    with a_model(tmp_path) as (url, log):
        desk.drive("notes", HttpModel(url), mask=KnownValues(["2019-04-02"]))
        asked = log.read_text(encoding="utf-8")
    assert "2019-04-02" not in asked
    assert "[redacted:" in asked


def test_without_the_app_the_run_parks_and_no_tool_is_called(desk: Desk) -> None:
    desk.registry = Registry(())
    assert desk.drive("notes", ScriptedModel.from_file(FRAUD / "model.yaml")) is Status.PARKED
    assert desk.store.commits[-1].checkpoint.park_reason is ParkReason.CONTRACT_MISSING
    assert "tool_result" not in desk.kinds
