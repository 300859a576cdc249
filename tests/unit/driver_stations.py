"""Stations around the driver, each as small as its port allows; turned by the tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

from session_custody.core import canonical
from session_custody.core.errors import ContractMissing
from session_custody.core.events import EventKind, PolicyRecord, RunFacts, SealedEvent
from session_custody.core.inference import InferenceRequest, Proposal, ToolCall
from session_custody.core.manifest import Manifest, PolicyBundle
from session_custody.core.pin import LaneId, Limits, Pattern, Resolved, RunId, RunPin, SentPin, Subject
from session_custody.core.run import Checkpoint, Status
from session_custody.core.trace import TraceFields
from session_custody.loop import Driver
from session_custody.ports import (
    Authorization,
    CommitAnswer,
    Inbox,
    LaneFence,
    LaneKey,
    LoadedRun,
    NewSignal,
    Permit,
    Reconciled,
    ReconciledUnknown,
    Returned,
    RunCommit,
    RunStore,
    Send,
    Signal,
    StepRecord,
    ToolAnswer,
)
from tests.unit.loop_world import MANIFEST

RUN_ID = RunId("run-1")


class Signing:
    key_id = "test"

    def sign(self, event_hash: bytes) -> bytes:
        return event_hash


class Clocks:
    def __init__(self) -> None:
        self.skew_s = 0.0
        self.held = False

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.skew_s)

    def boottime(self) -> float:
        return time.monotonic() + self.skew_s


class Store:
    """One run's row. `answers` are given out before it commits again as it should."""

    def __init__(self) -> None:
        self.commits: list[RunCommit] = []
        self.offers: list[RunCommit] = []
        self.signals: list[NewSignal] = []
        self.answers: list[CommitAnswer | Exception] = []
        self.signal_errors: list[Exception] = []
        self.before_commit: Callable[[RunCommit], None] = lambda _: None

    async def commit(self, commit: RunCommit) -> CommitAnswer:
        self.before_commit(commit)
        self.offers.append(commit)
        await asyncio.sleep(0)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            if answer is not CommitAnswer.COMMITTED:
                return answer
        self.commits.append(commit)
        return CommitAnswer.COMMITTED

    async def insert_signal(self, signal: NewSignal) -> int | None:
        if self.signal_errors:
            raise self.signal_errors.pop(0)
        self.signals.append(signal)
        return len(self.signals)

    @property
    def events(self) -> list[SealedEvent]:
        return [event for commit in self.commits for event in commit.events]


class ContractShelf:
    def __init__(self) -> None:
        self.manifest_: Manifest | None = MANIFEST
        self.errors: list[Exception] = []

    async def manifest(self, manifest_id: str, version: str, digest: str | None) -> tuple[Manifest, str]:
        if self.errors:
            raise self.errors.pop(0)
        if self.manifest_ is None:
            raise ContractMissing("manifest", manifest_id, version)
        return self.manifest_, digest or "d"

    async def policy(self, policy_profile: str, version: str, digest: str | None) -> tuple[PolicyBundle, str]:
        return PolicyBundle(policy_profile=policy_profile, policy_version=version, engine="allow-list"), "d"

    async def latest_version(self, kind: object, name: str) -> str | None:
        raise AssertionError("I3: asked at admission alone")


class Model:
    def __init__(self, *script: Proposal | Exception) -> None:
        self.script = list(script)
        self.requests: list[InferenceRequest] = []

    async def propose(self, request: InferenceRequest) -> Proposal:
        self.requests.append(request)
        await asyncio.sleep(0)
        said = self.script.pop(0)
        if isinstance(said, Exception):
            raise said
        return said


class Gate:
    def __init__(self) -> None:
        self.authorized: list[ToolCall] = []
        self.sends: list[Send] = []
        self.authorize_error: Exception | None = None
        self.answers: list[ToolAnswer | Exception] = []
        self.threads: set[str] = set()
        self.before_invoke: Callable[[Send], None] = lambda _: None

    async def authorize(
        self, run: RunFacts, pin: RunPin, manifest: Manifest, call: ToolCall, trace: TraceFields
    ) -> Authorization:
        self.authorized.append(call)
        if self.authorize_error is not None:
            raise self.authorize_error
        spec = manifest.tool(call.tool)
        assert spec is not None
        digest = canonical.digest(call.arguments).hex()
        return Permit(RUN_ID, spec, call, digest, PolicyRecord("allow", "d-1"), trace, "build-1")

    async def invoke(self, permit: Permit, run: RunFacts, send: Send) -> ToolAnswer:
        self.before_invoke(send)
        self.sends.append(send)
        await asyncio.sleep(0)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return Returned({"n": 7})

    async def reconcile(self, permit: Permit, run: RunFacts, send: Send) -> Reconciled:
        return ReconciledUnknown("no_answer")

    def running(self, key: str) -> bool:
        return key in self.threads


def a_fence(**fields: Any) -> LaneFence:
    return LaneFence(LaneId(1), LaneKey("c", "t", 0), uuid4(), 1, "topic", gate_open=True, **fields)


def a_run(
    *,
    checkpoint: Checkpoint | None = None,
    steps: Sequence[StepRecord] = (),
    signals: Sequence[Signal] = (),
    pattern: Pattern | None = Pattern.LOOP,
    limits: Limits | None = None,
    max_loop_steps: int | None = 5,
    expires_s: float = 3600.0,
) -> LoadedRun:
    sent = SentPin(
        route_id="r",
        route_table_version="1",
        manifest_id="m",
        manifest_version="1",
        model_profile="p",
        max_loop_steps=max_loop_steps,
    )
    now = datetime.now(UTC)
    resolved = Resolved(pattern=pattern, limits=limits or Limits())
    return LoadedRun(
        facts=RunFacts(RUN_ID, RUN_ID, None, None, Subject(id="u"), None, sent, "1", None, None),
        pin=RunPin(sent=sent, resolved=resolved),
        input='"hello"',
        pinned_at=now,
        expires_at=now + timedelta(seconds=expires_s),
        lane_id=LaneId(1),
        checkpoint=checkpoint or Checkpoint(Status.QUEUED, 0, "loop", 1, 1, b"\0" * 32),
        steps=(StepRecord(1, EventKind.PINNED, 0, None), *steps),
        signals=tuple(signals),
        traceparent=None,
        start_ce_id=None,
        db_now=now,
    )


class Stations:
    """All of them, and the driver between."""

    def __init__(self, *script: Proposal | Exception) -> None:
        self.store = Store()
        self.contracts = ContractShelf()
        self.model = Model(*script)
        self.gate = Gate()
        self.clock = Clocks()
        self.fence = a_fence()
        self.inbox = Inbox()
        self.driver = Driver(
            store=cast("RunStore", self.store),
            contracts=self.contracts,
            model=self.model,
            gate=self.gate,
            clock=self.clock,
            signer=Signing(),
            mask=lambda text: text.replace("hunter2", "[masked]"),
        )

    async def drive(self, run: LoadedRun | None = None, *, suspects: bool = False) -> None:
        await self.driver.drive(run or a_run(), self.fence, self.inbox, suspects)

    @property
    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.store.events]
