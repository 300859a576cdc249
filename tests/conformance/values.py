"""Runs, events, commits and batches as tests of the store need them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from session_custody.core.errors import RejectReason
from session_custody.core.events import EventKind, RunFacts, SealedEvent
from session_custody.core.pin import Resolved, RunId, RunPin, SentPin, Subject
from session_custody.core.run import Checkpoint, PendingIntent, Status
from session_custody.ports import (
    AdmissionBatch,
    Admitted,
    CommitAnswer,
    Decided,
    KnownRun,
    LaneFence,
    LaneKey,
    LoadedRun,
    NewDeadLetter,
    NewRun,
    NewSignal,
    RunCommit,
    RunStore,
    SignalKind,
)

TOPIC_ID = "generation-1"
PENDING = PendingIntent(loop_step=1, ordinal=0, key="run/1/0", args_digest="00", tool="add_note")


def fresh_id(prefix: str = "run") -> RunId:
    return RunId(f"{prefix}-{uuid4().hex[:12]}")


def event(seq: int, kind: EventKind = EventKind.DECIDED, **changes: Any) -> SealedEvent:
    """A sealed event whose hash is as random as its salt makes a real one's."""
    salt = os.urandom(16)
    body = b"body of %d " % seq + salt
    sealed = SealedEvent(
        kind=kind,
        event_seq=seq,
        schema_fingerprint=b"\x01" * 8,
        body=body,
        hash=hashlib.sha256(body).digest(),
        salt=salt,
        payload=None,
        record='{"said":"something"}',
        signature=None,
        occurred_at=datetime.now(UTC),
    )
    return replace(sealed, **changes)


def new_run(run_id: RunId | None = None, *, order: int = 0, **changes: Any) -> NewRun:
    """A start that admission would create, queued, with its `pinned` event."""
    run_id = run_id or fresh_id()
    sent = SentPin(
        route_id="fraud_investigate", route_table_version="2026.08.1", model_profile="reasoning-standard",
        manifest_id="fraud-investigate-v2", policy_profile="fraud_ops", policy_version="7", max_loop_steps=12,
    )  # fmt: skip
    pin = RunPin(sent=sent, resolved=Resolved(manifest_version="2026.08.1"))
    subject = Subject(id="u-17", tenant="bank-a", actor=("svc-1",))
    facts = RunFacts(
        run_id=run_id, correlation_id=run_id, session_id="sess-88", tenant="bank-a", subject=subject,
        decision_id="d-1", pin=sent, manifest_version=pin.manifest_version, workflow_version=None,
        policy_version="7",
    )  # fmt: skip
    pinned = event(1, EventKind.PINNED)
    run = NewRun(
        facts=facts,
        pin=pin,
        input='{"alert_id":"alert-88421"}',
        sent_digest=hashlib.sha256(run_id.encode()).digest(),
        expires_at=datetime.now(UTC) + timedelta(hours=24),
        checkpoint=Checkpoint(Status.QUEUED, 0, "loop", 1, 1, pinned.hash),
        events=(pinned,),
        start_ce_id="start-1",
        start_ce_source="tests",
        traceparent=None,
        order=order,
    )
    return replace(run, **changes)


def dead_letter(order: int, offset: int, **changes: Any) -> NewDeadLetter:
    letter = NewDeadLetter(
        reason=RejectReason.UNDECODABLE, detail="no Avro", topic_id=TOPIC_ID, offset=offset, key=b"\x00key",
        value=b"\xff\x00", headers=[("h", b"\x00"), ("n", None)], recorded_at=datetime.now(UTC), run_id=None,
        order=order,
    )  # fmt: skip
    return replace(letter, **changes)


def signal(run_id: RunId, kind: SignalKind = SignalKind.CONTINUE, **changes: Any) -> NewSignal:
    return replace(NewSignal(run_id=run_id, kind=kind, body={}, source="operator"), **changes)


async def own_lane(store: RunStore, partition: int = 0, topic: str | None = None) -> LaneFence:
    """A lane of the test's own, acquired."""
    key = LaneKey("cluster", topic or f"topic-{uuid4().hex[:8]}", partition)
    row = await store.ensure_lane(key, TOPIC_ID, partition)
    return await take(store, row.key)


async def take(store: RunStore, key: LaneKey) -> LaneFence:
    """Become the owner of a lane, as another worker would."""
    row = await store.ensure_lane(key, TOPIC_ID, key.partition)
    owner = uuid4()
    taken = await store.acquire(row.lane_id, owner, row.epoch, [])
    assert taken is not None
    return LaneFence(
        row.lane_id, key, owner, taken.epoch, taken.topic_id,
        last_seen=taken.next_seq - 1, input_offset=taken.input_offset,
    )  # fmt: skip


def batch(
    fence: LaneFence,
    runs: Sequence[NewRun] = (),
    *,
    signals: Sequence[NewSignal] = (),
    dead_letters: Sequence[NewDeadLetter] = (),
    first: int | None = None,
    records: int | None = None,
    named: Sequence[RunId] = (),
    heard: list[tuple[frozenset[RunId], Sequence[KnownRun]]] | None = None,
) -> AdmissionBatch:
    """A batch that begins where the fence stands; `heard` collects what `decide` was told."""

    def decide(created: frozenset[RunId], known: Sequence[KnownRun]) -> Decided:
        if heard is not None:
            heard.append((created, known))
        return Decided(signals, dead_letters)

    begin = fence.input_offset if first is None else first
    count = len(runs) + len(signals) + len(dead_letters) if records is None else records
    ids = {RunId(run.facts.run_id) for run in runs} | {told.run_id for told in signals} | set(named)
    return AdmissionBatch(fence, fence.topic_id, begin, begin + count, runs, sorted(ids), decide)


async def admitted(store: RunStore, fence: LaneFence, *runs: NewRun) -> list[LoadedRun]:
    """Admit runs and load them."""
    answer = await store.admit(batch(fence, runs))
    assert isinstance(answer, Admitted)
    assert len(answer.created) == len(runs)
    return list(await store.load_runs([RunId(run.facts.run_id) for run in runs]))


def commit(fence: LaneFence, run: LoadedRun, *kinds: EventKind, **changes: Any) -> RunCommit:
    """The next commit of a loaded run: one event per kind, other fields of checkpoint or commit by name."""
    before = run.checkpoint
    events = tuple(event(before.head_seq + number, kind) for number, kind in enumerate(kinds, start=1))
    of_commit = {
        name: changes.pop(name)
        for name in ("consumes", "not_after", "wake_at", "working_changed", "after_end", "events")
        if name in changes
    }
    events = of_commit.pop("events", events)
    after = replace(
        before,
        status=changes.pop("status", Status.RUNNING),
        head_seq=events[-1].event_seq if events else before.head_seq,
        head_hash=events[-1].hash if events else before.head_hash,
        **changes,
    )
    return RunCommit(fence, RunId(run.facts.run_id), after, events, **of_commit)


async def step(
    store: RunStore, fence: LaneFence, run: LoadedRun, *kinds: EventKind, **changes: Any
) -> LoadedRun:
    """Commit, expect it committed, and load the run again."""
    assert await store.commit(commit(fence, run, *kinds, **changes)) is CommitAnswer.COMMITTED
    return await reload(store, run)


async def reload(store: RunStore, run: LoadedRun) -> LoadedRun:
    (loaded,) = await store.load_runs([RunId(run.facts.run_id)])
    return loaded
