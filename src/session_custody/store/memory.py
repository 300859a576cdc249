"""The run store in memory: for unit tests and the simulator. What Postgres promises, it promises
(tests/conformance).

Every method does its work without an await, so it is one transaction. Time is `clock` plus `shift`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from session_custody.core import canonical
from session_custody.core.errors import LaneLost, RowRefused
from session_custody.core.events import SealedEvent
from session_custody.core.pin import LaneId, RunId
from session_custody.core.run import Checkpoint, Status
from session_custody.ports import (
    AdmissionBatch,
    Admitted,
    CommitAnswer,
    Decided,
    KnownRun,
    LaneFence,
    LoadedRun,
    NewDeadLetter,
    NewRun,
    NewSignal,
    OffsetMoved,
    OutboxEvent,
    Progress,
    RunCommit,
    Signal,
    SignalKind,
    StepRecord,
)
from session_custody.store import rows
from session_custody.store.memory_lanes import MemoryLanes
from session_custody.store.memory_rules import due_rank, moved, storable, storable_start, told

RESTING = frozenset({Status.WAITING, Status.PARKED})


@dataclass(slots=True)
class _Run:
    start: NewRun
    lane_id: LaneId
    pinned_at: datetime
    checkpoint: Checkpoint
    steps: list[StepRecord] = field(default_factory=list)
    times: list[datetime] = field(default_factory=list)


@dataclass(slots=True)
class _Signal:
    signal: Signal
    lane_id: LaneId | None
    new: NewSignal
    bound: bool
    consumed: bool = False


class MemoryStore(MemoryLanes):
    """`RunStore` in memory. `shift` steers its time, as custody.clock steers Postgres'."""

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        super().__init__(clock)
        self._runs: dict[RunId, _Run] = {}
        self._signals: list[_Signal] = []

    async def close(self) -> None:
        """Nothing to close."""

    # -------------------------------------------------------------- admission

    async def known_runs(self, run_ids: Sequence[RunId]) -> Sequence[KnownRun]:
        return [
            KnownRun(
                run_id,
                run.lane_id,
                run.start.sent_digest,
                run.checkpoint.status,
                run.start.facts.subject.id,
                run.start.facts.subject.tenant,
            )
            for run_id in sorted(set(run_ids))
            if (run := self._runs.get(run_id)) is not None
        ]

    async def admit(self, batch: AdmissionBatch) -> Admitted | OffsetMoved:
        known = await self.known_runs(batch.named)
        fresh = [run for run in batch.candidates if RunId(run.facts.run_id) not in self._runs]
        for run in fresh:
            if not storable_start(run):
                raise RowRefused(run.order, "22021")
        created = frozenset(RunId(run.facts.run_id) for run in fresh)
        decided = batch.decide(created, known)
        row = self._fenced(batch.fence).row
        if (row.topic_id, row.input_offset) != (batch.topic_id, batch.first_offset):
            return OffsetMoved(row.input_offset, row.topic_id)
        return self._admit(batch, fresh, created, decided)

    def _admit(
        self, batch: AdmissionBatch, fresh: Sequence[NewRun], created: frozenset[RunId], decided: Decided
    ) -> Admitted:
        fence, now = batch.fence, self._now()
        for run in fresh:
            begins = (
                run.checkpoint if run.checkpoint.status in RESTING else replace(run.checkpoint, wake_at=None)
            )
            self._runs[RunId(run.facts.run_id)] = _Run(run, fence.lane_id, now, begins)
        letters = 0
        items: list[NewRun | NewDeadLetter] = [*fresh, *decided.dead_letters]
        for item in sorted(items, key=lambda item: item.order):
            if isinstance(item, NewRun):
                self._append(fence, RunId(item.facts.run_id), item.events, 0, item.start_ce_id)
            else:
                letters += self._dead_letter(fence, item)
        signals = sum(self._insert(signal, fence.lane_id) is not None for signal in decided.signals)
        for held in self._signals:
            held.bound = held.bound or held.signal.run_id in created
        fence.input_offset = batch.next_offset
        self._set(fence.lane_id, input_offset=batch.next_offset)
        if fresh or letters:
            fence.wake()
        return Admitted(created, signals, letters, batch.next_offset)

    def _append(
        self,
        fence: LaneFence,
        run_id: RunId,
        events: Sequence[SealedEvent],
        loop_step: int,
        causation_id: str | None,
    ) -> None:
        run, lane, now = self._runs[run_id], self._lanes[fence.lane_id], self._now()
        for event in events:
            lane.outbox.append(
                OutboxEvent(
                    self._number(fence),
                    run_id,
                    run_id,
                    event.event_seq,
                    event.kind,
                    event.schema_fingerprint,
                    event.body,
                    event.hash,
                    event.salt,
                    event.payload,
                    event.signature,
                    now,
                    causation_id,
                )
            )
            record = None if event.record is None else canonical.accept(event.record)
            run.steps.append(StepRecord(event.event_seq, event.kind, loop_step, record))
            run.times.append(now)

    # -------------------------------------------------------------- the hot path

    async def commit(self, commit: RunCommit) -> CommitAnswer:
        try:
            self._fenced(commit.fence)
        except LaneLost:
            return CommitAnswer.LANE_LOST
        run = self._runs.get(commit.run_id)
        waiting = {held.signal.signal_id for held in self._signals if not held.consumed}
        if (
            run is None
            or not told(commit, run.lane_id, run.checkpoint)
            or not waiting.issuperset(commit.consumes)
        ):
            return CommitAnswer.STALE
        if not storable(commit):
            return CommitAnswer.UNSTORABLE
        run.checkpoint = moved(commit, run.checkpoint, self._now())
        consumed = [held for held in self._signals if held.signal.signal_id in commit.consumes]
        causes = [held.signal.causation_id for held in consumed if held.signal.causation_id is not None]
        for held in consumed:
            held.consumed = held.bound = True
        self._append(
            commit.fence, commit.run_id, commit.events, commit.checkpoint.loop_step, max(causes, default=None)
        )
        if commit.events:
            commit.fence.wake()
        return CommitAnswer.COMMITTED

    # -------------------------------------------------------------- signals and recovery

    async def insert_signal(self, signal: NewSignal) -> int | None:
        run = self._runs.get(signal.run_id)
        stands = None if run is None else run.checkpoint
        too_early = stands is not None and stands.not_after is not None and stands.not_after > self._now()
        seen = {
            "status": None if stands is None else stands.status.value,
            "doubt_seq": None if stands is None else stands.doubt_seq,
            "call_running": stands is not None and stands.call_running,
        }
        allowed = stands is not None and (signal.kind is SignalKind.TOOL_RESULT or not stands.status.terminal)
        if allowed and stands is not None and signal.kind is SignalKind.RESOLVE:
            allowed = stands.status is Status.IN_DOUBT and stands.doubt_seq == signal.body.get("event_seq")
            if signal.body.get("done") is not True:
                allowed = allowed and not (too_early or stands.call_running)
        if not allowed:
            raise rows.signal_refused(signal, seen)
        return self._insert(signal, None)

    def _insert(self, new: NewSignal, lane_id: LaneId | None) -> int | None:
        identity = (new.run_id, new.dedupe_source, new.dedupe_id, new.dedupe_digest)
        for held in self._signals:
            known = held.new
            if new.dedupe_id is not None and identity == (
                known.run_id,
                known.dedupe_source,
                known.dedupe_id,
                known.dedupe_digest,
            ):
                return None
        signal = Signal(
            len(self._signals) + 1,
            new.run_id,
            new.kind,
            dict(new.body),
            new.causation_id,
            self._now(),
            new.recorded_at,
        )
        self._signals.append(_Signal(signal, lane_id, new, bound=not new.held))
        return signal.signal_id

    async def sweep_orphans(self, fence: LaneFence, hold_s: float, limit: int = 500) -> int:
        """As PostgresStore's."""
        self._fenced(fence)
        since, swept = self._now() - timedelta(seconds=hold_s), 0
        for held in self._signals:
            held.bound = held.bound or held.signal.run_id in self._runs
            begun = held.signal.recorded_at or held.signal.created_at
            if (
                held.bound
                or held.consumed
                or held.lane_id != fence.lane_id
                or begun >= since
                or swept == limit
            ):
                continue
            held.consumed = True
            swept += self._dead_letter(fence, rows.orphan_of(held.new, hold_s))
        if swept:
            fence.wake()
        return swept

    async def due_runs(
        self, lane_ids: Sequence[LaneId], live: Sequence[RunId], limit: int
    ) -> Sequence[tuple[RunId, LaneId]]:
        now, ranked = self._now(), []
        for run_id, run in self._runs.items():
            if run.lane_id not in lane_ids or run_id in live:
                continue
            kinds = [
                held.signal.kind
                for held in self._signals
                if held.signal.run_id == run_id and not held.consumed
            ]
            rank = due_rank(run.checkpoint, run.start.expires_at, kinds, now)
            if rank is not None:
                ranked.append((rank, run_id, run.lane_id))
        return [(run_id, lane_id) for _, run_id, lane_id in sorted(ranked)[:limit]]

    async def load_runs(self, run_ids: Sequence[RunId]) -> Sequence[LoadedRun]:
        loaded = []
        for run_id in run_ids:
            if (run := self._runs.get(run_id)) is not None:
                start = run.start
                loaded.append(
                    LoadedRun(
                        start.facts,
                        start.pin,
                        start.input,
                        run.pinned_at,
                        start.expires_at,
                        run.lane_id,
                        run.checkpoint,
                        tuple(run.steps),
                        tuple(await self.signals_for([run_id])),
                        start.traceparent,
                        start.start_ce_id,
                        self._now(),
                    )
                )
        return loaded

    async def signals_for(self, run_ids: Sequence[RunId]) -> Sequence[Signal]:
        return [held.signal for held in self._signals if held.signal.run_id in run_ids and not held.consumed]

    async def now(self) -> datetime:
        return self._now()

    async def progress(self) -> Progress:
        points = {run_id: run.checkpoint for run_id, run in self._runs.items()}
        by_status: dict[Status, int] = {}
        for point in points.values():
            by_status[point.status] = by_status.get(point.status, 0) + 1
        return Progress(
            by_status,
            frozenset(id_ for id_, p in points.items() if p.status is Status.RUNNING and p.head_seq > 1),
            frozenset(p.pending.key for p in points.values() if p.pending is not None),
            sum(lane.row.next_seq - 1 - lane.row.published_seq for lane in self._lanes.values()),
        )

    async def first_steps_after(self, run_ids: Sequence[str], moment: datetime) -> Mapping[str, datetime]:
        later = {
            run_id: [at for at in run.times if at > moment]
            for run_id, run in self._runs.items()
            if run_id in run_ids
        }
        return {run_id: min(times) for run_id, times in later.items() if times}
