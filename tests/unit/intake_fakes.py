"""Stand-ins for what surrounds intake and lanes: a store in a dictionary, contracts, a driver, a publication.

The store keeps the promises that intake and lanes rely on (fence by owner, compare-and-set on the epoch,
batches
compared with input_offset and topic_id, all or nothing) and can be told to misbehave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from session_custody.core.errors import ContractMissing, LaneLost, Unavailable
from session_custody.core.manifest import ContractKind, Manifest, PolicyBundle
from session_custody.core.pin import LaneId, RunId
from session_custody.core.run import DRIVEN, Checkpoint, Status
from session_custody.core.signals import Signal
from session_custody.ports import (
    AdmissionBatch,
    Admitted,
    Decided,
    Inbox,
    KnownRun,
    LaneFence,
    LaneKey,
    LaneRow,
    LoadedRun,
    NewDeadLetter,
    NewRun,
    NewSignal,
    OffsetMoved,
)

NOW = datetime(2026, 8, 14, 12, 0, tzinfo=UTC)


class FixedClock:
    def __init__(self, now: datetime = NOW) -> None:
        self.at = now

    def now(self) -> datetime:
        return self.at

    def boottime(self) -> float:
        return 0.0


class NoSigner:
    key_id = "test"

    def sign(self, event_hash: bytes) -> bytes:
        return event_hash


class FakeContracts:
    def __init__(self, *manifests: Manifest, policies: Sequence[PolicyBundle] = ()) -> None:
        self.manifests = {(each.manifest_id, each.manifest_version): each for each in manifests}
        self.policies = {(each.policy_profile, each.policy_version): each for each in policies}

    async def manifest(self, manifest_id: str, version: str, digest: str | None) -> tuple[Manifest, str]:
        found = self.manifests.get((manifest_id, version))
        if found is None:
            raise ContractMissing("manifest", manifest_id, version)
        return found, f"digest of {manifest_id}@{version}"

    async def policy(self, policy_profile: str, version: str, digest: str | None) -> tuple[PolicyBundle, str]:
        found = self.policies.get((policy_profile, version))
        if found is None:
            raise ContractMissing("policy", policy_profile, version)
        return found, f"digest of {policy_profile}@{version}"

    async def latest_version(self, kind: ContractKind, name: str) -> str | None:
        table = self.manifests if kind is ContractKind.MANIFEST else self.policies
        return max((version for known, version in table if known == name), default=None)


class FakeStore:
    """`now` is a fixed moment; runs are driven when their checkpoint says queued or running."""

    def __init__(self) -> None:
        self.lanes: dict[LaneId, LaneRow] = {}
        self.runs: dict[RunId, tuple[LaneId, NewRun]] = {}
        self.checkpoints: dict[RunId, Checkpoint] = {}
        self.signals: list[NewSignal] = []
        self.dead_letters: list[NewDeadLetter] = []
        self.batches: list[AdmissionBatch] = []
        self.consumed: set[int] = set()
        self.down = False
        self.refuse: Callable[[AdmissionBatch, Decided], None] = lambda batch, decided: None
        self.acquires: list[UUID] = []
        self.swept: list[tuple[int, float]] = []
        self.loaded: list[RunId] = []
        self.looks = 0
        """Times that what is due was asked for."""
        self.refused = 0
        """Statements that met an outage."""
        self._something = asyncio.Event()

    @contextmanager
    def outage(self) -> Iterator[None]:
        self.down = True
        yield
        self.down = False

    async def until(self, condition: Callable[[], bool], within_s: float = 10.0) -> None:
        """Wait for a condition on this store, looked at after every statement."""
        async with asyncio.timeout(within_s):
            while not condition():
                self._something.clear()
                await self._something.wait()

    def row_of(self, partition: int) -> LaneRow:
        return next(row for row in self.lanes.values() if row.key.partition == partition)

    def bump(self, partition: int, owner: UUID) -> None:
        """Another worker takes the lane."""
        row = self.row_of(partition)
        self.lanes[row.lane_id] = replace(row, owner=owner, epoch=row.epoch + 1)

    # lanes

    async def ensure_lane(self, key: LaneKey, topic_id: str, cursor_partition: int) -> LaneRow:
        self._statement()
        for row in self.lanes.values():
            if row.key == key:
                return row
        lane_id = LaneId(len(self.lanes) + 1)
        self.lanes[lane_id] = LaneRow(
            lane_id=lane_id,
            key=key,
            topic_id=topic_id,
            epoch=0,
            owner=None,
            adopted_by=None,
            next_seq=1,
            input_offset=0,
            published_seq=0,
            cursor_partition=cursor_partition,
            cursor_offset=0,
            unclean_ends=0,
            went_back=False,
            last_alive=None,
        )
        return self.lanes[lane_id]

    async def read_lane(self, lane_id: LaneId) -> LaneRow:
        self._statement()
        return self.lanes[lane_id]

    async def acquire(
        self, lane_id: LaneId, owner: UUID, expected_epoch: int, mine: Sequence[UUID]
    ) -> LaneRow | None:
        self._statement()
        self.acquires.append(owner)
        row = self.lanes[lane_id]
        if row.epoch != expected_epoch:
            return None
        unclean = row.unclean_ends + (row.owner is not None and row.owner not in mine)
        self.lanes[lane_id] = replace(row, owner=owner, epoch=row.epoch + 1, unclean_ends=unclean)
        return self.lanes[lane_id]

    async def set_topic_generation(self, fence: LaneFence, topic_id: str, input_offset: int) -> None:
        row = self._fenced(fence)
        self.lanes[row.lane_id] = replace(row, topic_id=topic_id, input_offset=input_offset)

    async def heartbeat(self, fence: LaneFence, *, clear_unclean: bool) -> LaneRow:
        row = self._fenced(fence)
        if clear_unclean:
            row = self.lanes[row.lane_id] = replace(row, unclean_ends=0)
        return row

    async def release(self, fence: LaneFence) -> None:
        self._statement()
        row = self.lanes[fence.lane_id]
        if row.owner == fence.owner:
            self.lanes[fence.lane_id] = replace(row, owner=None)

    async def sweep_orphans(self, fence: LaneFence, hold_s: float, limit: int = 500) -> int:
        self._fenced(fence)
        self.swept.append((fence.key.partition, hold_s))
        return 0

    # admission

    async def admit(self, batch: AdmissionBatch) -> Admitted | OffsetMoved:
        self._statement()
        self.batches.append(batch)
        await asyncio.sleep(0)
        fresh = {RunId(run.facts.run_id): run for run in batch.candidates}
        created = frozenset(fresh.keys() - self.runs.keys())
        known = [self._known(run_id) for run_id in batch.named if run_id in self.runs]
        decided = batch.decide(created, known)
        row = self._fenced(batch.fence)
        if (row.topic_id, row.input_offset) != (batch.topic_id, batch.first_offset):
            return OffsetMoved(row.input_offset, row.topic_id)
        self.refuse(batch, decided)
        for run_id in created:
            self.runs[run_id] = (row.lane_id, fresh[run_id])
            self.checkpoints[run_id] = fresh[run_id].checkpoint
        self.signals += decided.signals
        self.dead_letters += decided.dead_letters
        self.lanes[row.lane_id] = replace(row, input_offset=batch.next_offset)
        return Admitted(created, len(decided.signals), len(decided.dead_letters), batch.next_offset)

    def _known(self, run_id: RunId) -> KnownRun:
        lane_id, run = self.runs[run_id]
        subject = run.facts.subject
        return KnownRun(
            run_id, lane_id, run.sent_digest, self.checkpoints[run_id].status, subject.id, subject.tenant
        )

    # recovery

    async def due_runs(
        self, lane_ids: Sequence[LaneId], live: Sequence[RunId], limit: int
    ) -> Sequence[tuple[RunId, LaneId]]:
        self._statement()
        self.looks += 1
        spoken = {signal.run_id for place, signal in enumerate(self.signals) if place not in self.consumed}
        due = [
            (run_id, lane_id)
            for run_id, (lane_id, _) in self.runs.items()
            if lane_id in lane_ids
            and run_id not in live
            and (self.checkpoints[run_id].status in DRIVEN or run_id in spoken)
        ]
        return due[:limit]

    async def load_runs(self, run_ids: Sequence[RunId]) -> Sequence[LoadedRun]:
        self._statement()
        self.loaded += run_ids
        return [self._loaded(run_id) for run_id in run_ids]

    async def signals_for(self, run_ids: Sequence[RunId]) -> Sequence[Signal]:
        self._statement()
        return self._said(run_ids)

    def _said(self, run_ids: Sequence[RunId]) -> list[Signal]:
        return [
            Signal(place, signal.run_id, signal.kind, signal.body, signal.causation_id, NOW, None)
            for place, signal in enumerate(self.signals)
            if signal.run_id in run_ids and place not in self.consumed
        ]

    def _loaded(self, run_id: RunId) -> LoadedRun:
        lane_id, run = self.runs[run_id]
        return LoadedRun(
            facts=run.facts,
            pin=run.pin,
            input=run.input,
            pinned_at=NOW,
            expires_at=run.expires_at,
            lane_id=lane_id,
            checkpoint=self.checkpoints[run_id],
            steps=(),
            signals=tuple(self._said([run_id])),
            traceparent=run.traceparent,
            start_ce_id=run.start_ce_id,
            db_now=NOW,
        )

    def ends(self, run_id: RunId, fence: LaneFence) -> None:
        """What a driver's last commit does."""
        self._fenced(fence)
        self.consumed |= {place for place, signal in enumerate(self.signals) if signal.run_id == run_id}
        point = self.checkpoints[run_id]
        self.checkpoints[run_id] = replace(point, status=Status.SUCCEEDED, version=point.version + 1)

    def _statement(self) -> None:
        self._something.set()
        if self.down:
            self.refused += 1
            raise Unavailable("postgres")

    def _fenced(self, fence: LaneFence) -> LaneRow:
        self._statement()
        row = self.lanes[fence.lane_id]
        if row.owner != fence.owner:
            raise LaneLost(fence.lane_id)
        return row


class FakeDriver:
    """Ends each run at once, unless told to hold them; remembers who was driven and by which owner."""

    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self.driven: list[tuple[RunId, UUID, bool]] = []
        self.inboxes: dict[RunId, Inbox] = {}
        self.hold = False
        self.free = asyncio.Event()
        self.raises: dict[RunId, Exception] = {}
        self.cancelled: list[RunId] = []
        self.begun = asyncio.Event()

    async def drive(self, run: LoadedRun, fence: LaneFence, inbox: Inbox, suspects: bool) -> None:
        run_id = RunId(run.facts.run_id)
        self.driven.append((run_id, fence.owner, suspects))
        self.inboxes[run_id] = inbox
        self.begun.set()
        if (error := self.raises.get(run_id)) is not None:
            raise error
        if self.hold:
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                self.cancelled.append(run_id)
                raise
        self._store.ends(run_id, fence)


class FakePublication:
    """Opens the gate and waits; `closes` tells that it was closed, with its flush."""

    def __init__(self, fence: LaneFence) -> None:
        self.fence = fence
        self.backlog = 0
        self.closed_because: str | None = None
        self.closes: list[float] = []
        self._stop = asyncio.Event()

    async def run(self, fence: LaneFence) -> None:
        fence.gate_open = True
        await self._stop.wait()

    async def close(self, flush_s: float) -> None:
        self.closes.append(flush_s)
        self._stop.set()


class FakeTopic:
    def __init__(self, topic_id: str = "generation-1") -> None:
        self.id = topic_id
        self.oldest = 0

    async def cluster_id(self) -> str:
        return "cluster-1"

    async def topic_id(self) -> str:
        return self.id

    async def earliest(self, partition: int) -> int:
        return self.oldest
