"""The product as a contestant: store, contracts, gate, tools, driver, sealing and signing.

Intake and publication stay outside: runs are admitted in bulk through the store beforehand, and nobody reads
the outbox.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

import yaml

from benchmarks.figures import Effect, Round
from session_custody.clock import DatabaseClock
from session_custody.contracts import StoreContracts, publish
from session_custody.core.admission import AdmissionRules, LookedUp, resolve
from session_custody.core.events import EventDraft, EventKind, RunFacts
from session_custody.core.inference import FinalAnswer, InferenceRequest, Proposal, ToolCall, ToolCalls
from session_custody.core.pin import RunId, RunPin, SentPin, Subject
from session_custody.core.run import Checkpoint, Status
from session_custody.loop import Driver
from session_custody.policy import PolicyRouter
from session_custody.ports import (
    AdmissionBatch,
    Admitted,
    Decided,
    Inbox,
    LaneFence,
    LaneKey,
    LoadedRun,
    ModelClient,
    NewRun,
)
from session_custody.redaction import KnownValues
from session_custody.store import Migrator, PostgresStore
from session_custody.tools.draft import build
from session_custody.tools.gate import Gate
from session_custody.tools.registry import Registry
from session_custody.wire import SALT_BYTES, PinnedParts, generate_signing_key, seal

APP: Final = "benchmarks.tools"
STEPS: Final = 12
LANES: Final = 4
BATCH: Final = 250
LOAD_CHUNK: Final = 64
TOOLS: Final[dict[Effect, str]] = {"read": "look_up", "write": "add_note"}
TOPIC_ID: Final = "generation-1"
POLICY: Final = {
    "policy_profile": "bench",
    "policy_version": "1",
    "engine": "allow-list",
    "allow": ["look_up", "add_note"],
}


class Script:
    """A model without delay: eleven calls of the run's tool, then an answer. The route names the tool."""

    async def propose(self, request: InferenceRequest) -> Proposal:
        trace = request.trace
        if trace.loop_step >= STEPS:
            return FinalAnswer("The alert is dealt with.")
        call = ToolCall(
            f"call-{trace.loop_step}", trace.route_id, {"alert_id": "alert-88421", "step": trace.loop_step}
        )
        return ToolCalls((call,))


async def nobody_is_late(*_: object) -> None:
    raise AssertionError("a tool without delay was late")


@dataclass(frozen=True, slots=True)
class Stations:
    """One opened product: close it in the end."""

    store: PostgresStore
    gate: Gate
    driver: Driver

    async def close(self) -> None:
        await self.gate.close()
        await self.store.close()


class Product:
    """The contestant. `prepare` admits runs, `play` drives them."""

    name = "product"

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        with TemporaryDirectory() as folder:
            self.signer = generate_signing_key(Path(folder) / "key.pem")
        self.registry = Registry.discover([APP])
        self._known = KnownValues(f"secret-{uuid4()}" for _ in range(4))
        self._fences: list[LaneFence] = []

    async def open(self, model: ModelClient | None = None) -> Stations:
        """A store, gate and driver of their own, on the lanes of this contestant."""
        store = await PostgresStore.open(self._dsn)
        clock = DatabaseClock(store.now, 60)
        await clock.measure()
        contracts = StoreContracts(store)
        gate = Gate(
            self.registry, PolicyRouter(contracts), late_result=nobody_is_late, base_url=None, sync_threads=2
        )
        driver = Driver(
            store=store,
            contracts=contracts,
            model=model or Script(),
            gate=gate,
            clock=clock,
            signer=self.signer,
            mask=self._known.at("inference"),
        )
        return Stations(store, gate, driver)

    async def migrate(self) -> None:
        """Schema, contracts and lanes."""
        await Migrator(self._dsn).migrate()
        store = await PostgresStore.open(self._dsn)
        try:
            with TemporaryDirectory() as folder:
                await publish(store, _contracts(Path(folder)))
            self._fences = [await _own_lane(store, number) for number in range(LANES)]
        finally:
            await store.close()

    async def prepare(self, effect: Effect, runs: int) -> list[str]:
        """Admit runs through the store, in batches, as intake does."""
        store = await PostgresStore.open(self._dsn)
        try:
            contracts = StoreContracts(store)
            manifest, manifest_digest = await contracts.manifest("bench", "1", None)
            _, policy_digest = await contracts.policy("bench", "1", None)
            found = LookedUp(manifest, "1", manifest_digest, "1", policy_digest)
            pin = _pin(effect, found)
            created = [new_run(pin, self.signer, place % BATCH) for place in range(runs)]
            for at in range(0, runs, BATCH):
                await self._admit(store, created[at : at + BATCH], self._fences[at // BATCH % LANES])
        finally:
            await store.close()
        # runs of all lanes side by side, as a worker has them
        ids = [run.facts.run_id for run in created]
        return [run_id for place in range(BATCH) for run_id in ids[place::BATCH]]

    async def _admit(self, store: PostgresStore, runs: Sequence[NewRun], fence: LaneFence) -> None:
        names = [RunId(run.facts.run_id) for run in runs]
        first = fence.input_offset
        batch = AdmissionBatch(
            fence, TOPIC_ID, first, first + len(runs), runs, names, lambda _created, _known: Decided()
        )
        answer = await store.admit(batch)
        if not isinstance(answer, Admitted) or len(answer.created) != len(runs):
            raise AssertionError("not every run was admitted")
        fence.input_offset = answer.input_offset

    async def play(self, effect: Effect, ids: Sequence[str], at_once: int) -> Round:
        """Load and drive the prepared runs, `at_once` at a time; each must succeed."""
        stations = await self.open()
        fences = {fence.lane_id: fence for fence in self._fences}
        loading = _Loading(stations.store, ids)
        run_s: list[float] = []

        async def driver() -> None:
            while (run := await loading.next()) is not None:
                began = time.perf_counter()
                await stations.driver.drive(run, fences[run.lane_id], Inbox(), suspects=False)
                run_s.append(time.perf_counter() - began)

        try:
            cpu, began = time.process_time(), time.perf_counter()
            await asyncio.gather(*(driver() for _ in range(at_once)))
            took, used = time.perf_counter() - began, time.process_time() - cpu
            await _all_ended(stations.store, ids)
        finally:
            await stations.close()
        return Round(len(ids), len(ids) * STEPS, took, tuple(run_s), used)

    def fence_of(self, run: LoadedRun) -> LaneFence:
        return next(fence for fence in self._fences if fence.lane_id == run.lane_id)


class _Loading:
    """Runs are loaded as the reconcile loads them: some at once, the first begin before the last are read."""

    def __init__(self, store: PostgresStore, ids: Sequence[str]) -> None:
        self._store = store
        self._ids = deque(RunId(run_id) for run_id in ids)
        self._loaded: deque[LoadedRun] = deque()
        self._one = asyncio.Lock()

    async def next(self) -> LoadedRun | None:
        if not self._loaded:
            async with self._one:
                if not self._loaded and self._ids:
                    chunk = [self._ids.popleft() for _ in range(min(LOAD_CHUNK, len(self._ids)))]
                    self._loaded.extend(await self._store.load_runs(chunk))
        return self._loaded.popleft() if self._loaded else None


async def _all_ended(store: PostgresStore, ids: Sequence[str]) -> None:
    known = await store.known_runs([RunId(run_id) for run_id in ids])
    ended = sum(run.status is Status.SUCCEEDED for run in known)
    if ended != len(ids):
        raise AssertionError(f"{ended} of {len(ids)} runs succeeded")


async def _own_lane(store: PostgresStore, number: int) -> LaneFence:
    row = await store.ensure_lane(LaneKey("bench", "runs", number), TOPIC_ID, number)
    owner = uuid4()
    taken = await store.acquire(row.lane_id, owner, row.epoch, [])
    if taken is None:
        raise AssertionError("somebody else acquires the lane")
    return LaneFence(
        row.lane_id, row.key, owner, taken.epoch, taken.topic_id,
        last_seen=taken.next_seq - 1, input_offset=taken.input_offset, gate_open=True,
    )  # fmt: skip


def _contracts(folder: Path) -> Path:
    manifest: dict[str, Any] = yaml.safe_load(build(APP, "bench", "1"))
    manifest["limits"] = {"model_attempts": 1}
    for name, document in {"bench": manifest, "policy": POLICY}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return folder


def _pin(effect: Effect, found: LookedUp) -> RunPin:
    sent = SentPin(
        route_id=TOOLS[effect],
        route_table_version="1",
        manifest_id="bench",
        manifest_version="1",
        policy_profile="bench",
        policy_version="1",
        model_profile="reasoning-standard",
        max_loop_steps=STEPS,
    )
    return RunPin(sent=sent, resolved=resolve(sent, found, AdmissionRules()).resolved)


def new_run(pin: RunPin, signer: Any, order: int) -> NewRun:
    """What admission makes of a start."""
    now = datetime.now(UTC)
    run_id = RunId(f"run-{uuid4().hex}")
    facts = RunFacts(
        run_id=run_id,
        correlation_id=run_id,
        session_id="sess-88",
        tenant="bank-a",
        subject=Subject(id="u-17", tenant="bank-a"),
        decision_id="d-1",
        pin=pin.sent,
        manifest_version=pin.manifest_version,
        workflow_version=None,
        policy_version=pin.policy_version,
    )
    expires_at, digest = now + timedelta(hours=24), hashlib.sha256(run_id.encode()).digest()
    draft = EventDraft(EventKind.PINNED, Status.QUEUED, "loop", 0)
    pinned = seal(
        draft, facts, 1, None, now, signer, os.urandom(SALT_BYTES), PinnedParts.of(pin, digest, expires_at)
    )
    return NewRun(
        facts=facts,
        pin=pin,
        input='{"alert_id":"alert-88421"}',
        sent_digest=digest,
        expires_at=expires_at,
        checkpoint=Checkpoint(Status.QUEUED, 0, "loop", 1, 1, pinned.hash),
        events=(pinned,),
        start_ce_id=f"start-{run_id}",
        start_ce_source="bench",
        traceparent=None,
        order=order,
    )
