"""Parameters and rows of admission's statements, in the order of queries.sql."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final
from uuid import UUID, uuid4

from session_custody.core import canonical
from session_custody.core.events import SealedEvent
from session_custody.core.pin import LaneId, RunId
from session_custody.core.run import Status
from session_custody.ports import AdmissionBatch, Decided, KnownRun, NewDeadLetter, NewRun, NewSignal
from session_custody.store import rows
from session_custody.store.arrays import BOOL, BYTES, INT4, INT8, TEXT, TIMES, UUIDS, Column, columns
from session_custody.store.link import Call, Prepared, Row

_INSERT: Final = Prepared.named("insert_runs")
_KNOWN: Final = Prepared.named("known_runs")
_ADMIT: Final = Prepared.named("admit")

_RUN_COLUMNS: Final[tuple[Column, ...]] = (
    TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, BYTES, TEXT, TEXT, TEXT, TEXT, TIMES, TEXT, TEXT, TEXT,
    TEXT, TEXT, TEXT, INT4, TEXT, INT8, BYTES, TEXT, TEXT, TIMES, INT4, INT8, INT4, TEXT,
)  # fmt: skip
_STEP_COLUMNS: Final[tuple[Column, ...]] = (
    INT4, TEXT, INT8, TEXT, INT4, BYTES, BYTES, BYTES, TEXT, BYTES, TEXT, BYTES, TEXT,
)  # fmt: skip
_LETTER_COLUMNS: Final[tuple[Column, ...]] = (
    INT4, UUIDS, TEXT, INT8, TEXT, TEXT, BYTES, BYTES, TEXT, BYTES, TEXT, TIMES,
)  # fmt: skip
_SIGNAL_COLUMNS: Final[tuple[Column, ...]] = (
    TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, BYTES, TEXT, TIMES, BOOL, TEXT, INT8, BYTES, BYTES, TEXT,
)  # fmt: skip


def insert_call(batch: AdmissionBatch, candidates: Sequence[NewRun]) -> Call:
    values = [_run_values(run) for run in sorted(candidates, key=lambda run: run.facts.run_id)]
    return Call(_INSERT, [INT8.encode(batch.fence.lane_id), *columns(_RUN_COLUMNS, values)])


def _run_values(run: NewRun) -> tuple[object, ...]:
    facts, begins = run.facts, run.checkpoint
    return (
        facts.run_id,
        facts.session_id,
        facts.tenant,
        facts.subject.id,
        facts.subject.tenant,
        json.dumps(facts.subject.actor),
        facts.decision_id,
        facts.pin.route_id,
        run.sent_digest,
        rows.sent_pin_text(run.pin),
        rows.shown_pin_text(run.pin),
        rows.resolved_text(run.pin),
        run.input,
        run.expires_at,
        run.start_ce_id,
        run.start_ce_source,
        run.traceparent,
        facts.parent,
        facts.forked_from,
        begins.status.value,
        begins.loop_step,
        begins.stage,
        begins.head_seq,
        begins.head_hash,
        None if begins.park_reason is None else begins.park_reason.value,
        begins.loaded,
        begins.wake_at,
        begins.format,
        begins.version,
        begins.parks,
        begins.stop_requested,
    )


def known_call(run_ids: Sequence[RunId]) -> Call:
    return Call(_KNOWN, [TEXT.array(sorted(set(run_ids)))])


def admit_call(
    batch: AdmissionBatch,
    owner: UUID,
    created: frozenset[RunId],
    new_runs: Sequence[NewRun],
    decided: Decided,
) -> Call:
    """`created`: every run of round trip 1; `new_runs`: those whose events this call writes."""
    steps, letters = _numbered(batch, new_runs, decided.dead_letters)
    return Call(
        _ADMIT,
        [
            INT8.encode(batch.fence.lane_id),
            owner.bytes,
            batch.topic_id.encode(),
            INT8.encode(batch.first_offset),
            INT8.encode(batch.next_offset),
            INT8.encode(batch.fence.last_seen),
            *columns(_STEP_COLUMNS, steps),
            *columns(_LETTER_COLUMNS, letters),
            *columns(_SIGNAL_COLUMNS, [_signal_values(signal) for signal in decided.signals]),
            TEXT.array(sorted(created)),
        ],
    )


def _numbered(
    batch: AdmissionBatch, new_runs: Sequence[NewRun], dead_letters: Sequence[NewDeadLetter]
) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Steps and dead letters with their places in one sequence: the batch's order, a run's events in turn."""
    items: list[tuple[int, int, NewRun | NewDeadLetter]] = [
        (run.order, place, run) for run in new_runs for place in range(len(run.events))
    ]
    items += [(letter.order, 0, letter) for letter in dead_letters]
    steps: list[tuple[object, ...]] = []
    letters: list[tuple[object, ...]] = []
    for place, (_, event, item) in enumerate(sorted(items, key=lambda item: item[:2])):
        if isinstance(item, NewRun):
            steps.append((place, *_step_values(item, item.events[event])))
        else:
            letters.append((place, *_letter_values(batch, item)))
    return steps, letters


def _step_values(run: NewRun, event: SealedEvent) -> tuple[object, ...]:
    return (
        run.facts.run_id,
        event.event_seq,
        event.kind.value,
        run.checkpoint.loop_step,
        event.schema_fingerprint,
        event.hash,
        event.body,
        event.payload,
        event.salt,
        event.record,
        event.signature,
        run.start_ce_id,
    )


def _letter_values(batch: AdmissionBatch, letter: NewDeadLetter) -> tuple[object, ...]:
    dead_letter_id = uuid4()
    return (
        dead_letter_id,
        letter.topic_id,
        letter.offset,
        letter.reason.value,
        letter.detail,
        letter.key,
        letter.value,
        rows.headers_text(letter.headers),
        rows.dead_letter_hash(dead_letter_id, batch.fence.lane_id, letter),
        letter.run_id,
        letter.recorded_at,
    )


def _signal_values(signal: NewSignal) -> tuple[object, ...]:
    return (
        signal.run_id,
        signal.kind.value,
        canonical.compact(dict(signal.body)),
        signal.source,
        signal.dedupe_source,
        signal.dedupe_id,
        signal.dedupe_digest,
        signal.causation_id,
        signal.recorded_at,
        signal.held,
        signal.topic_id,
        signal.offset,
        signal.raw_key,
        signal.raw_value,
        rows.headers_text(signal.raw_headers) if signal.held else None,
    )


def known_run(row: Row) -> KnownRun:
    run_id, lane_id, sent_digest, status, subject_id, subject_tenant, swept = row
    return KnownRun(
        run_id=RunId((run_id or b"").decode()),
        lane_id=LaneId(int(lane_id or 0)),
        sent_digest=bytes.fromhex((sent_digest or b"")[2:].decode()),
        status=Status((status or b"").decode()),
        subject_id=(subject_id or b"").decode(),
        subject_tenant=None if subject_tenant is None else subject_tenant.decode(),
        swept=swept == b"t",
    )
