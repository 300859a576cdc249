"""The 11 trace fields, verbatim in events, dead letters, logs, spans and the PDP's context (DESIGN 15)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceFields:
    """Field names are the same on the wire, in columns, logs, traces and metrics (DESIGN 16)."""

    session_id: str | None
    run_id: str
    correlation_id: str
    route_id: str
    route_table_version: str
    manifest_version: str | None
    policy_profile: str | None
    model_profile: str | None
    orchestration_step: str
    loop_step: int
    max_loop_steps: int | None
