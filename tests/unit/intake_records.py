"""Records as producers send them, for the tests of intake and lanes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from session_custody.core.events import ResumeKind, RunResume, RunStart
from session_custody.core.manifest import Effect, Manifest, ToolSpec
from session_custody.core.pin import SentPin, Subject
from session_custody.intake.record import Record
from session_custody.wire import encode_resume, encode_start
from tests.unit.intake_fakes import NOW

SUBJECT = Subject(id="u-17", tenant="bank-a")
TARGET = "https://app.internal/v1/runs"
MANIFEST = Manifest(
    manifest_id="fraud",
    manifest_version="1",
    visible=("input",),
    tools=(ToolSpec(name="get_alert", effect=Effect.READ, endpoint="python:a:b", input={"type": "object"}),),
)


def pin(**changes: Any) -> SentPin:
    fields: dict[str, Any] = {
        "route_id": "fraud_investigate",
        "route_table_version": "2026.08.1",
        "activation_target": TARGET,
        "model_profile": "reasoning",
    }
    return SentPin(**(fields | changes))


def looping_pin(**changes: Any) -> SentPin:
    return pin(**({"manifest_id": "fraud", "manifest_version": "1", "max_loop_steps": 12} | changes))


def start(run_id: str = "run-1", **changes: Any) -> RunStart:
    fields: dict[str, Any] = {
        "correlation_id": run_id,
        "subject": SUBJECT,
        "pin": pin(),
        "input": '"hi"',
    }
    return RunStart(**(fields | changes))


def resume(run_id: str | None = "run-1", kind: ResumeKind = ResumeKind.CANCEL, **changes: Any) -> RunResume:
    return RunResume(**({"correlation_id": run_id, "kind": kind} | changes))


def record(
    event: RunStart | RunResume | bytes | None,
    offset: int = 0,
    *,
    key: bytes | None = None,
    headers: tuple[tuple[str, bytes | None], ...] = (),
    recorded_at: datetime | None = NOW,
    partition: int = 0,
) -> Record:
    match event:
        case RunStart():
            value, named = encode_start(event), event.correlation_id.encode()
        case RunResume(correlation_id=None):
            value, named = encode_resume(event), b""
        case RunResume():
            value, named = encode_resume(event), (event.correlation_id or "").encode()
        case _:
            return Record(partition, offset, key, event, headers, recorded_at)
    return Record(partition, offset, named if key is None else key, value, headers, recorded_at)
