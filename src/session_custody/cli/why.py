"""`run why`: one sentence from the evidence. Pure: the evidence is the store's `run_evidence`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from session_custody.core.run import ParkReason, Status

OWNER_SILENT_S: Final = 15.0

_PARKED: Final = {
    ParkReason.POLICY_UNAVAILABLE: "its policy decision point could not be asked",
    ParkReason.CONTRACT_MISSING: "a contract or tool that it is pinned to is not here",
    ParkReason.MODEL_UNAVAILABLE: "the model could not be asked within its retry budget",
    ParkReason.AWAITING_AUTH: "it needs a token that only its subject can give again",
    ParkReason.SUSPECT: "its worker died several times while it was in hand",
    ParkReason.NOT_STARTED: "its write could not be started within the allowance",
    ParkReason.OPERATOR: "an operator parked it",
}


def explain(evidence: Mapping[str, Any]) -> str:
    """Why the run stands where it stands, and what happens next."""
    status = Status(evidence["status"])
    match status:
        case Status.QUEUED | Status.RUNNING:
            return _under_way(evidence, status)
        case Status.WAITING:
            return f"It waits for an answer{_until(evidence, 'wake_at')}."
        case Status.PARKED:
            return _parked(evidence)
        case Status.IN_DOUBT:
            return _in_doubt(evidence)
        case _:
            return _ended(evidence, status)


def _under_way(evidence: Mapping[str, Any], status: Status) -> str:
    lane = evidence["lane"]
    where = f"lane {lane['lane_id']} ({lane['topic']}/{lane['partition']})"
    if lane["owner"] is None:
        return f"It is {status.value}, and {where} has no owner: no worker is assigned to its partition."
    silent = _seconds(lane["last_alive"], evidence["now"])
    if silent is not None and silent > OWNER_SILENT_S:
        return f"It is {status.value}, and the owner of {where} has been silent for {silent:.0f} s."
    stop = evidence.get("stop_requested")
    ending = f" It ends as soon as it can: {stop} was requested." if stop else ""
    pending = evidence.get("pending")
    if pending:
        return (
            f"It is in the middle of a write: {pending['tool']} with key {pending['key']}, "
            f"attempt {evidence.get('attempts', 1)}; nobody sends it again before {evidence['not_after']}.{ending}"
        )
    if status is Status.QUEUED:
        return f"It is queued on {where}, whose owner takes it when a slot is free.{ending}"
    left = _steps_left(evidence)
    return f"It is running on {where}, epoch {lane['epoch']}, at loop step {_loop_step(evidence)}{left}.{ending}"


def _parked(evidence: Mapping[str, Any]) -> str:
    reason = ParkReason(evidence["park_reason"])
    said = f"It is parked because {_PARKED[reason]}"
    if reason.wakes_by_itself:
        return f"{said}; it tries again{_until(evidence, 'wake_at', word='at')} by itself."
    return f"{said}; it goes on when somebody says so: custody run resume {evidence['run_id']}."


def _in_doubt(evidence: Mapping[str, Any]) -> str:
    pending = evidence.get("pending") or {}
    return (
        f"Nobody knows whether {pending.get('tool', 'its write')} with key {pending.get('key', '-')} took effect; "
        f"look there, then: custody run resolve {evidence['run_id']} --done or --not-done, with --reason "
        f"(event {evidence.get('doubt_seq')})."
    )


def _ended(evidence: Mapping[str, Any], status: Status) -> str:
    last = evidence.get("last_step") or {}
    cause = last.get("code") or last.get("reason")
    return f"It ended {status.value} at loop step {_loop_step(evidence)}{f', because of {cause}' if cause else ''}."


def _loop_step(evidence: Mapping[str, Any]) -> int:
    return int(evidence["pin"].get("loop_step") or 0)


def _steps_left(evidence: Mapping[str, Any]) -> str:
    bound = evidence["pin"].get("max_loop_steps")
    return "" if bound is None else f" of {bound}"


def _until(evidence: Mapping[str, Any], key: str, word: str = "until") -> str:
    return f" {word} {evidence[key]}" if evidence.get(key) else ""


def _seconds(then: datetime | None, now: datetime) -> float | None:
    return None if then is None else (now - then).total_seconds()
