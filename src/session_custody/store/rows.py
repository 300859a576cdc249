"""Rows as values and back (DESIGN 11). Text columns that hold JSON are written and read here and nowhere
else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from session_custody.core import canonical
from session_custody.core.errors import RejectReason, SignalRefused
from session_custody.core.events import EventKind, RunFacts
from session_custody.core.pin import LaneId, Resolved, RunId, RunPin, SentPin, Subject
from session_custody.core.run import Checkpoint, ParkReason, PendingIntent, Status
from session_custody.ports import (
    KnownRun,
    LaneKey,
    LaneRow,
    LoadedRun,
    NewDeadLetter,
    NewSignal,
    OutboxDeadLetter,
    OutboxEvent,
    Signal,
    SignalKind,
    StepRecord,
)

Columns = Mapping[str, Any]
Headers = Sequence[tuple[str, bytes | None]]


def lane_row(row: Columns) -> LaneRow:
    return LaneRow(
        lane_id=LaneId(row["lane_id"]),
        key=LaneKey(row["cluster_id"], row["topic"], row["partition"]),
        topic_id=row["topic_id"],
        epoch=row["epoch"],
        owner=row["owner"],
        adopted_by=row["adopted_by"],
        next_seq=row["next_seq"],
        input_offset=row["input_offset"],
        published_seq=row["published_seq"],
        cursor_partition=row["cursor_partition"],
        cursor_offset=row["cursor_offset"],
        unclean_ends=row["unclean_ends"],
        went_back=row["went_back"],
        last_alive=row["last_alive"],
    )


def known_run(row: Columns) -> KnownRun:
    return KnownRun(
        run_id=RunId(row["run_id"]),
        lane_id=LaneId(row["lane_id"]),
        sent_digest=row["sent_digest"],
        status=Status(row["status"]),
        subject_id=row["subject_id"],
        subject_tenant=row["subject_tenant"],
        swept=row["swept"],
    )


# ------------------------------------------------------------------ pins


def sent_pin_text(pin: RunPin) -> str:
    return pin.sent.model_dump_json(exclude_none=True)


def shown_pin_text(pin: RunPin) -> str:
    """As people see it: with the versions that admission resolved, nulls left out (DESIGN 16)."""
    effective = pin.sent.model_copy(
        update={
            "manifest_version": pin.manifest_version,
            "workflow_version": pin.workflow_version,
            "policy_version": pin.policy_version,
        }
    )
    return effective.model_dump_json(exclude_none=True)


def resolved_text(pin: RunPin) -> str:
    return pin.resolved.model_dump_json(exclude_none=True)


def run_pin(row: Columns) -> RunPin:
    return RunPin(
        sent=SentPin.model_validate_json(row["sent_pin"]),
        resolved=Resolved.model_validate_json(row["resolved"]),
    )


def run_facts(row: Columns, pin: RunPin) -> RunFacts:
    return RunFacts(
        run_id=row["run_id"],
        correlation_id=row["correlation_id"],
        session_id=row["session_id"],
        tenant=row["tenant"],
        subject=Subject(
            id=row["subject_id"], tenant=row["subject_tenant"], actor=tuple(json.loads(row["subject_actor"]))
        ),
        decision_id=row["decision_id"],
        pin=pin.sent,
        manifest_version=pin.manifest_version,
        workflow_version=pin.workflow_version,
        policy_version=pin.policy_version,
        parent=row["parent"],
        forked_from=row["forked_from"],
    )


# ------------------------------------------------------------------ checkpoints


def pending_text(pending: PendingIntent | None) -> str | None:
    return None if pending is None else canonical.compact(asdict(pending))


def working_text(checkpoint: Checkpoint) -> str | None:
    return None if checkpoint.working is None else canonical.compact(checkpoint.working)


def checkpoint(row: Columns) -> Checkpoint:
    return Checkpoint(
        status=Status(row["status"]),
        loop_step=row["loop_step"],
        stage=row["stage"],
        version=row["version"],
        head_seq=row["head_seq"],
        head_hash=row["head_hash"],
        attempts=row["attempts"],
        parks=row["parks"],
        suspect_count=row["suspect_count"],
        stop_requested=row["stop_requested"],
        park_reason=None if row["park_reason"] is None else ParkReason(row["park_reason"]),
        wake_at=row["wake_at"],
        pending=None if row["pending"] is None else PendingIntent(**json.loads(row["pending"])),
        not_after=row["not_after"],
        call_running=row["call_running"],
        doubt_seq=row["doubt_seq"],
        last_tool=row["last_tool"],
        working=None if row["working"] is None else json.loads(row["working"]),
        loaded=row["loaded"],
        format=row["format"],
    )


def loaded_run(row: Columns, steps: Sequence[StepRecord], signals: Sequence[Signal]) -> LoadedRun:
    pin = run_pin(row)
    return LoadedRun(
        facts=run_facts(row, pin),
        pin=pin,
        input=row["input"],
        pinned_at=row["pinned_at"],
        expires_at=row["expires_at"],
        lane_id=LaneId(row["lane_id"]),
        checkpoint=checkpoint(row),
        steps=tuple(steps),
        signals=tuple(signals),
        traceparent=row["traceparent"],
        start_ce_id=row["start_ce_id"],
        db_now=row["db_now"],
    )


def step_record(row: Columns) -> StepRecord:
    record = row["record"]
    return StepRecord(
        event_seq=row["event_seq"],
        kind=EventKind(row["kind"]),
        loop_step=row["loop_step"],
        record=None if record is None else json.loads(record),
    )


def signal(row: Columns) -> Signal:
    return Signal(
        signal_id=row["signal_id"],
        run_id=RunId(row["run_id"]),
        kind=SignalKind(row["kind"]),
        body=json.loads(row["body"]),
        causation_id=row["causation_id"],
        created_at=row["created_at"],
        recorded_at=row["recorded_at"],
    )


def signal_refused(signal: NewSignal, row: Columns) -> SignalRefused:
    """Why the INSERT's conditions let the signal not pass."""
    status = row["status"]
    if status is None:
        return SignalRefused("run_unknown", f"there is no run {signal.run_id}")
    if signal.kind is not SignalKind.RESOLVE:
        return SignalRefused("run_ended", f"run {signal.run_id} is {status}")
    if status != "in_doubt":
        return SignalRefused("not_in_doubt", f"run {signal.run_id} is {status}")
    if row["doubt_seq"] != signal.body.get("event_seq"):
        return SignalRefused("other_doubt", f"the in_doubt that stands is event {row['doubt_seq']}")
    if row["call_running"]:
        return SignalRefused("call_running", "the call has not ended: only done can be said")
    return SignalRefused(
        "too_early", "the call may still be under way: only done can be said before not_after"
    )


# ------------------------------------------------------------------ the outbox


def headers_text(headers: Headers) -> str:
    """[[name, base64 or null], …] in plain ASCII: a header's name may be any text."""
    return json.dumps(
        [[name, None if value is None else base64.b64encode(value).decode()] for name, value in headers],
        separators=(",", ":"),
    )


def read_headers(text: str) -> tuple[tuple[str, bytes | None], ...]:
    return tuple(
        (name, None if value is None else base64.b64decode(value)) for name, value in json.loads(text)
    )


def orphan_detail(hold_s: float) -> str:
    return f"no start of this run came within {hold_s:g} s"


def orphan_of(held: NewSignal, hold_s: float) -> NewDeadLetter:
    """`orphan_letter` of a signal that is not a row."""
    return NewDeadLetter(
        reason=RejectReason.ORPHAN_RESUME,
        detail=orphan_detail(hold_s),
        topic_id=held.topic_id or "",
        offset=held.offset or 0,
        key=held.raw_key,
        value=held.raw_value,
        headers=held.raw_headers,
        recorded_at=held.recorded_at,
        run_id=held.run_id,
        order=0,
    )


def orphan_letter(row: Columns, detail: str) -> NewDeadLetter:
    """The dead letter of a resume that was held for too long."""
    return NewDeadLetter(
        reason=RejectReason.ORPHAN_RESUME,
        detail=detail,
        topic_id=row["topic_id"],
        offset=row["record_offset"],
        key=row["raw_key"],
        value=row["raw_value"],
        headers=read_headers(row["raw_headers"]),
        recorded_at=row["recorded_at"],
        run_id=row["run_id"],
        order=0,
    )


def dead_letter_hash(dead_letter_id: UUID, lane_id: int, letter: NewDeadLetter) -> bytes:
    """SHA-256 over the row's random id, its place, reason and exact bytes, each with its length in front.

    The id makes a row that is written again after the store went back another row (DESIGN 6).
    """
    total = hashlib.sha256()
    for part in (
        dead_letter_id.bytes,
        b"%d" % lane_id,
        letter.topic_id.encode("utf-8", "surrogatepass"),
        b"%d" % letter.offset,
        letter.reason.value.encode(),
        letter.detail.encode("utf-8", "surrogatepass"),
        letter.key,
        letter.value,
        headers_text(letter.headers).encode(),
    ):
        total.update(b"-" if part is None else b"%d:" % len(part) + part)
    return total.digest()


def outbox_event(row: Columns) -> OutboxEvent:
    return OutboxEvent(
        lane_seq=row["lane_seq"],
        run_id=RunId(row["run_id"]),
        correlation_id=row["run_id"],
        event_seq=row["event_seq"],
        kind=EventKind(row["kind"]),
        schema_fingerprint=row["schema_fingerprint"],
        body=row["body"],
        hash=row["hash"],
        salt=row["salt"],
        payload=row["payload"],
        signature=row["signature"],
        recorded_at=row["recorded_at"],
        causation_id=row["causation_id"],
    )


def outbox_dead_letter(row: Columns) -> OutboxDeadLetter:
    return OutboxDeadLetter(
        lane_seq=row["lane_seq"],
        dead_letter_id=row["dead_letter_id"],
        reason=RejectReason(row["reason"]),
        detail=row["detail"],
        topic=row["topic"],
        partition=row["partition"],
        offset=row["record_offset"],
        key=row["key"],
        value=row["value"],
        headers=read_headers(row["headers"]),
        recorded_at=row["recorded_at"],
        record_timestamp=row["record_timestamp"],
        run_id=row["run_id"],
        hash=row["hash"],
    )
