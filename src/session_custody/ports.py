"""The Protocols at which the stations meet, and the values that cross them (DESIGN 17).

Stations never import each other. Whoever needs the store, a model, the gate or the Kafka side takes one of
these; `wiring.py` puts the real ones in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol
from uuid import UUID

from pydantic import JsonValue

from session_custody.core.authorization import AuthorizationRequest, Decision
from session_custody.core.calls import (
    Authorization,
    CouldNotAsk,
    Denied,
    Malformed,
    NotStarted,
    Permit,
    Reconciled,
    ReconciledDone,
    ReconciledNotFound,
    ReconciledUnknown,
    Returned,
    ToolAnswer,
    ToolErrored,
    Uncertain,
)
from session_custody.core.commands import KEEP, Clear, Deadline, InSeconds, Keep
from session_custody.core.errors import RejectReason
from session_custody.core.events import EventKind, RunFacts, SealedEvent
from session_custody.core.inference import InferenceRequest, Proposal, ToolCall
from session_custody.core.manifest import ContractKind, Manifest, PolicyBundle
from session_custody.core.pin import LaneId, RunId, RunPin
from session_custody.core.run import Checkpoint, Status
from session_custody.core.signals import Signal, SignalKind
from session_custody.core.trace import TraceFields
from session_custody.core.transcript import StepRecord

# Values of the core that cross the ports too: taken from here by the stations.
__all__ = [
    "Authorization",
    "Clear",
    "CouldNotAsk",
    "Deadline",
    "Denied",
    "InSeconds",
    "Keep",
    "Malformed",
    "NotStarted",
    "Permit",
    "Reconciled",
    "ReconciledDone",
    "ReconciledNotFound",
    "ReconciledUnknown",
    "Returned",
    "Signal",
    "SignalKind",
    "StepRecord",
    "ToolAnswer",
    "ToolErrored",
    "Uncertain",
]

# ------------------------------------------------------------------ time


class Clock(Protocol):
    """Time as the process may know it."""

    def now(self) -> datetime:
        """The worker's estimate of database time, aware UTC."""

    def boottime(self) -> float:
        """Seconds that never stop, not even while the machine is suspended (CLOCK_BOOTTIME; DESIGN 8)."""


# ------------------------------------------------------------------ lanes (station 6 <-> store)


@dataclass(frozen=True, slots=True)
class LaneKey:
    """A lane's identity: one input topic-partition of one cluster."""

    cluster_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class LaneRow:
    """The lane row as read. `published_seq` is the floor, `cursor_*` where the cursor's records lie."""

    lane_id: LaneId
    key: LaneKey
    topic_id: str
    epoch: int
    owner: UUID | None
    adopted_by: LaneId | None
    next_seq: int
    input_offset: int
    published_seq: int
    cursor_partition: int
    cursor_offset: int
    unclean_ends: int
    went_back: bool
    last_alive: datetime | None


@dataclass(slots=True, eq=False)
class LaneFence:
    """What every fenced statement of one incarnation carries. One mutable object, shared by lanes, writer,
    publisher.

    `owner` changes in place when a lost COMMIT or a lost acquire is settled (DESIGN 4: the incarnation lives
    on); `tried` holds every owner uuid that settling has offered; `last_seen` is the last lane_seq this
    worker has seen. `lost` is set once a fenced statement was refused; nothing is written through a lost
    fence. `gate_open` is the write gate: no write tool is called on the lane while it is False.
    `wake` is called (on the event loop) after each commit that gave the lane step rows: the publisher's bell.
    """

    lane_id: LaneId
    key: LaneKey
    owner: UUID
    epoch: int
    topic_id: str
    last_seen: int = 0
    input_offset: int = 0
    went_back: bool = False
    lost: bool = False
    gate_open: bool = False
    draining: bool = False
    """Being handed over: the driver returns at its next boundary (after a commit), the run stays
    due.
    """
    tried: list[UUID] = field(default_factory=list)
    wake: Callable[[], None] = lambda: None
    on_lost: Callable[[], None] = lambda: None
    on_broken: Callable[[], None] = lambda: None
    """Called when the connection behind this fence broke: the gate closes, publication goes back to step
    1.
    """


# ------------------------------------------------------------------ admission (stations 3-4 <-> store)


@dataclass(frozen=True, slots=True)
class NewRun:
    """A start that admission would create. `pinned` is its sealed first event; status is queued, cancelled
    or parked.
    """

    facts: RunFacts
    pin: RunPin
    input: str
    sent_digest: bytes
    expires_at: datetime
    checkpoint: Checkpoint
    events: tuple[SealedEvent, ...]
    start_ce_id: str | None
    start_ce_source: str | None
    traceparent: str | None
    order: int
    """Place in the batch: events of a batch are numbered in this order."""


@dataclass(frozen=True, slots=True)
class KnownRun:
    """What is known of an existing run (or of a tombstone) when a start or resume names it."""

    run_id: RunId
    lane_id: LaneId
    sent_digest: bytes
    status: Status
    subject_id: str
    subject_tenant: str | None
    swept: bool = False


@dataclass(frozen=True, slots=True)
class NewSignal:
    """What anybody but the owner says to a run (I8). `dedupe` = (ce_source, ce_id, digest) or the record's
    place.
    """

    run_id: RunId
    kind: SignalKind
    body: Mapping[str, JsonValue]
    source: Literal["kafka", "operator", "tool"]
    dedupe_source: str | None = None
    dedupe_id: str | None = None
    dedupe_digest: bytes | None = None
    causation_id: str | None = None
    recorded_at: datetime | None = None
    """Of a Kafka record: its timestamp."""
    held: bool = False
    """No run of this id exists yet: held with its raw bytes until its start comes or the orphan sweep
    (DESIGN 5).
    """
    order: int = 0
    raw_value: bytes | None = None
    raw_key: bytes | None = None
    raw_headers: Sequence[tuple[str, bytes | None]] = ()
    topic_id: str | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class NewDeadLetter:
    """Exact bytes of a refused record with its place and reason; a row of the admission transaction (I13)."""

    reason: RejectReason
    detail: str
    topic_id: str
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    recorded_at: datetime | None
    run_id: str | None
    order: int


@dataclass(frozen=True, slots=True)
class Decided:
    """What the second half of the admission transaction writes beside the created runs."""

    signals: Sequence[NewSignal] = ()
    dead_letters: Sequence[NewDeadLetter] = ()


Decider = Callable[[frozenset[RunId], Sequence[KnownRun]], Decided]
"""Called inside the admission transaction between its two round trips; pure and quick. Gets the run_ids
created now and every run or tombstone among `named` that stood there before this batch."""


@dataclass(frozen=True, slots=True)
class AdmissionBatch:
    """One lane's batch. `first_offset`..`next_offset` covers every record of it, also the skipped ones.

    `candidates` would be created if no run of their id exists; duplicates within the batch are folded
    already. `named` are all run ids that any record of the batch names (candidates, other starts, resumes).
    """

    fence: LaneFence
    topic_id: str
    first_offset: int
    next_offset: int
    candidates: Sequence[NewRun]
    named: Sequence[RunId]
    decide: Decider


@dataclass(frozen=True, slots=True)
class Admitted:
    """The batch's transaction committed. `signals` counts those that were no duplicates."""

    created: frozenset[RunId]
    signals: int
    dead_letters: int
    input_offset: int


@dataclass(frozen=True, slots=True)
class OffsetMoved:
    """The batch is not where the lane stands, or its topic generation changed: go to `input_offset`."""

    input_offset: int
    topic_id: str


# ------------------------------------------------------------------ the hot path (stations 7, 9, 11 <->
# store)


class CommitAnswer(StrEnum):
    COMMITTED = "committed"
    STALE = "stale"
    """The row is at another version, or terminal, or a signal was consumed by somebody: drop the run, load
    it anew.
    """
    LANE_LOST = "lane_lost"
    UNSTORABLE = "unstorable"
    """Postgres refused this row's own content (SQLSTATE classes 22, 23, 54), its neighbours committed."""


@dataclass(frozen=True, slots=True)
class RunCommit:
    """What one run wants committed: checkpoint values, events, consumed signals, in one fenced transaction
    (I7).

    `checkpoint.version` is the version read; the commit sets version + 1. `checkpoint` holds the new values.
    `working_changed` False leaves the stored working slots. `after_end` drops the non-terminal condition.
    """

    fence: LaneFence
    run_id: RunId
    checkpoint: Checkpoint
    events: tuple[SealedEvent, ...]
    consumes: tuple[int, ...] = ()
    not_after: Deadline = KEEP
    wake_at: Deadline = KEEP
    working_changed: bool = False
    after_end: bool = False


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A run as its owner loads it: immutable half, checkpoint, steps in order, unconsumed signals."""

    facts: RunFacts
    pin: RunPin
    input: str
    pinned_at: datetime
    expires_at: datetime
    lane_id: LaneId
    checkpoint: Checkpoint
    steps: tuple[StepRecord, ...]
    signals: tuple[Signal, ...]
    traceparent: str | None
    start_ce_id: str | None
    db_now: datetime


# ------------------------------------------------------------------ publication (station 12 <-> store)


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """A step row as the publisher reads it."""

    lane_seq: int
    run_id: RunId
    correlation_id: str
    event_seq: int
    kind: EventKind
    schema_fingerprint: bytes
    body: bytes
    hash: bytes
    salt: bytes | None
    payload: str | None
    signature: bytes | None
    recorded_at: datetime
    causation_id: str | None


@dataclass(frozen=True, slots=True)
class OutboxDeadLetter:
    lane_seq: int
    dead_letter_id: UUID
    reason: RejectReason
    detail: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    recorded_at: datetime
    record_timestamp: datetime | None
    run_id: str | None
    hash: bytes


OutboxRow = OutboxEvent | OutboxDeadLetter


@dataclass(frozen=True, slots=True)
class CursorCheck:
    """Postgres' side of publication step 2, read in one statement with the owner."""

    owner: UUID | None
    epoch: int
    published_seq: int
    published_hash: bytes | None
    next_seq: int
    went_back: bool
    row_hash: bytes | None
    """Hash of the row (step or dead letter) with the cursor's lane_seq; None: no such row."""
    adopted_seq: int | None
    adopted_hash: bytes | None
    """A cursor that an operator accepted with `lane adopt-floor`."""


# ------------------------------------------------------------------ views for people


@dataclass(frozen=True, slots=True)
class RunFilter:
    status: Status | None = None
    route_id: str | None = None
    session_id: str | None = None
    limit: int = 50
    before: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far everything is, in one snapshot: for `custody demo` and for people who watch.

    `mid_loop`: ids of running runs that have committed at least one step of their loop. `pending_keys`:
    idempotency keys of write intents without an end. `unpublished`: rows above their lane's floor.
    """

    by_status: Mapping[Status, int]
    mid_loop: frozenset[str]
    pending_keys: frozenset[str]
    unpublished: int


class RunStore(Protocol):
    """Postgres, as the stations see it. All methods raise `Unavailable("postgres")` for an outage; fenced
    ones raise `LaneLost` when the fence fails. The in-memory fake and Postgres pass one conformance suite."""

    # lanes
    async def ensure_lane(self, key: LaneKey, topic_id: str, cursor_partition: int) -> LaneRow: ...
    async def read_lane(self, lane_id: LaneId) -> LaneRow: ...
    async def acquire(
        self, lane_id: LaneId, owner: UUID, expected_epoch: int, mine: Sequence[UUID]
    ) -> LaneRow | None:
        """One short autocommit statement: epoch + 1, owner set, where epoch = expected. None: read again.

        Raises `unclean_ends` by one when the owner it replaces is neither empty nor one of `mine`. Ends
        backends that block it in ClientRead (DESIGN 4). A retry after a lost answer uses a fresh uuid.
        """

    async def set_topic_generation(self, fence: LaneFence, topic_id: str, input_offset: int) -> None:
        """The input topic was recreated: topic_id and input_offset change together, fenced."""

    async def heartbeat(self, fence: LaneFence, *, clear_unclean: bool) -> LaneRow:
        """last_alive = now, fenced; returns the row. LaneLost tells an idle owner that it was bumped."""

    async def release(self, fence: LaneFence) -> None:
        """owner := null if it is still this one. Quietly does nothing otherwise."""

    # admission
    async def known_runs(self, run_ids: Sequence[RunId]) -> Sequence[KnownRun]: ...
    async def admit(self, batch: AdmissionBatch) -> Admitted | OffsetMoved:
        """Two round trips (sql-tried): begin; insert candidates' runs and checkpoints sorted by run_id on
        conflict do nothing; as a second statement read all named runs; call `decide`; then number and insert
        the created runs' `pinned` events (in `order`), dead letters, signals, bind held signals of created
        runs, move input_offset (compared with first_offset, as topic_id is), fenced, queued with COMMIT and
        flushed once. A lost COMMIT is settled before it is offered again. A row of SQLSTATE class 22/23/54
        raises RowRefused naming its `order`; nothing of the batch is written then."""

    # the hot path
    async def commit(self, commit: RunCommit) -> CommitAnswer:
        """Offer to the group commit; answers when the group's transaction is decided (settled if need be)."""

    # signals and recovery
    async def insert_signal(self, signal: NewSignal) -> int | None:
        """Outside admission (CLI, late tool results). None: a duplicate. Resolve's conditions are checked
        here.
        """

    async def due_runs(
        self, lane_ids: Sequence[LaneId], live: Sequence[RunId], limit: int
    ) -> Sequence[tuple[RunId, LaneId]]:
        """Runs of these lanes that should be driven now and are not in `live`: woken and cancelled first,
        then answered, then fresh. Queued and running; waiting or parked past wake_at; any with unconsumed
        signals; any past expires_at (except in_doubt)."""

    async def load_runs(self, run_ids: Sequence[RunId]) -> Sequence[LoadedRun]: ...
    async def signals_for(self, run_ids: Sequence[RunId]) -> Sequence[Signal]:
        """Unconsumed signals of live runs."""

    async def sweep_orphans(self, fence: LaneFence, hold_s: float, limit: int = 500) -> int:
        """Dead-letter resumes that arrived on this lane and whose start did not come within the hold; how
        many. Fenced, numbered in the lane's sequence. Call it every minute or so (DESIGN 5).
        """

    async def now(self) -> datetime: ...
    async def progress(self) -> Progress: ...
    async def first_steps_after(self, run_ids: Sequence[str], moment: datetime) -> Mapping[str, datetime]:
        """recorded_at of each run's first step later than `moment`."""

    # publication
    async def outbox(self, lane_id: LaneId, after_seq: int, limit: int) -> Sequence[OutboxRow]: ...
    async def check_cursor(self, lane_id: LaneId, cursor_seq: int | None) -> CursorCheck: ...
    async def save_floor(self, fence: LaneFence, seq: int, hash_: bytes, cursor_offset: int) -> None: ...
    async def mark_went_back(self, fence: LaneFence) -> None: ...
    async def store_id(self) -> UUID: ...

    # contracts
    async def publish_contract(
        self, kind: ContractKind, name: str, version: str, body: str, digest: str
    ) -> bool:
        """True: new; False: the same content stands already. Other content: raises ContractConflict."""

    async def load_contract(self, kind: ContractKind, name: str, version: str) -> tuple[str, str] | None:
        """(body, digest) of one immutable row. There is no call without a version (I3)."""

    async def latest_version(self, kind: ContractKind, name: str) -> str | None:
        """The last *published* version; asked by admission alone, once per run."""


# ------------------------------------------------------------------ contracts, models, tools, policy


class Contracts(Protocol):
    """Immutable contracts by name and version, parsed and cached. Raises ContractMissing."""

    async def manifest(self, manifest_id: str, version: str, digest: str | None) -> tuple[Manifest, str]: ...
    async def policy(
        self, policy_profile: str, version: str, digest: str | None
    ) -> tuple[PolicyBundle, str]: ...
    async def latest_version(self, kind: ContractKind, name: str) -> str | None: ...


class ModelClient(Protocol):
    async def propose(self, request: InferenceRequest) -> Proposal:
        """Ask the model once. Raises `Unavailable("model")` for what another try may mend (timeouts, 429,
        5xx; `retry_after_s` attribute when told), `ModelProfileUnknown` for a profile nobody serves."""


class PolicyDecisionPoint(Protocol):
    async def decide(self, request: AuthorizationRequest) -> Decision:
        """Raises Unavailable when it could not be asked."""


@dataclass(frozen=True, slots=True)
class Send:
    """One send of a permitted call. `start_by` is CLOCK_BOOTTIME: past it the call does not start (DESIGN
    8).
    """

    idempotency_key: str
    attempt: int
    timeout_s: float
    start_by: float | None
    traceparent: str | None


LateResult = Callable[[RunId, str, ToolAnswer], Awaitable[None]]
"""(run_id, idempotency key, answer) of a sync call that ended after its timeout: becomes a signal
`tool_result`.
"""


class ToolGate(Protocol):
    """The PEP and the only way to invoke a tool (I12)."""

    async def authorize(
        self, run: RunFacts, pin: RunPin, manifest: Manifest, call: ToolCall, trace: TraceFields
    ) -> Authorization:
        """Validate arguments against the pinned schema, compare the running tool with the pin (raises
        ContractMissing when a `python:` tool is missing or different here), ask the PDP with the pinned
        subject and bundle."""

    async def invoke(self, permit: Permit, run: RunFacts, send: Send) -> ToolAnswer:
        """Never raises for a tool's failure. A cancelled invoke of a write leaves its intent pending."""

    async def reconcile(self, permit: Permit, run: RunFacts, send: Send) -> Reconciled: ...

    def running(self, key: str) -> bool:
        """A thread of this process is still inside a call with this idempotency key."""


# ------------------------------------------------------------------ signing and masking


class Signer(Protocol):
    """Ed25519 over an event's hash (DESIGN 7)."""

    @property
    def key_id(self) -> str: ...
    def sign(self, event_hash: bytes) -> bytes: ...


class RoutePins(Protocol):
    """The router's pins in Redis, read only (DESIGN 14). None: missing, expired, junk or Redis down (never
    raises).
    """

    async def read(self, session_id: str) -> Mapping[str, str] | None: ...


# ------------------------------------------------------------------ lanes <-> loop, publish, intake


class Inbox:
    """Signals of one live run: the lane puts them in, the driver takes them at its boundaries. Event loop
    only.

    A signal is known by its id: the lane's reconcile may see one many times until it is consumed.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Signal] = {}
        self._taken: set[int] = set()
        self._rung = asyncio.Event()

    def put(self, signals: Sequence[Signal]) -> None:
        for signal in signals:
            if signal.signal_id not in self._taken:
                self._waiting[signal.signal_id] = signal
        if self._waiting:
            self._rung.set()

    def take(self) -> tuple[Signal, ...]:
        """Everything that waits, oldest first; each signal is given out once."""
        signals = tuple(self._waiting[key] for key in sorted(self._waiting))
        self._taken.update(self._waiting)
        self._waiting.clear()
        self._rung.clear()
        return signals

    async def wait(self) -> None:
        """Return when something waits."""
        await self._rung.wait()


class RunDriver(Protocol):
    """Stations 7-11 for one run."""

    async def drive(self, run: LoadedRun, fence: LaneFence, inbox: Inbox, suspects: bool) -> None:
        """Drive the run until it leaves memory: terminal, waiting, parked, in_doubt, or its lane or row was
        lost.

        Returns normally in all of these; raises InvariantBroken for our own bugs. Cancelling it is safe at
        any await. `suspects`: the lane has unclean ends; the driver commits suspect_count + 1 before anything
        else (DESIGN 4).
        """


class LanePublication(Protocol):
    """Station 12 for one incarnation of one lane."""

    async def run(self, fence: LaneFence) -> None:
        """Publish until cancelled or fenced. Opens `fence.gate_open` after steps 1 and 2 of DESIGN 6, closes
        it on went_back and after `fence.on_broken`. Never raises for outages: it backs off."""

    async def close(self, flush_s: float) -> None:
        """Stop: publish what is committed for at most `flush_s`, then close the producer."""

    @property
    def backlog(self) -> int:
        """Committed rows that are not known to be published."""

    @property
    def closed_because(self) -> str | None:
        """Why publication of this lane is stopped (fail closed), for health; None: it is not."""


PublicationFactory = Callable[[LaneFence], LanePublication]
"""Builds station 12 for one incarnation."""


class LaneAssignments(Protocol):
    """Station 6, as intake tells it what the consumer group said. The first three: from the poll thread
    only.
    """

    def assigned(self, partitions: Sequence[int]) -> None:
        """These partitions of the input are ours, and paused. Returns at once; lanes answer with
        `IntakeControl.open`.
        """

    def revoked(self, partitions: Sequence[int], budget_s: float) -> None:
        """Drain and release these lanes. Blocks for at most about `budget_s`; never raises."""

    def lost(self, partitions: Sequence[int]) -> None:
        """The group gave these away without asking. Returns at once: runs go on, the fence decides (DESIGN
        4).
        """

    def admitted(self, fence: LaneFence) -> None:
        """Event loop: a batch of this incarnation committed something to be driven. Rings the reconcile."""

    def truncated(self, fence: LaneFence, offset: int) -> None:
        """Event loop: the partition now holds records below the lane's input_offset, from `offset` on."""


class IntakeControl(Protocol):
    """Stations 1-5, as lanes steer them. Event loop only, unless it says any thread. Nothing here waits for
    Kafka.
    """

    def is_assigned(self, partition: int) -> bool:
        """Whether the group says so now. Any thread."""

    def open(self, fence: LaneFence) -> None:
        """Admit for this incarnation: the partition goes to `fence.input_offset` and is resumed."""

    def move(self, fence: LaneFence) -> None:
        """Forget what was fetched and go to `fence.input_offset` (new topic generation)."""

    def mark(self, fence: LaneFence) -> int:
        """Grows with every batch that starts or ends: what a heartbeat remembers for `check`."""

    def check(self, fence: LaneFence, mark: int, input_offset: int) -> None:
        """A fenced statement returned `input_offset`: go there if it differs and no batch has moved since
        `mark`.
        """

    def hold(self, fence: LaneFence, held: bool) -> None:
        """The hard bound of the publication backlog pauses the partition, or ends that pause."""

    async def close(self, fence: LaneFence, budget_s: float) -> None:
        """Admit nothing further for this incarnation; a batch in flight gets `budget_s` to end.
        Idempotent.
        """

    def leave(self, cause: str) -> None:
        """Leave the group for good; health is red with `cause`. Any thread."""

    def abandon(self) -> None:
        """Watchdog: the event loop stalls; close the consumer without draining, come back later. Any
        thread.
        """

    def abandoned(self) -> bool:
        """The consumer that `abandon` spoke of is closed. Any thread."""


class InputTopic(Protocol):
    """What lanes ask Kafka's admin side about the input topic. Raises Unavailable("kafka")."""

    async def cluster_id(self) -> str: ...
    async def topic_id(self) -> str:
        """The generation: another id means the topic was deleted and made again (DESIGN 4)."""

    async def earliest(self, partition: int) -> int: ...
