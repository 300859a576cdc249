"""Signals: what anybody but the owner says to a run (I8); the owner reads them at its boundaries (DESIGN 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pydantic import JsonValue

from session_custody.core.pin import RunId


class SignalKind(StrEnum):
    CONTINUE = "continue"
    ANSWER = "signal"
    CANCEL = "cancel"
    RESOLVE = "resolve"
    PARK = "park"
    UNPARK = "unpark"
    TOOL_RESULT = "tool_result"


@dataclass(frozen=True, slots=True)
class Signal:
    signal_id: int
    run_id: RunId
    kind: SignalKind
    body: Mapping[str, JsonValue]
    causation_id: str | None
    created_at: datetime
    recorded_at: datetime | None
