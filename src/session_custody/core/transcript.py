"""What a run has said and heard so far, rebuilt from step records (DESIGN 6: the checkpoint stays small)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from session_custody.core.events import EventKind


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A committed step as a resume reads it."""

    event_seq: int
    kind: EventKind
    loop_step: int
    record: JsonValue
